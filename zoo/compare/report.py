"""The report of a comparison in a folder: Markdown, CSV, JSON, charts as PNG, and one self-contained HTML page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.compare import prose, provenance, scale_table, table
from zoo.compare.charts import ReportChart, draw_charts
from zoo.compare.number_format import format_duration, format_fixed, format_short
from zoo.compare.run_records import RunRecord, number
from zoo.compare.scale_chart import draw_scaling
from zoo.compare.verdict import Answer, describe_values
from zoo.console import printable
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.palette import DARK, LIGHT

SETTINGS = (
    "precision", "optimizer", "schedule", "max_steps", "accumulate", "batch", "budget", "device", "machine", "threads",
    "processes", "zoo", "torch", "python",
)  # fmt: skip
TEMPLATE = "report.html"
TEST_NAMES = {
    "t": "Student's paired t test", "moderated": "a t test with moderated variances (Smyth, 2004)",
    "permutation": "flipping their signs (Fisher, 1935)",
    "sequential": "betting on their signs, a test that holds after every seed",
}  # fmt: skip


def write_report(answer: Answer, folder: str | Path, more: Sequence[ReportChart] = ()) -> list[Path]:
    """Write comparison.md, .csv, .json and .html and a PNG per chart, atomically, and return their paths.

    ``more`` are additional charts, such as those of probes. Raises UsageError if the folder cannot be written to.
    """
    all_charts = [*draw_scaling(answer), *draw_charts(answer), *more]
    texts = {"md": table.as_markdown(answer), "csv": table.as_csv(answer), "json": table.as_json(answer)}
    return write_files("comparison", texts | {"html": page(answer, all_charts)}, all_charts, Path(folder))


def write_files(stem: str, texts: Mapping[str, str], charts: Sequence[ReportChart], folder: Path) -> list[Path]:
    """Write the files of a report, texts by their endings and a PNG per chart, and return their paths.

    Raises UsageError if that fails.
    """
    files = {f"{stem}.{end}": (text if end == "json" else printable(text, lines=True)).encode()
             for end, text in texts.items()}  # fmt: skip
    files |= {f"{chart.name}.png": chart.png() for chart in charts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            atomic_files.write_bytes(folder / name, data)
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}. Name another folder: --out DIR"
        ) from error
    return [folder / name for name in files]


def check_folder(folder: Path) -> None:
    """Raise UsageError, before anything is run, for a folder that cannot be made or written to."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        why = "it may not be written to" if place.is_dir() else "it is a file"
        raise UsageError(f"--out {folder}: {place}: {why}. Name another folder: --out DIR")


def page(answer: Answer, charts: Sequence[ReportChart] = ()) -> str:
    """The report as one HTML page, with these charts; it needs no scripts, fonts or pictures from elsewhere."""
    return render(
        TEMPLATE,
        answer=answer,
        charts=charts,
        question=prose.question(answer),
        sentences=prose.sentences(answer),
        legend=prose.legend(answer),
        verdicts=_by_row(answer, table.verdicts(answer)),
        costs=_by_row(answer, table.costs(answer)),
        others=_by_row(answer, table.goals(answer)),
        runs=_runs(answer),
        run_commands=[provenance.run_command(run) for _, run in provenance.all_runs(answer)],
        failed=provenance.failed_runs(answer),
        code=provenance.code_rows(answer),
        environment=provenance.environment(answer),
        equal=provenance.held_equal(answer),
        total_time=format_duration(provenance.training_time(answer)),
        common=_common(answer),
        sections=scale_table.sections(answer),
        version=_setting(answer, "zoo"),
        tests=TEST_NAMES,
    )


def render(template: str, **values: object) -> str:
    """A page from a template in templates/, with the colours of ``zoo.palette``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("zoo.compare"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(template).render(light=LIGHT, dark=DARK, **values)


def _by_row(answer: Answer, cells: tuple[list[str], list[list[str]]] | None) -> dict[str, Any] | None:
    """Headings and cells of ``table``, each row with the variant that it is about."""
    if cells is None:
        return None
    headings, rows = cells
    return {"headings": headings, "rows": list(zip(answer.rows, rows, strict=True))}


def _runs(answer: Answer) -> dict[str, Any]:
    """A line per run: its figure and step, tokens, steps, time and speed; or that it is not finished or diverged."""
    lines = []
    for row in answer.rows:
        for seed, run in answer.runs[row.variant].items():
            state = "not finished" if seed in row.unfinished else _failure(row.failures.get(seed, ""), run)
            figure = row.figures.get(seed, math.nan)
            when = next(
                (validation.get("step") for validation in run.validations if validation.get(answer.goal) == figure),
                None,
            )
            lines.append([
                row.label, f"s{seed}", state or format_fixed(figure, 4), f"{when:,}" if when and not state else "",
                format_short(run.tokens), f"{run.steps:,}", format_duration(number(run.cost.get("seconds"))),
                format_short(number(run.cost.get("tokens_per_s"))),
            ])  # fmt: skip
    unit, reached = f"{answer.unit}s", f"{prose.goal(answer)}, {prose.moment(answer.at)}"
    return {"headings": ["variant", "seed", reached, "at step", unit, "steps", "time", f"{unit}/s"], "rows": lines}


def _failure(how: str, run: RunRecord) -> str:
    """``diverged at step 12``, ``crashed after 2 restarts``; empty for a run with a figure."""
    step, crashes = run.outcome.get("step"), run.outcome.get("crashes", 1)
    if how == "crashed" and crashes > 1:
        return f"crashed after {crashes - 1} restart{'s' * (crashes > 2)}"
    return f"{how} at step {step:,}" if how and isinstance(step, int) else how


def _common(answer: Answer) -> dict[str, str]:
    """Choices and settings that all runs share, by name."""
    runs = [run for seeds in answer.runs.values() for run in seeds.values()]
    terms: dict[str, str] = {}
    if data := {str(run.data.get("class", "")) for run in runs} - {""}:
        terms["data"] = ", ".join(sorted(data)) + f" (fingerprint {str(runs[0].data.get('fingerprint', ''))[:12]})"
    for part in ("choices", "setting"):
        names = dict.fromkeys(name for run in runs for name in getattr(run, part))
        for name in names if part == "choices" else [name for name in SETTINGS if name in names]:
            values = {_text(getattr(run, part).get(name)) for run in runs}
            if len(values) == 1:
                terms[name.replace("_", " ")] = values.pop()
    return terms


def _text(value: Any) -> str:
    return (
        ", ".join(f"{name}={describe_values(v)}" for name, v in value.items())
        if isinstance(value, dict)
        else describe_values(value)
    )


def _setting(answer: Answer, name: str) -> str:
    return str(next(iter(answer.runs[answer.baseline].values())).setting.get(name, ""))
