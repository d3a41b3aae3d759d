"""The process of `zoo` and `lightning`; `python -m zoo` is the form that no other package can claim."""

import atexit
import gc
import os
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command of this process's arguments, and exit with its code."""
    from zoo.cli import main

    atexit.register(gc.freeze)  # an interpreter that ends walks all objects several times: seconds after torch's import
    sys.exit(main())


if __name__ == "__main__":
    # -m searches the working folder first, where attr.py would replace a package; own parts there are found as by `zoo`
    if sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    run()
