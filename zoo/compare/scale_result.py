"""Does a difference survive scale? Predict it at the largest size from the smaller ones, and check it there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoo.compare.matched_sizes import BACKWARD
from zoo.compare.run_records import RunRecord, number
from zoo.compare.scaling_law import Crossing, Interval, LawBootstrap
from zoo.compare.statistics import ALPHA, Paired, paired_t_test

if TYPE_CHECKING:
    from zoo.compare.verdict import Answer

Floats = NDArray[np.float64]
LEAST_SIZES = 3  # two to fit, one to predict
LEAST_RATIO = 1.001  # least ratio of a size's compute to the next smaller one's: equal compute determines no law
LATE = 0.5  # share of training from which on validations tell how the difference goes on


@dataclass(frozen=True)
class SizeAnswer:
    """The answer at one size, ``dim=64``, and the names of its variants in the order that all sizes share."""

    label: str
    answer: Answer
    variants: tuple[str, ...]  # the baseline first


@dataclass(frozen=True)
class SizePoint:
    """What one size measured of one variant: training FLOPs, mean figure over seeds, difference from the baseline."""

    size: str
    compute: float
    mean: float
    pair: Paired | None  # None for the baseline, and where runs failed


@dataclass(frozen=True)
class VariantScaling:
    """How one variant scales. All but ``label`` and ``points`` is None where ``reason`` says why there is no fit.

    ``difference`` is the predicted one at the largest size, ``expected`` the same with an interval for the mean over
    as many seeds, which ``measured`` has to lie in. ``by_doubling`` is by how much the difference changes with each
    doubling of the training steps, in the second half of training.
    """

    variant: str  # by its folder's name at the largest size
    label: str
    points: tuple[SizePoint, ...]
    reason: str = ""
    difference: Interval | None = None
    expected: Interval | None = None
    measured: float = math.nan
    exponent: Interval | None = None
    crossing: Crossing | None = None
    by_doubling: Paired | None = None
    curve: tuple[tuple[float, float], ...] = ()  # (FLOPs, loss) of the law of the smaller sizes, up to the largest

    @property
    def as_predicted(self) -> bool | None:
        """Whether what was measured lies in its predicted interval; None without an interval."""
        if self.expected is None or math.isnan(self.expected.low) or math.isnan(self.measured):
            return None
        return self.expected.holds(self.measured)

    def predicted_word(self, lower_is_better: bool = True) -> str:
        """``better`` or ``worse`` if the interval of the predicted difference excludes zero, else ``undecided``."""
        interval = self.difference
        if interval is None or math.isnan(interval.low) or interval.low <= 0 <= interval.high:
            return "undecided"
        return "better" if (interval.value < 0) == lower_is_better else "worse"


@dataclass(frozen=True)
class ScaleResult:
    """The result of a comparison at several sizes, from the smallest to the largest, which was not fitted.

    ``variants`` begin with the baseline. ``irreducible`` is the common term of all laws, ``level`` the probability that
    any interval of a variant is wrong, over all variants together. ``notes`` are further sentences.
    """

    sizes: tuple[str, ...]
    seeds: tuple[int, ...]
    variants: tuple[VariantScaling, ...]
    irreducible: Interval | None
    level: float
    notes: tuple[str, ...] = ()

    @property
    def lowest_loss(self) -> float:
        """The lowest mean that was measured, which bounds the irreducible term."""
        return min(point.mean for variant in self.variants for point in variant.points)

    def as_data(self) -> dict[str, Any]:
        """As a JSON document; NaN stays NaN."""
        from dataclasses import asdict

        return asdict(self) | {
            "variants": [
                asdict(variant) | {"as_predicted": variant.as_predicted, "predicted": variant.predicted_word()}
                for variant in self.variants
            ]
        }


def scale_result(sizes: Sequence[SizeAnswer], notes: Sequence[str] = ()) -> ScaleResult:
    """Fit laws to all sizes but the one with the most compute, and compare what they predict there.

    Seeds are those that all sizes have. A variant with failed runs or without a verdict at any size is left out.
    """
    ordered = sorted(sizes, key=_size_compute)
    last = ordered[-1]
    reasons = [_why_not(ordered, index) for index in range(len(last.variants))]
    fitted = [index for index, reason in enumerate(reasons) if not reason]
    common = _common_seeds(ordered, fitted)
    drafts = [_points(ordered, index) for index in range(len(last.variants))]
    labels = {row.variant: row.label for row in last.answer.rows}
    names = last.variants
    if reasons[0] or len(fitted) < 2 or not common:
        why = (reasons[0] and f"the baseline: {reasons[0]}") or "no seed has ended at all sizes"
        rows = [
            VariantScaling(names[i], labels.get(names[i], names[i]), points, reasons[i] or why)
            for i, points in enumerate(drafts)
        ]
        return ScaleResult(tuple(size.label for size in ordered), tuple(common), tuple(rows), None, ALPHA, tuple(notes))
    compute = np.array([[_compute(size, index) for size in ordered] for index in fitted])
    losses = np.array([[[_row(size, index).figures[seed] for seed in common] for size in ordered] for index in fitted])
    level = ALPHA / (len(fitted) - 1)
    smaller = LawBootstrap(compute[:, :-1], losses[:, :-1], level)
    every = LawBootstrap(compute, losses, level)
    rows = []
    for index, points in enumerate(drafts):
        label = labels.get(names[index], names[index])
        if reasons[index]:
            rows.append(VariantScaling(names[index], label, points, reasons[index]))
            continue
        curve = fitted.index(index)
        if index == 0:
            rows.append(
                VariantScaling(names[0], label, points, exponent=every.exponent(0), curve=smaller.curve(0, compute[0]))
            )
            continue
        largest = (float(compute[curve, -1]), float(compute[0, -1]))
        rows.append(
            VariantScaling(
                names[index], label, points, "", smaller.difference(curve, 0, largest),
                smaller.measured_difference(curve, 0, largest),
                float(losses[curve, -1].mean() - losses[0, -1].mean()), every.exponent(curve),
                every.crossing(curve, 0), _change_by_doubling(ordered, index, common),
                smaller.curve(curve, compute[curve]),
            )
        )  # fmt: skip
    return ScaleResult(
        tuple(size.label for size in ordered), tuple(common), tuple(rows), every.irreducible(), level, tuple(notes)
    )


def _row(size: SizeAnswer, index: int) -> Any:
    return next(row for row in size.answer.rows if row.variant == size.variants[index])


def _runs(size: SizeAnswer, index: int) -> Mapping[int, RunRecord]:
    return size.answer.runs.get(size.variants[index], {})


def _compute(size: SizeAnswer, index: int) -> float:
    """Training FLOPs of a variant at a size, the mean over its finished runs: three forwards for each token."""
    spent = [
        BACKWARD * number(run.cost.get("flops_per_token")) * run.tokens
        for run in _runs(size, index).values() if run.finished
    ]  # fmt: skip
    return sum(spent) / len(spent) if spent else math.nan


def _size_compute(size: SizeAnswer) -> float:
    """The training FLOPs of the first variant that has finished runs, of the baseline unless all of its runs failed."""
    computes = (_compute(size, index) for index in range(len(size.variants)))
    return next((compute for compute in computes if math.isfinite(compute)), math.inf)


def _why_not(sizes: Sequence[SizeAnswer], index: int) -> str:
    """Why a variant has no law; empty if it has one."""
    for size in sizes:
        if size.variants[index] not in {row.variant for row in size.answer.rows}:
            return f"no run at {size.label}"
        row = _row(size, index)
        if row.failures:
            return f"{len(row.failures)} of {len(row.figures)} runs failed at {size.label}"
        if row.verdict.word == "not comparable":
            return f"{row.verdict.sentence} at {size.label}"
        if any(not math.isfinite(figure) or figure <= 0 for figure in row.figures.values()):
            return f"a figure at {size.label} is not above zero"
        if not math.isfinite(_compute(size, index)) or _compute(size, index) <= 0:
            return f"no record of its FLOPs at {size.label}"
    for smaller, larger in itertools.pairwise(sizes):
        if not _compute(larger, index) > LEAST_RATIO * _compute(smaller, index):
            return f"{larger.label} takes no more FLOPs than {smaller.label}"
    return ""


def _common_seeds(sizes: Sequence[SizeAnswer], fitted: Sequence[int]) -> list[int]:
    """The seeds that have a figure at all sizes of the variants that are fitted."""
    sets = [set(_row(size, index).figures) for size in sizes for index in fitted]
    return sorted(set.intersection(*sets)) if sets else []


def _points(sizes: Sequence[SizeAnswer], index: int) -> tuple[SizePoint, ...]:
    result = []
    for size in sizes:
        if size.variants[index] in {row.variant for row in size.answer.rows}:
            row = _row(size, index)
            pair = row.pair if index and row.pair.n else None
            result.append(SizePoint(size.label, _compute(size, index), row.mean, pair))
    return tuple(result)


def _change_by_doubling(sizes: Sequence[SizeAnswer], index: int, seeds: Sequence[int]) -> Paired | None:
    """By how much the difference changes per doubling of steps late in training; None with too few validations.

    Intermediate validations do not enter the laws: with a schedule that lowers the learning rate, a loss on the way is
    no loss of a shorter training. The schedule is the same for variant and baseline, whose difference can be followed.
    """
    by_seed = []
    for seed in seeds:
        slopes = [
            slope for size in sizes
            if (slope := _late_slope(_runs(size, index)[seed], _runs(size, 0)[seed], size.answer.goal)) is not None
        ]  # fmt: skip
        if len(slopes) < len(sizes):
            return None
        by_seed.append(sum(slopes) / len(slopes))
    return paired_t_test(by_seed, [0.0] * len(by_seed))


def _late_slope(ours: RunRecord, theirs: RunRecord, goal: str) -> float | None:
    """The slope of the difference of two runs over log2 of the step; None with fewer than two late validations."""
    figures = [
        {
            int(validation["step"]): number(validation[goal])
            for validation in run.validations
            if goal in validation and validation.get("step")
        }
        for run in (ours, theirs)
    ]
    steps = sorted(set(figures[0]) & set(figures[1]))
    late = [step for step in steps if step >= LATE * steps[-1]]
    if len(late) < 2:
        return None
    x = np.log2(late)
    y = np.array([figures[0][step] - figures[1][step] for step in late])
    return float(((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum())
