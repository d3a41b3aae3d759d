"""The process of `zoo` and `lightning`; `python -m zoo` is the form that no other package can claim."""

from typing import NoReturn

from zoo.system import garbage_collection, process_exit


def run() -> NoReturn:
    """Run the command of this process's arguments, and exit with its code."""
    from zoo.cli import main

    garbage_collection.collect_seldom()
    process_exit.exit_with(main)


if __name__ == "__main__":
    run()
