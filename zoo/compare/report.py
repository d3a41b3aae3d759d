"""The report of a comparison in a folder: Markdown, CSV, JSON, charts as PNG, and one self-contained HTML page."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.compare import prose, table
from zoo.compare.charts import ReportChart, draw_charts
from zoo.compare.number_format import format_duration, format_fixed, format_short, join_words
from zoo.compare.run_records import RunRecord, describe_values, number
from zoo.compare.targets import draw_survival
from zoo.compare.verdict import Answer, Row
from zoo.console import printable
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.logging.run_state import CONFIG, path_beside
from zoo.palette import DARK, LIGHT

SETTINGS = (
    "precision", "optimizer", "schedule", "max_steps", "accumulate", "batch", "budget", "device", "machine", "threads",
    "processes", "zoo", "torch", "python",
)  # fmt: skip
TEMPLATE = "report.html"
TEST_NAMES = {
    "t": "Student's paired t test", "dunnett": "Dunnett's test, paired by seeds, with a guard for unequal variances",
    "permutation": "flipping their signs (Fisher, 1935)",
    "sequential": "betting on their signs, a test that holds after every seed",
}  # fmt: skip


def write_report(answer: Answer, folder: str | Path, more: Sequence[ReportChart] = ()) -> list[Path]:
    """Write comparison.md, .csv, .json and .html and a PNG per chart, atomically, and return their paths.

    ``more`` are additional charts, such as those of probes. Raises UsageError if the folder cannot be written to.
    """
    all_charts = [*answer.design.load().charts(answer), *draw_charts(answer), *draw_survival(answer), *more]
    texts = {
        "md": table.compose_report(answer).as_markdown(),
        "csv": table.as_csv(answer),
        "json": table.as_json(answer),
    }
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
    report = table.compose_report(answer)
    return render(
        TEMPLATE,
        answer=answer,
        charts=charts,
        report=report,
        sections={section.title: section for section in report.sections},
        runs=_runs(answer),
        run_commands=[run_command(run) for _, run in all_runs(answer)],
        failed=failed_runs(answer),
        code=code_rows(answer),
        environment=environment(answer),
        equal=held_equal(answer),
        total_time=format_duration(training_time(answer)),
        common=_common(answer),
        version=next(iter(answer.runs[answer.baseline].values())).setting.get("zoo", ""),
        tests=TEST_NAMES,
    )


def render(template: str, package: str = "zoo.compare", **values: object) -> str:
    """A page from a template in templates/ of a package or of this one, with the colours of ``zoo.palette``."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(package), PackageLoader("zoo.compare")])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(template).render(light=LIGHT, dark=DARK, **values)


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


ENVIRONMENT = ("zoo", "torch", "python", "device", "machine", "threads", "processes", "precision", "kernel")
COMMIT = 12  # digits of a commit
UNKNOWN = "not recorded"


def all_runs(answer: Answer) -> list[tuple[Row, RunRecord]]:
    """Every run with the row of its variant, in the order of the table and of the seeds."""
    return [(row, run) for row in answer.rows for run in answer.runs[row.variant].values()]


def code_rows(answer: Answer) -> list[list[str]]:
    """A row per module and state of its code: module, version, commit, digest of its sources, and how many runs."""
    runs = [run for _, run in all_runs(answer)]
    counts: dict[tuple[str, str, str, str], int] = {}
    for run in runs:
        for module, code in run.code.items():
            commit = str(code.get("commit") or UNKNOWN)[:COMMIT] + (", with changes" if code.get("dirty") else "")
            key = (module, str(code.get("version") or UNKNOWN), commit, str(code.get("source") or UNKNOWN))
            counts[key] = counts.get(key, 0) + 1
    return [[*key, "all" if count == len(runs) else f"{count} of {len(runs)}"] for key, count in counts.items()]


def environment(answer: Answer) -> dict[str, str]:
    """Versions and hardware: every value that occurs, with the number of its runs where there are several."""
    runs = [run for _, run in all_runs(answer)]
    result = {}
    for name in ENVIRONMENT:
        counts: dict[str, int] = {}
        for run in runs:
            value = run.setting.get(name)
            text = UNKNOWN if value in (None, "") else describe_values(value)
            counts[text] = counts.get(text, 0) + 1
        if [*counts] != [UNKNOWN]:
            several = len(counts) > 1
            result[name] = "; ".join(f"{text} ({count} runs)" if several else text for text, count in counts.items())
    return result


def held_equal(answer: Answer) -> dict[str, str]:
    """What the records show to be equal between the variants at every seed, and what they do not, by subject."""
    seeds: dict[int, list[RunRecord]] = {}
    for row, run in all_runs(answer):
        if run.seed in row.figures:
            seeds.setdefault(run.seed, []).append(run)
    pairs = {seed: runs for seed, runs in seeds.items() if len(runs) > 1}
    if not pairs:
        return {}
    finished = {seed: [run for run in runs if run.finished] for seed, runs in pairs.items()}
    every = [run for runs in pairs.values() for run in runs]
    result = {
        "data": _equality([every], lambda run: run.data.get("fingerprint"), "the same data, by their fingerprint"),
        "batches": _equality(finished.values(), lambda run: run.batches.get("digest"),
                            "the same batches in the same order, by their digest, at every seed"),
        "initial weights": _initial_weights(pairs.values()),
        "budget": _equality([[run for runs in finished.values() for run in runs]], lambda run: run.steps,
                           f"the same number of steps, {format_short(every[0].steps)}"),
        "code": _equality([every], lambda run: tuple((m, c.get("source")) for m, c in sorted(run.code.items()))
                         if run.code else None, "the same sources, by their digests"),
        "configuration": _configuration(every),
    }  # fmt: skip
    return {name: text for name, text in result.items() if text}


def _equality(groups: Iterable[list[RunRecord]], value: Callable[[RunRecord], Hashable], text: str) -> str:
    """``text`` if all runs of each group have one value, how many groups do not, or that it is not recorded."""
    values = [{value(run) for run in runs} for runs in groups if runs]
    if not values or any(None in distinct for distinct in values):
        return UNKNOWN
    unequal = sum(len(distinct) > 1 for distinct in values)
    return text if not unequal else "differs" + (f" at {unequal} of {len(values)} seeds" if len(values) > 1 else "")


def _initial_weights(groups: Iterable[list[RunRecord]]) -> str:
    shared, equal, seeds = 0, 0, 0
    for runs in groups:
        names = set.intersection(*(set(run.start) for run in runs))
        shared, seeds = shared + len(names), seeds + 1
        equal += sum(len({run.start[name] for run in runs}) == 1 for name in names)
    if not shared:
        return UNKNOWN
    whose = "the tensors that all variants have are bit-identical at every seed"
    return f"{whose} ({shared // seeds} a seed)" if shared == equal else f"{shared - equal} of {shared} tensors differ"


def _configuration(runs: list[RunRecord]) -> str:
    if not all(run.config for run in runs):
        return UNKNOWN
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    differing = [key for key in keys if len({repr(run.config.get(key)) for run in runs}) > 1]
    text = f"{len(keys) - len(differing)} of {len(keys)} recorded options are equal"
    return f"{text}; different: {join_words(differing, 6)}" if differing else text


def run_command(run: RunRecord) -> str:
    """The command that made a run, from the log beside its folder; else one that trains its configuration again."""
    folder = run.path.parent
    try:
        lines = limits.read_text(path_beside(folder, ".log"), limits.JSON_BYTES).splitlines()
    except (OSError, UsageError):  # without a log, or with one that cannot be read
        lines = []
    for line in lines:
        words: list[str] = []
        with contextlib.suppress(ValueError):  # no words of a shell
            words = shlex.split(line.removeprefix("$ ")) if line.startswith("$ ") else []
        if "fit" in words and "--resume" not in words:
            return shlex.join(["zoo", "fit", *words[words.index("fit") + 1 :]])
    return shlex.join(["zoo", "fit", str(Path(folder) / CONFIG)])


def failed_runs(answer: Answer) -> list[list[str]]:
    """A row per run without a figure: variant, seed, how it ended, at which step, and why."""
    rows: list[list[Any]] = []
    for row, run in all_runs(answer):
        if how := row.failures.get(run.seed):
            step = run.outcome.get("step", run.steps)
            rows.append([row.label, f"s{run.seed}", how, f"{step:,}" if isinstance(step, int) else "",
                         str(run.outcome.get("cause") or UNKNOWN)])  # fmt: skip
    return rows


def training_time(answer: Answer) -> float:
    """Seconds that all runs took together; NaN where none says."""
    seconds = [value for _, run in all_runs(answer) if math.isfinite(value := number(run.cost.get("seconds")))]
    return sum(seconds) if seconds else math.nan
