"""`python -m zoo.conformance KIND` prints the checks of a kind as a Markdown table."""

from __future__ import annotations

import sys
from importlib import import_module

from zoo.conformance.contract import SUBJECTS


def table(kind: str) -> str:
    """One row per check: its name, and what it promises."""
    promises = import_module(f"zoo.conformance.{kind}").PROMISES
    rows = [f"| `{promise.__name__}` | {(promise.__doc__ or '').partition(chr(10))[0]} |" for promise in promises]
    return "\n".join(["| check | promise |", "|---|---|", *rows])


if __name__ == "__main__":
    for kind in sys.argv[1:] or SUBJECTS:
        print(table(kind))
