"""`zoo compare --to loss=4.2`: how many steps runs take until a validation first reaches a target.

The figure of a run is log2 of that step, where straight lines between validations first reach the target. So it is
decided by the rule for any other figure (`zoo.compare.verdict.answer`): a difference of 1 is a factor of 2. A run that
ends short of the target is censored: it counts as later than any that reached it before that end, as a diverged run
does. Runs of a pair that end after unequal numbers of steps are compared up to the earlier end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from zoo.compare.comparability import TOLERANCE
from zoo.compare.number_format import format_short
from zoo.compare.run_records import BACKWARD, RunRecord, number, planned_steps, target_of
from zoo.compare.statistics import Interval, paired_t_test

if TYPE_CHECKING:
    from zoo.compare.charts import ReportChart
    from zoo.compare.verdict import Answer, Row

MEASURES = ("steps", "tokens", "FLOPs", "seconds")
MACHINE = ("device", "machine", "threads", "processes", "precision")  # equal where seconds can be compared


def censored_interval(
    ours: Sequence[float], theirs: Sequence[float], our_ends: Sequence[float], their_ends: Sequence[float],
    level: float,
) -> tuple[float, float, float]:  # fmt: skip
    """The median of the paired differences ours - theirs, and its interval with a confidence of 1 - level.

    NaN stands for a figure beyond the run's end. Every difference lies between two bounds; the interval goes from an
    order statistic of the lower bounds to that of the upper bounds, as the sign test's does, which is conservative
    whatever the distribution. Infinite where the seeds are too few.
    """
    from scipy.stats import binom

    mine, base = np.asarray(ours, float), np.asarray(theirs, float)
    open_above, open_below = np.isnan(mine), np.isnan(base)
    difference = np.where(open_above, our_ends, mine) - np.where(open_below, their_ends, base)
    lower, upper = np.sort(np.where(open_below, -np.inf, difference)), np.sort(np.where(open_above, np.inf, difference))
    count = len(lower)
    middle = [(bounds[(count - 1) // 2] + bounds[count // 2]) / 2 if count else math.nan for bounds in (lower, upper)]
    median = float(middle[0]) if middle[0] == middle[1] and math.isfinite(middle[0]) else math.nan
    trimmed = int(np.sum(2 * binom.cdf(np.arange(count // 2 + 1), count, 0.5) <= level)) - 1
    if trimmed < 0:
        return median, -math.inf, math.inf
    return median, float(lower[trimmed]), float(upper[count - 1 - trimmed])


def target_ratio(answer: Answer, row: Row, measure: str) -> Interval | None:
    """What a variant takes to the target, over what the baseline takes; None where it cannot be compared.

    The ratio of geometric means where all runs reached the target, else the median over seeds, NaN where the censored
    runs leave that open. The interval holds together with those of the other variants. With censored runs it is that
    of half the level, as their test is one of two.
    """
    runs, base = answer.runs[row.variant], answer.runs[answer.baseline]
    seeds = [seed for seed in row.figures if seed in answer.base.figures]
    pairs = [(runs[seed], base[seed]) for seed in seeds]
    if row.verdict.word == "not comparable" or not pairs or (measure == "seconds" and not is_quiet(answer, row)):
        return None
    costs = [[math.log2(cost) if (cost := step_cost(run, measure)) > 0 else math.nan for run in pair] for pair in pairs]
    if not np.isfinite(costs).all():
        return None
    horizon = math.log2(max(run.steps for pair in pairs for run in pair) or 1)
    ours = [row.figures[seed] + cost for seed, (cost, _) in zip(seeds, costs, strict=True)]
    theirs = [answer.base.figures[seed] + cost for seed, (_, cost) in zip(seeds, costs, strict=True)]
    level = max(answer.plan.level, 1e-12) / max(1, answer.tests)
    if row.outcome is None and not np.isnan([*ours, *theirs]).any():
        if measure != "seconds" and row.pair.n and len({ours_ - base for ours_, base in costs}) == 1:
            shift = costs[0][0] - costs[0][1]  # the interval of the verdict, whichever its test
            return Interval(*(2.0 ** (value + shift) for value in (row.pair.mean, *row.pair.bounds)))
        pair = paired_t_test(ours, theirs, level)
        values = (pair.mean, *pair.bounds)
    else:
        our_ends, their_ends = (
            [(math.log2(pair[side].steps) if pair[side].finished and pair[side].steps else horizon) + cost[side]
             for pair, cost in zip(pairs, costs, strict=True)] for side in (0, 1)
        )  # fmt: skip
        values = censored_interval(ours, theirs, our_ends, their_ends, level / 2)
    return Interval(*(2.0**value for value in values))


def step_cost(run: RunRecord, measure: str) -> float:
    """What a step of a run takes: 1 step, its tokens, FLOPs (three forwards) or seconds; NaN where the run lacks it."""
    tokens = run.tokens / run.steps if run.steps else math.nan
    if measure == "steps":
        return 1.0
    if measure == "tokens":
        return tokens
    if measure == "FLOPs":
        return BACKWARD * tokens * number(run.cost.get("flops_per_token"))
    speed = number(run.cost.get("tokens_per_s"))
    return tokens / speed if speed > 0 else math.nan


def is_quiet(answer: Answer, row: Row) -> bool:
    """Whether all runs of a variant and of the baseline were made on equal machines, whose speed was steady."""
    runs = [run for name in (row.variant, answer.baseline) for run in answer.runs[name].values()]
    machines = {str([run.setting.get(name) for name in MACHINE]) for run in runs}
    steady = not any(run.shares_gpu for run in runs)
    return steady and len(machines) == 1 and all(number(run.cost.get("spread")) <= TOLERANCE["spread"] for run in runs)


def describe_targets(answer: Answer) -> tuple[list[str], list[list[str]]] | None:
    """Headings and cells: how many runs reached the target, after how many steps, and the ratios; None without one."""
    if target_of(answer.at) is None:
        return None
    headings = [answer.varied[0] if len(answer.varied) == 1 else "variant", "reached", "steps"]
    rows = []
    for row in answer.rows:
        figures = list(row.figures.values())
        reached = [figure for figure in figures if not math.isnan(figure)]
        steps = 2.0 ** (sum(reached) / len(reached)) if len(reached) == len(figures) and reached else math.nan
        cells = [row.label, f"{len(reached)} of {len(figures)}", "" if math.isnan(steps) else format_short(steps)]
        ratios = [None if row is answer.base else target_ratio(answer, row, measure) for measure in MEASURES]
        rows.append([*cells, *("" if ratio is None else ratio_text(ratio) for ratio in ratios)])
    return [*headings, *(f"ratio of {measure}" for measure in MEASURES)], rows


def ratio_text(ratio: Interval) -> str:
    """``0.43 [0.35, 0.53]``."""
    value, low, high = ("?" if math.isnan(v) else "∞" if math.isinf(v) else f"{v:.2g}"
                        for v in (ratio.value, ratio.low, ratio.high))  # fmt: skip
    return f"{value} [{low}, {high}]" if (low, high) != ("?", "?") else value


def survival(
    figures: Mapping[int, float], end: float, planned: Mapping[int, int] = MappingProxyType({})
) -> Iterator[tuple[float, float]]:
    """Corners of the share of runs that have not reached the target yet, by steps, up to the first ``planned`` end of
    one that is short of it.
    """
    count = len(figures)
    end = min([end, *(planned.get(seed, end) for seed, figure in figures.items() if math.isnan(figure))])
    steps = sorted(step for figure in figures.values() if (step := 2.0**figure) <= end)
    yield 0.0, 1.0
    for index, step in enumerate(steps):
        yield step, 1 - index / count
        yield step, 1 - (index + 1) / count
    yield end, 1 - len(steps) / count


def draw_survival(answer: Answer) -> list[ReportChart]:
    """The share of runs short of the target over steps; empty without a target."""
    from zoo.compare.charts import ReportChart, line_axes, variant_styles, write_end_labels
    from zoo.plotting import style

    if target_of(answer.at) is None:
        return []
    styles, ends = variant_styles(answer), []
    end = float(max((run.steps for runs in answer.runs.values() for run in runs.values()), default=1) or 1)
    with style():
        figure, axes = line_axes([row.label for row in answer.rows], 330, 290)
        axes.set(xlim=(0.0, end), ylim=(0.0, 1.03), xlabel="steps", ylabel="share of runs short of the target")
        for row in answer.rows:
            corners = (
                list(survival(row.figures, end, planned_steps(answer.runs[row.variant])))
                if row.figures
                else [(end, math.nan)]
            )
            colour, _, dashes = styles[row.variant]
            axes.plot(*zip(*corners, strict=True), color=colour, linewidth=2.2, dashes=dashes)
            ends.append((row.label, styles[row.variant], corners[-1]))
        write_end_labels(axes, ends)
    caption = "A step down is a seed whose validation reached the target. Runs that end short of it stay above zero."
    return [ReportChart("target", "Until the target", caption, figure)]
