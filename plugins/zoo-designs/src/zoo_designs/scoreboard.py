"""The scoreboard of variants over several recipes: one table of all verdicts, and one estimate over all tasks.

Normalised scores, P(improvement), interquartile means and their intervals are as Agarwal et al. (2021), "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", and their rliable define them. A score is a number of
which more is better, in an array of runs for each task; a run that failed is -infinity, or 0 once normalised.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zoo import console
from zoo.compare import prose, table
from zoo.compare.comparability import Flag
from zoo.compare.document import Report, Section
from zoo.compare.looks import Look
from zoo.compare.number_format import format_interval, join_words
from zoo.compare.simultaneous_tests import ASSUMPTIONS, PairedTestPlan, other_failures
from zoo.compare.statistics import ALPHA, Interval, Verdict, holm_adjust, last_p, sign_flip_p
from zoo.compare.verdict import EXIT_CODES, Answer, Outcome, Row, best_outcome
from zoo.errors import UsageError
from zoo.io.content_digests import json_value

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart

FIXED = PairedTestPlan("permutation", ALPHA)
TEMPLATE = "scoreboard.html"


@dataclass(frozen=True)
class RecipeTask:
    """The answer of one recipe's comparison, and what each of its variants is called in all recipes:
    folder's name → ``RMSNorm``.
    """

    answer: Answer
    names: Mapping[str, str]

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return self.answer.recipe

    def row(self, name: str) -> Row | None:
        """The variant's row; None where this recipe lacks it."""
        return next((row for row in self.answer.rows if self.names.get(row.variant) == name), None)


@dataclass(frozen=True)
class OverallRow:
    """A variant over all tasks: P(improvement) on the baseline, the interquartile mean of its normalised scores, and p
    of the test over all tasks, before and after Holm's correction over the variants. NaN for what runs do not tell.
    ``scores`` are the normalised scores by recipe and seed; ``failed`` is the number of its failed runs.
    """

    name: str
    improvement: Interval
    score: Interval
    p: float
    adjusted: float
    verdict: Verdict
    scores: Mapping[str, Mapping[int, float]]
    pairs: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Scoreboard:
    """The baseline's row and those of the variants, by P(improvement); ``plan`` says how they are tested."""

    tasks: tuple[RecipeTask, ...]
    baseline: str
    rows: tuple[OverallRow, ...]
    plan: PairedTestPlan = FIXED
    looks: tuple[Look, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The word of each variant's verdict."""
        return [row.verdict.word for row in self.rows if row.name != self.baseline]

    @property
    def outcome(self) -> Outcome:
        """What is shown of the variants, in one word."""
        return best_outcome(self.words)

    @property
    def comparability_errors(self) -> tuple[str, ...]:
        """Those of the recipes, each with its recipe."""
        return tuple(f"{task.recipe}: {error}" for task in self.tasks for error in task.answer.comparability_errors)


def make_scoreboard(
    tasks: Sequence[RecipeTask], plan: PairedTestPlan = FIXED, commands: Sequence[str] = ()
) -> Scoreboard:
    """The scoreboard of variants whose baseline is the same in all recipes. Raises UsageError where it is not."""
    baselines = {task.recipe: task.names[task.answer.baseline] for task in tasks}
    if len(set(baselines.values())) > 1:
        words = ", ".join(f"{name} of {recipe}" for recipe, name in baselines.items())
        raise UsageError(f"the recipes have different baselines: {words}. Name one: --baseline OPTION=VALUE")
    baseline = next(iter(baselines.values()))
    names = dict.fromkeys(name for task in tasks for name in task.names.values() if name != baseline)
    differences = {name: _differences(tasks, name, plan) for name in names}
    tested = {
        name: last_p(sequence_over_tasks(by_task)) if plan.test == "sequential"
        else flip_signs_over_tasks(by_task)
        for name, by_task in differences.items() if not _refusal(tasks, name)
    }  # fmt: skip
    adjusted = dict(zip(tested, holm_adjust(list(tested.values()), list(tested)), strict=True))
    rows = [_overall_row(tasks, baseline, Verdict("baseline", "baseline"))]
    for name in names:
        verdict = _refusal(tasks, name) or _judge(differences[name], adjusted[name], plan.level)
        word, _ = plan.earlier.get(name, ("", 0))
        if word == _side(differences[name]) and verdict.word == "not distinguishable":
            verdict = Verdict(word, f"{word}, decided at an earlier look")
        rows.append(_overall_row(tasks, name, verdict, tested.get(name, math.nan), adjusted.get(name, math.nan)))
    rows[1:] = sorted(rows[1:], key=lambda row: -row.improvement.value if row.improvement.value >= 0 else 1.0)
    return Scoreboard(tuple(tasks), baseline, tuple(rows), plan, commands=tuple(commands))


def common_seeds(task: RecipeTask, name: str) -> list[int]:
    """The seeds that a variant has in common with the baseline, by number; none where the recipe lacks it."""
    row = task.row(name)
    return sorted(set(row.figures) & set(task.answer.base.figures)) if row else []


def _scores(task: RecipeTask, name: str, seeds: Sequence[int]) -> tuple[Floats, Floats]:
    """Scores of which only the order counts, of a variant and the baseline."""
    row = task.row(name)
    assert row is not None
    base, lower = task.answer.base.figures, task.answer.lower_is_better
    ours = rank_scores([row.figures[seed] for seed in seeds], lower)
    return ours, rank_scores([base[seed] for seed in seeds], lower)


def _differences(tasks: Sequence[RecipeTask], name: str, plan: PairedTestPlan) -> list[Floats]:
    """By task, what the variant is better by at each seed that it shares with the baseline."""
    seeds = [plan.sort_seeds(common_seeds(task, name)) for task in tasks]
    return [improvements(*_scores(task, name, numbers)) for task, numbers in zip(tasks, seeds, strict=True)
            if numbers]  # fmt: skip


def _side(differences: Sequence[Floats]) -> str:
    """ "better" or "worse": on which side the scaled differences lie together."""
    return "better" if math.fsum(sequence_over_tasks(differences)) > 0 else "worse"


def _refusal(tasks: Sequence[RecipeTask], name: str) -> Verdict | None:
    """Why there is no verdict over all tasks; None where there is one."""
    for task in tasks:
        row, base = task.row(name), task.answer.base
        if row is None:
            return Verdict("no verdict", f"{task.recipe} lacks it: no verdict")
        if row.verdict.word == "not comparable":
            return Verdict("not comparable", f"{task.recipe}: {row.verdict.sentence}")
        if failures := other_failures((row.failures, base.failures)):
            return Verdict("no verdict", f"{task.recipe}: runs {failures}: no verdict")
        if not common_seeds(task, name):
            return Verdict("no verdict", f"{task.recipe}: no seed in common with the baseline: no verdict")
    rows = [(task, row) for task in tasks if (row := task.row(name)) is not None]
    if all(set(common_seeds(task, name)) <= {*row.failures} & {*task.answer.base.failures} for task, row in rows):
        return Verdict("no verdict", "all runs of both failed: no verdict")
    return None


def _judge(differences: Sequence[Floats], adjusted: float, level: float) -> Verdict:
    pairs = sum(map(len, differences))
    over = f"{len(differences)} tasks and {pairs} pairs of runs"
    if adjusted <= level:
        side = _side(differences)
        return Verdict(side, f"{side} over {over}")
    if not any(by_task.any() for by_task in differences):
        return Verdict("not distinguishable", f"identical over {over}")
    return Verdict("not distinguishable", f"not distinguishable over {over}")


def _overall_row(
    tasks: Sequence[RecipeTask], name: str, verdict: Verdict, p: float = math.nan, adjusted: float = math.nan
) -> OverallRow:
    """A variant's estimates over the tasks: none where a recipe lacks it or refuses a verdict."""
    scores, pairs, failed = {}, [], 0
    for task in tasks:
        row, seeds = task.row(name), common_seeds(task, name)
        if row is None or row.verdict.word == "not comparable":
            continue
        failed += len(row.failures)
        base = task.answer.base.figures
        relative = normalise([row.figures[s] for s in seeds], [base[s] for s in seeds],
                                      task.answer.lower_is_better)  # fmt: skip
        scores[task.recipe] = {} if relative is None else dict(zip(seeds, relative.tolist(), strict=True))
        pairs.append(_scores(task, name, seeds))
    complete = len(pairs) == len(tasks) and all(len(ours) for ours, _ in pairs)
    improvement = score = Interval(math.nan)
    if complete and verdict.word != "baseline":
        ours, theirs = zip(*pairs, strict=True)
        improvement = bootstrap_improvement(ours, theirs)
    if complete and all(scores.values()):
        score = bootstrap_interquartile_mean([np.array(list(by_seed.values())) for by_seed in scores.values()])
    return OverallRow(name, improvement, score, p, adjusted, verdict, scores, sum(len(o) for o, _ in pairs), failed)


def question(board: Scoreboard) -> str:
    """``Does RMSNorm instead of LayerNorm help in lm-tiny, translation-tiny and vit-tiny?``."""
    names = [row.name for row in board.rows if row.name != board.baseline]
    recipes = join_words([task.recipe for task in board.tasks], 6)
    return f"Does {join_words(names).replace(' and ', ' or ')} instead of {board.baseline} help in {recipes}?"


def sentences(board: Scoreboard) -> list[str]:
    """The answer over all tasks: a word, then a sentence per variant."""
    result = [prose.opening(board.words)]
    for row in board.rows:
        if row.name != board.baseline:
            chance = f"; P(improvement) {format_interval(row.improvement, 2)}" if _is_defined(row.improvement) else ""
            failures = f"; {row.failed} of its runs failed" if row.failed else ""
            no_verdict = row.verdict.word in ("no verdict", "not comparable")
            verb = ":" if no_verdict else " is"
            result.append(f"{row.name}{verb} {row.verdict.sentence}{chance}{failures}.")
    return result


def legend(board: Scoreboard) -> list[str]:
    """How to read the table."""
    goals = join_words([f"{prose.goal(task.answer)} of {task.recipe}" for task in board.tasks], 6)
    result = [
        f"Figures: {goals}, mean ± standard deviation over seeds; differences are paired by seed.",
        "P(improvement): how often a run of the variant is better than a run of the baseline, any two of the same "
        "task, a tie counting half, averaged over the tasks; 0.5 is no difference. A failed run is worse than any "
        "figure, and equal to another failed one.",
        f"Score: the figure relative to the mean of {board.baseline} in the same task, so that 1.02 is 2 % better; a "
        "failed run scores 0. Its mean is that of the middle half of all runs of all tasks (interquartile mean).",
        "Intervals in brackets are those of 95 % of a bootstrap that draws seeds within each task (stratified), "
        "variant and baseline together; with few seeds they are too narrow, and no verdict is made of them.",
        f"The verdict over all tasks is of a test of its own: it assumes {ASSUMPTIONS[board.plan.test].split(';')[0]}, "
        f"scales the differences of each task by their root mean square, and is false with a probability of at most "
        f"{board.plan.level:.2g}"
        + (", p after Holm's correction." if len(board.rows) > 2 else "."),
        "The verdicts of the recipes have an error probability each of their own.",
    ]  # fmt: skip
    if board.plan.test == "sequential":
        result.append("Seeds were added after a look: differences are tested by betting on their signs, in the order "
                      "of their seeds.")  # fmt: skip
    undefined = [name for name in (task.recipe for task in board.tasks)
                 if any(row.scores.get(name) == {} for row in board.rows)]  # fmt: skip
    if undefined:
        result.append(f"Without a score, because a run of the baseline failed or a figure is not positive: "
                      f"{join_words(undefined)}.")  # fmt: skip
    return result


def task_cells(board: Scoreboard) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: a row per recipe and variant with its figure, difference, interval, p and verdict."""
    headings = ["task", "variant", "figure", "difference", prose.BETWEEN, "p", "verdict"]
    rows = [
        [task.recipe, task.names.get(row.variant, row.label), *prose.figure_cells(task.answer, row), prose.brief(row)]
        for task in board.tasks for row in task.answer.rows
    ]  # fmt: skip
    return headings, rows


def overall_cells(board: Scoreboard) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: a row per variant with what is estimated over all tasks."""
    headings = ["variant", "P(improvement)", "score, interquartile mean", "p", "verdict over all tasks"]
    rows = []
    for row in board.rows:
        places = 4 if _is_defined(row.score) and abs(row.score.value - 1) < 0.05 else 3
        failures = f"; {row.failed} of its runs failed" if row.failed else ""
        improvement = "" if row.name == board.baseline else format_interval(row.improvement, 2)
        rows.append([row.name, improvement, format_interval(row.score, places), prose.chance(row.adjusted),
                     f"{row.verdict.sentence}{failures}"])  # fmt: skip
    return headings, rows


def describe(board: Scoreboard) -> Report:
    """The report of a scoreboard."""
    headings, rows = task_cells(board)
    narrow = [[*cells[:3], f"{cells[3]} {cells[4]}".strip(), *cells[5:]] for cells in rows]
    sections = [
        Section("", *overall_cells(board), notes=legend(board)),
        Section(
            "Every recipe", headings, rows, narrow=([*headings[:3], ", ".join(headings[3:5]), *headings[5:]], narrow)
        ),
    ]
    flags = [Flag(f"{task.recipe}: {flag.sentence}") for task in board.tasks for flag in task.answer.flags]
    return Report(question(board), sentences(board), sections, flags, board.commands)


def as_csv(board: Scoreboard) -> str:
    """A CSV line per recipe, variant and seed: figure and normalised score, with all digits; empty for none."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["recipe", "goal", "variant", "seed", "figure", "score", "failure"])
    overall = {row.name: row for row in board.rows}
    for task in board.tasks:
        for row in task.answer.rows:
            name = task.names.get(row.variant, row.label)
            scores = overall[name].scores.get(task.recipe, {}) if name in overall else {}
            for seed, figure in row.figures.items():
                writer.writerow([task.recipe, task.answer.goal, name, seed, "" if math.isnan(figure) else figure,
                                 scores.get(seed, ""), row.failures.get(seed, "")])  # fmt: skip
    return file.getvalue()


def as_json(board: Scoreboard) -> str:
    """The whole scoreboard with all digits as strict JSON, the answer of every recipe included."""
    content: dict[str, Any] = {
        "format": 1, "question": question(board), "answer": sentences(board), "baseline": board.baseline,
        "outcome": board.outcome, "exit_code": EXIT_CODES[board.outcome], "commands": board.commands,
        "test": {"name": "sign flips over tasks" if board.plan.test == "permutation" else board.plan.test,
                 "assumes": ASSUMPTIONS[board.plan.test], "level": board.plan.level, "correction": "Holm"},
        "looks": [asdict(look) for look in board.looks],
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE, "strata": "tasks"},
        "variants": [
            {"name": row.name, "p_improvement": asdict(row.improvement), "score_iqm": asdict(row.score),
             "p": row.p, "p_holm": row.adjusted, "verdict": row.verdict.word, "sentence": row.verdict.sentence,
             "pairs": row.pairs, "failed": row.failed, "scores": row.scores}
            for row in board.rows
        ],
        "recipes": [{"names": task.names, **json.loads(table.as_json(task.answer))} for task in board.tasks],
    }  # fmt: skip
    return console.as_json(json_value(content), indent=2, allow_nan=False) + "\n"


def write_report(board: Scoreboard, reports: Mapping[str, Path], folder: Path) -> list[Path]:
    """Write scoreboard.md, .csv, .json and .html and a PNG per chart, and return their paths.

    ``reports`` are the folders of the recipes' own reports. Raises UsageError if the folder cannot be written to.
    """
    from zoo.compare.report import render, write_files

    charts, report = draw_charts(board), describe(board)
    links = {recipe: os.path.relpath(place / "comparison.html", folder) for recipe, place in reports.items()}
    page = render(TEMPLATE, "zoo_designs", board=board, report=report, charts=charts, links=links)
    texts = {"md": report.as_markdown(), "csv": as_csv(board), "json": as_json(board), "html": page}
    return write_files("scoreboard", texts, charts, folder)


def draw_charts(board: Scoreboard) -> list[ReportChart]:
    """P(improvement) of every variant, and the normalised score of every run."""
    from zoo.compare.charts import clip_name
    from zoo_designs.charts import IntervalRow, draw_intervals

    rows = [row for row in board.rows if row.name != board.baseline and _is_defined(row.improvement)]
    charts = []
    if rows:
        charts.append(draw_intervals(
            "improvement", f"P(improvement) on {board.baseline}",
            [IntervalRow(row.name, *astuple(row.improvement)) for row in rows],
            "P(a run of the variant is better), mean over tasks", 0.5, (0.0, 1.0),
            "With 95 % intervals of a bootstrap of seeds within each task. The line: no difference.",
        ))  # fmt: skip
    scores = []
    for task in board.tasks:
        for row in board.rows:
            values = list(row.scores.get(task.recipe, {}).values())
            if values and row.name != board.baseline:
                mean = sum(values) / len(values)
                scores.append(IntervalRow(f"{clip_name(task.recipe, 16)}: {row.name}", mean, points=tuple(values)))
    if scores:
        charts.append(draw_intervals(
            "scores", "Every run, by task", scores, f"score: relative to the mean of {board.baseline} in the task",
            1.0, None, "Small: a run. Large: the mean of the runs of a task. A failed run scores 0.",
        ))  # fmt: skip
    return charts


def _is_defined(estimate: Interval) -> bool:
    return not math.isnan(estimate.value)


Floats = npt.NDArray[np.float64]
RESAMPLES, CONFIDENCE = 20_000, 0.95
TRIM = 0.25  # share of the runs that an interquartile mean leaves out at either end


def normalise(figures: Sequence[float], baseline: Sequence[float], lower_is_better: bool) -> Floats | None:
    """Scores relative to the mean of the baseline's runs, (runs,): 1 is as good as it, 1.02 is 2 % better.

    figure / mean where more is better, mean / figure where less is; a failed run (NaN) has the score 0. None where a
    run of the baseline failed, which leaves no mean, or a figure is not positive, which leaves no ratio.
    """
    ours, theirs = np.array(figures, dtype=np.float64), np.array(baseline, dtype=np.float64)
    if not theirs.size or not np.isfinite(theirs).all() or min(theirs.min(), np.nanmin([*ours, 1.0])) <= 0:
        return None
    ratio = theirs.mean() / ours if lower_is_better else ours / theirs.mean()
    return np.asarray(np.where(np.isnan(ours), 0.0, ratio))


def rank_scores(figures: Sequence[float], lower_is_better: bool) -> Floats:
    """Figures as scores of which only the order counts, (runs,): a failed run (NaN) is worse than any other."""
    values = np.array(figures, dtype=np.float64)
    return np.asarray(np.where(np.isnan(values), -math.inf, -values if lower_is_better else values))


def interquartile_mean(scores: Floats) -> Floats:
    """The mean of the middle half of the last dimension, (..., runs) to (...): floor(runs / 4) are left out on either
    side.
    """
    runs = scores.shape[-1]
    tail = int(TRIM * runs)
    return np.asarray(np.sort(scores, axis=-1)[..., tail : runs - tail].mean(-1))


def probability_of_improvement(ours: Sequence[Floats], theirs: Sequence[Floats]) -> float:
    """The mean over tasks of P(X > Y) + P(X = Y) / 2, for a run X of the one and a run Y of the other, any two runs.

    That is the statistic of Mann and Whitney (1947) divided by the number of pairs.
    """
    return float(np.mean([float(_wins(x, y).mean()) for x, y in zip(ours, theirs, strict=True)]))


def _wins(x: Floats, y: Floats) -> Floats:
    """1 where x is larger, 1/2 where it is equal, else 0: (runs of x, runs of y)."""
    return np.asarray((x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :]), dtype=np.float64)


def bootstrap_improvement(
    ours: Sequence[Floats], theirs: Sequence[Floats], paired: bool = True, resamples: int = RESAMPLES
) -> Interval:
    """P(improvement) with the percentile interval of a bootstrap that is stratified by task.

    ``paired``: run i of both has the same seed, and seeds are drawn for both together; else, as in rliable, runs of
    each are drawn on their own. Without an interval where a task has a single run.
    """
    random, draws = np.random.default_rng(0), np.zeros(resamples)
    value = probability_of_improvement(ours, theirs)

    def counts(runs: int) -> Floats:
        """How often each run is drawn in each resample, (resamples, runs)."""
        return np.asarray(random.multinomial(runs, np.full(runs, 1 / runs), resamples), dtype=np.float64)

    for x, y in zip(ours, theirs, strict=True):
        if min(len(x), len(y)) < 2:
            return Interval(value)
        own = counts(len(x))
        draws += ((own @ _wins(x, y)) * (own if paired else counts(len(y)))).sum(1) / (len(x) * len(y) * len(ours))
    return _percentile_interval(value, draws)


def bootstrap_interquartile_mean(scores: Sequence[Floats], resamples: int = RESAMPLES) -> Interval:
    """The interquartile mean of all runs of all tasks, with the interval of a bootstrap stratified by task."""
    value = float(interquartile_mean(np.concatenate(list(scores))))
    if min(map(len, scores)) < 2:
        return Interval(value)
    random = np.random.default_rng(0)
    resampled = [
        task_scores[random.integers(0, len(task_scores), (resamples, len(task_scores)))] for task_scores in scores
    ]
    return _percentile_interval(value, interquartile_mean(np.concatenate(resampled, axis=1)))


def _percentile_interval(value: float, draws: Floats) -> Interval:
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high))


def improvements(ours: Floats, theirs: Floats) -> Floats:
    """What the one scores more than the other at every seed, (runs,); the sign alone where a run of the task failed."""
    if np.isfinite(ours).all() and np.isfinite(theirs).all():
        same = np.isclose(ours, theirs, rtol=1e-12, atol=0.0)
        return np.asarray(np.where(same, 0.0, ours - theirs))
    return (ours > theirs).astype(np.float64) - (ours < theirs)


def flip_signs_over_tasks(differences: Sequence[Floats]) -> float:
    """p of "no task has an effect": Fisher's sign flips of all differences, in units of their task's root mean square.

    Flips leave the root mean squares as they are. Exact for symmetric differences; NaN for fewer than two.
    """
    scaled = [by_seed / math.sqrt(float((by_seed**2).mean())) if by_seed.any() else by_seed for by_seed in differences]
    return sign_flip_p(np.concatenate(scaled).tolist())


def sequence_over_tasks(differences: Sequence[Floats]) -> Floats:
    """All differences in the order of their seeds, for the sequential test, each in units of the root mean square of
    its task's so far: what a later seed adds changes none of the earlier ones.
    """
    scaled = []
    for by_seed in differences:
        size = np.sqrt(np.cumsum(by_seed**2) / np.arange(1, len(by_seed) + 1))
        scaled.append(np.divide(by_seed, size, out=np.zeros_like(by_seed), where=size > 0))
    # seed after seed, of all tasks that have so many
    rows = itertools.zip_longest(*scaled, fillvalue=None)
    return np.array([value for row in rows for value in row if value is not None], dtype=np.float64)
