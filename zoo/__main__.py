"""The process of `zoo` and `lightning`; `python -m zoo` is the form that no other package can claim."""

import os
import sys
from typing import NoReturn

from zoo.system import process_exit


def run() -> NoReturn:
    """Run the command of this process's arguments, and exit with its code."""
    process_exit.follow_parent()
    from zoo.cli import main

    process_exit.exit_with(main)


if __name__ == "__main__":
    # -m searches the working folder first, where attr.py would replace a package; own parts there are found as by `zoo`
    if sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    run()
