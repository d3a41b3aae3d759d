"""Write a comparison to a folder: Markdown, CSV, JSON, a page, and its charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.compare import table
from zoo.compare.charts import Chart, charts
from zoo.compare.report import page
from zoo.compare.verdict import Answer
from zoo.console import printable
from zoo.errors import UsageError
from zoo.io import atomic_files


def write(answer: Answer, folder: str | Path, more: Sequence[Chart] = ()) -> list[Path]:
    """comparison.md, .csv, .json and .html, and a PNG per chart; ``more`` are charts of probes. The files written.

    Each file appears whole or not at all: it is written beside its place and then renamed. Raises UsageError where the
    folder cannot be written to.
    """
    drawn = [*charts(answer), *more]
    content: dict[str, bytes] = {
        "comparison.md": printable(table.markdown(answer), lines=True).encode(),
        "comparison.csv": printable(table.as_csv(answer), lines=True).encode(),
        "comparison.json": table.as_json(answer).encode(),
        "comparison.html": printable(page(answer, drawn), lines=True).encode(),
    }
    content |= {f"{chart.name}.png": chart.png() for chart in drawn}
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            atomic_files.write_bytes(place / name, data)
    except OSError as error:
        raise UsageError(
            f"cannot write to {place}: {error.strerror or error}. Name another folder: --out DIR"
        ) from error
    return [place / name for name in content]
