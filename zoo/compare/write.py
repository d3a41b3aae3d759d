"""Write a comparison to a folder: Markdown, CSV, JSON, a page, and its charts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from zoo.compare import table
from zoo.compare.answer import Answer
from zoo.compare.charts import Chart, charts
from zoo.compare.report import page
from zoo.errors import UsageError


def write(answer: Answer, folder: str | Path, more: Sequence[Chart] = ()) -> list[Path]:
    """comparison.md, .csv, .json and .html, and a PNG per chart; ``more`` are charts of probes. The files written.

    Each file appears whole or not at all: it is written beside its place and then renamed. Raises UsageError where the
    folder cannot be written to.
    """
    drawn = [*charts(answer), *more]
    content: dict[str, bytes] = {
        "comparison.md": table.markdown(answer).encode(),
        "comparison.csv": table.as_csv(answer).encode(),
        "comparison.json": table.as_json(answer).encode(),
        "comparison.html": page(answer, drawn).encode(),
    }
    content |= {f"{chart.name}.png": chart.png() for chart in drawn}
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            _whole(place / name, data)
    except OSError as error:
        raise UsageError(
            f"cannot write to {place}: {error.strerror or error}. Name another folder: --out DIR"
        ) from error
    return [place / name for name in content]


def _whole(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)  # mkstemp lets only its owner read
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
