"""Write the report of a comparison to a folder: Markdown, CSV, JSON, HTML, and charts as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.compare import table
from zoo.compare.charts import Chart, draw_charts
from zoo.compare.report import page
from zoo.compare.verdict import Answer
from zoo.console import printable
from zoo.errors import UsageError
from zoo.io import atomic_files


def write_report(answer: Answer, folder: str | Path, more: Sequence[Chart] = ()) -> list[Path]:
    """Write comparison.md, .csv, .json and .html and a PNG per chart, atomically, and return their paths.

    ``more`` are additional charts, such as those of probes. Raises UsageError if the folder cannot be written to.
    """
    all_charts = [*draw_charts(answer), *more]
    content: dict[str, bytes] = {
        "comparison.md": printable(table.as_markdown(answer), lines=True).encode(),
        "comparison.csv": printable(table.as_csv(answer), lines=True).encode(),
        "comparison.json": table.as_json(answer).encode(),
        "comparison.html": printable(page(answer, all_charts), lines=True).encode(),
    }
    content |= {f"{chart.name}.png": chart.png() for chart in all_charts}
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
