"""One module for each kind of part: the checks of its contract, in ``PROMISES``."""
