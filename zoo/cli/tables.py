"""Print tables, text and JSON: boxes and colour on a terminal only, plain columns into a pipe."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from zoo import console
from zoo.console import printable


def is_terminal() -> bool:
    """Whether standard output is a terminal that may be styled: without NO_COLOR and TERM=dumb."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_json(value: object) -> None:
    """Print a value as JSON."""
    print(console.as_json(value, indent=2, default=str))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headings; a terminal gets a table that fits, a pipe gets aligned columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    if is_terminal():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        grid = Table(box=None, pad_edge=False, header_style="bold")
        for index, heading in enumerate(headings):
            grid.add_column(
                heading,
                overflow="fold",
                no_wrap=heading in ("kind", "name", "option", "recipe"),
                style="cyan" if index == 0 else None,
            )
        for row in rows:
            grid.add_row(*(escape(cell) for cell in row))
        Console().print(grid)
        return
    widths = [max(len(row[index]) for row in [headings, *rows]) for index in range(len(headings))]
    room = shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0
    for row in [headings, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print(line[:room] if room else line)
