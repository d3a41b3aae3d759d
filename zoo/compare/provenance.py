"""Where the runs of a report come from, and what was equal between them: code, versions, hardware, commands, checks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

from zoo.compare.number_format import format_short, join_words
from zoo.compare.run_records import RunRecord, number
from zoo.compare.verdict import Answer, VariantRow, describe_values
from zoo.errors import UsageError
from zoo.io import limits
from zoo.logging.run_state import CONFIG, path_beside

ENVIRONMENT = ("zoo", "torch", "python", "device", "machine", "threads", "processes", "precision", "kernel")
COMMIT = 12  # digits of a commit
UNKNOWN = "not recorded"


def all_runs(answer: Answer) -> list[tuple[VariantRow, RunRecord]]:
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
        "data": _compare([every], lambda run: run.data.get("fingerprint"), "the same data, by their fingerprint"),
        "batches": _compare(finished.values(), lambda run: run.batches.get("digest"),
                            "the same batches in the same order, by their digest, at every seed"),
        "initial weights": _initial_weights(pairs.values()),
        "budget": _compare([[run for runs in finished.values() for run in runs]], lambda run: run.steps,
                           f"the same number of steps, {format_short(every[0].steps)}"),
        "code": _compare([every], lambda run: tuple((m, c.get("source")) for m, c in sorted(run.code.items()))
                         if run.code else None, "the same sources, by their digests"),
        "configuration": _configuration(every),
    }  # fmt: skip
    return {name: text for name, text in result.items() if text}


def _compare(groups: Iterable[list[RunRecord]], value: Callable[[RunRecord], Hashable], text: str) -> str:
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
        words = _words(line.removeprefix("$ ")) if line.startswith("$ ") else []
        if "fit" in words and "--resume" not in words:
            return shlex.join(["zoo", "fit", *words[words.index("fit") + 1 :]])
    return shlex.join(["zoo", "fit", str(Path(folder) / CONFIG)])


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


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
