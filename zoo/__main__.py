"""`python -m zoo`: the form of the command that no other package can claim."""

import sys

from zoo.cli import main

if __name__ == "__main__":
    sys.exit(main())
