"""Print tables, text and JSON: boxes and colour on a terminal only, plain columns into a pipe."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from zoo import console
from zoo.console import printable

UNBROKEN = ("kind", "name", "option", "recipe")  # columns whose cells stay on one line
NARROW = 10  # to which other columns may be folded


def is_terminal() -> bool:
    """Whether standard output is a terminal that may be styled: without NO_COLOR and TERM=dumb."""
    return console.is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_json(value: object) -> None:
    """Print a value as JSON."""
    print(console.as_json(value, indent=2, default=str))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headings; a terminal gets a table that fits, or else lines of a field each, a pipe columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    room = shutil.get_terminal_size((0, 0)).columns if console.is_terminal(sys.stdout) else 0
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    least = [
        width if heading in UNBROKEN else min(width, NARROW) for heading, width in zip(headings, widths, strict=True)
    ]
    if 0 < room < sum(least) + 2 * len(least):  # columns would vanish
        for row in rows:
            fields = (f"{heading}: {cell}" for heading, cell in zip(headings, row, strict=True) if cell)
            print(*fields, sep="\n", end="\n\n")
        return
    if is_terminal():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        grid = Table(box=None, pad_edge=False, header_style="bold")
        for index, heading in enumerate(headings):
            grid.add_column(
                heading,
                overflow="fold",
                no_wrap=heading in UNBROKEN,
                style="cyan" if index == 0 else None,
            )
        for row in rows:
            grid.add_row(*(escape(cell) for cell in row))
        Console().print(grid)
        return
    for row in [headings, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print(line[:room] if room else line)
