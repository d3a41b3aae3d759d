"""Does a difference survive scale? Predict it at the largest size from the smaller ones, and check it there.

    L(C) = E + A · C^-α        E: the irreducible term, one for all variants; A and α: each variant's own

is fitted to losses over compute, as Hoffmann et al. (2022) and Kaplan et al. (2020) do to those of trained models.
Intervals come from the bootstrap; the interval of a crossing point holds every C at which the interval of the
difference holds zero (Fieller, 1954).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoo.compare.run_records import BACKWARD, RunRecord, number
from zoo.compare.statistics import ALPHA, Interval, Paired, paired_t_test

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
    computes = [[_compute(size, index) for index in range(len(size.variants))] for size in sizes]
    # by the first variant that has finished runs: the baseline unless all of its runs failed
    order = [next(filter(math.isfinite, by_variant), math.inf) for by_variant in computes]
    ordered = [sizes[index] for index in sorted(range(len(sizes)), key=order.__getitem__)]
    last = ordered[-1]
    reasons = [_why_not(ordered, index) for index in range(len(last.variants))]
    fitted = [index for index, reason in enumerate(reasons) if not reason]
    figures = [set(_row(size, index).figures) for size in ordered for index in fitted]
    common = sorted(set.intersection(*figures)) if figures else []
    names, labels = last.variants, {row.variant: row.label for row in last.answer.rows}
    why = ""
    if reasons[0] or len(fitted) < 2 or not common:
        why = (reasons[0] and f"the baseline: {reasons[0]}") or "no seed has ended at all sizes"
    rows = [
        VariantScaling(name, labels.get(name, name), _points(ordered, index), reasons[index] or why)
        for index, name in enumerate(names)
    ]
    size_labels = tuple(size.label for size in ordered)
    if why:
        return ScaleResult(size_labels, tuple(common), tuple(rows), None, ALPHA, tuple(notes))
    compute = np.array([[_compute(size, index) for size in ordered] for index in fitted])
    losses = np.array([[[_row(size, index).figures[seed] for seed in common] for size in ordered] for index in fitted])
    level = ALPHA / (len(fitted) - 1)
    smaller = LawBootstrap(compute[:, :-1], losses[:, :-1], level)
    every = LawBootstrap(compute, losses, level)
    for curve, index in enumerate(fitted):
        fit: dict[str, Any] = {"exponent": every.exponent(curve), "curve": smaller.curve(curve, compute[curve])}
        if index:
            largest = (float(compute[curve, -1]), float(compute[0, -1]))
            fit |= {
                "difference": smaller.difference(curve, 0, largest),
                "expected": smaller.difference(curve, 0, largest, measured=True),
                "measured": float(losses[curve, -1].mean() - losses[0, -1].mean()),
                "crossing": every.crossing(curve, 0), "by_doubling": _change_by_doubling(ordered, index, common),
            }  # fmt: skip
        rows[index] = replace(rows[index], **fit)
    return ScaleResult(size_labels, tuple(common), tuple(rows), every.irreducible(), level, tuple(notes))


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


SAMPLES = 2000  # samples of the bootstrap
SEED = 20221  # seed of the bootstrap: the same runs have the same intervals
LEAST_SIZES_FOR_IRREDUCIBLE = 3  # with two sizes A and α of each variant already fit exactly
# E is sought from 0 to just below the lowest loss, at distances in proportion to the losses' range
GAPS = np.geomspace(0.2, 60.0, 32)
BEYOND = 10.0  # how far a crossing point is sought: times the largest compute, or below the smallest
POINTS = 241  # grid points of compute at which a crossing is sought


@dataclass(frozen=True)
class Laws:
    """Laws of V curves, for one or more samples: ``irreducible`` (...), ``log_scale`` and ``exponent`` (..., V)."""

    irreducible: Floats
    log_scale: Floats
    exponent: Floats

    def losses(self, curve: int, compute: Floats) -> Floats:
        """The losses of a curve at computes (P,), with shape (..., P)."""
        log_compute = np.log(compute)
        reducible = np.exp(self.log_scale[..., curve, None] - self.exponent[..., curve, None] * log_compute)
        return self.irreducible[..., None] + reducible


def fit_laws(compute: Floats, losses: Floats) -> Laws:
    """The laws of curves with least squares of losses, by a search over E and a regression of log(L - E) for each E.

    ``compute`` has shape (V, K) for K sizes, in FLOPs; ``losses`` (..., V, K), finite and above zero. With two sizes E
    is 0. Raises ValueError for fewer than two sizes.
    """
    sizes = compute.shape[-1]
    if sizes < 2:
        raise ValueError(f"a power law needs two sizes or more, got {sizes}")
    x = np.log(compute)
    lowest = losses.min(axis=(-1, -2))[..., None]
    if sizes < LEAST_SIZES_FOR_IRREDUCIBLE:
        return _best_laws(x, losses, np.zeros_like(lowest))
    spread = np.maximum(losses.max(axis=(-1, -2))[..., None] - lowest, 1e-9)
    floors = np.maximum(np.concatenate([lowest - GAPS * spread, np.zeros_like(lowest)], -1), 0.0)
    coarse = _best_laws(x, losses, floors)
    gap = lowest - coarse.irreducible[..., None]  # searched again between its neighbours
    return _best_laws(x, losses, np.maximum(lowest - gap * (GAPS[1] / GAPS[0]) ** np.linspace(-1, 1, 17), 0.0))


def _best_laws(x: Floats, losses: Floats, floors: Floats) -> Laws:
    """The laws with the least squares among some irreducible terms ``floors`` (..., G), for log computes ``x``."""
    middle = x.mean()
    reducible = losses[..., None, :, :] - floors[..., None, None]  # (..., G, V, K)
    z, weights = np.log(reducible), reducible**2  # weights of log(L - E) where L has equal noise everywhere
    weights = weights / weights.sum(-1, keepdims=True)
    centred = x - middle
    mean_x, mean_z = (weights * centred).sum(-1), (weights * z).sum(-1)
    deviation = centred - mean_x[..., None]
    slope = (weights * deviation * z).sum(-1) / (weights * deviation**2).sum(-1)
    height = mean_z - slope * mean_x
    errors = np.exp(height[..., None] + slope[..., None] * centred) - reducible
    best = (errors**2).sum((-1, -2)).argmin(-1)[..., None]  # (..., 1)
    slope, height = (np.take_along_axis(estimate, best[..., None], -2)[..., 0, :] for estimate in (slope, height))
    floor = np.take_along_axis(floors, best, -1)[..., 0]
    return Laws(floor, height - slope * middle, -slope)


@dataclass(frozen=True)
class Crossing:
    """Where two laws cross: ``value`` in FLOPs, None for nowhere in the range; ``low`` and ``high`` bound it.

    A bound is None where the crossing may lie beyond the range that was searched, ``searched``. ``possible`` is False
    where no point of the range can be the crossing.
    """

    value: float | None
    low: float | None
    high: float | None
    possible: bool
    searched: tuple[float, float]


class LawBootstrap:
    """Laws of V curves at K sizes, fitted to the means over S seeds, and to bootstrap samples of them.

    A sample adds to each fitted loss the mean of S deviations, each of all curves of one seed from their means of that
    size, taken at random from all sizes and scaled by sqrt(S / (S - 1)). It so keeps what the variants of a seed have
    in common, and assumes that seeds scatter alike at all sizes. Intervals are the quantiles of the samples, widened by
    Student's t with K (S - 1) degrees of freedom over the normal distribution, because few seeds tell their spread.
    """

    def __init__(self, compute: Floats, losses: Floats, level: float = 0.05, samples: int = SAMPLES) -> None:
        """``compute`` (V, K) in FLOPs, ``losses`` (V, K, S); ``level`` is the probability outside of an interval."""
        curves, sizes, seeds = losses.shape
        self.compute, self.seeds, self.level = compute, seeds, level
        self.laws = fit_laws(compute, losses.mean(-1))
        self.freedom = sizes * (seeds - 1)
        self.samples: Laws | None = None
        if seeds < 2:
            return
        fitted = np.stack([self.laws.losses(curve, compute[curve]) for curve in range(curves)])
        deviations = (losses - losses.mean(-1, keepdims=True)) * math.sqrt(seeds / (seeds - 1))
        self._pool = deviations.reshape(curves, -1).T  # (K S, V)
        self._rng = np.random.default_rng(SEED)
        noise = self._mean_deviations((samples, sizes))  # (R, K, V)
        self.samples = fit_laws(compute, np.maximum(fitted + noise.swapaxes(-1, -2), 1e-6))

    def _mean_deviations(self, shape: tuple[int, ...]) -> Floats:
        """Means of S deviations taken at random, (*shape, V)."""
        return np.asarray(self._pool[self._rng.integers(len(self._pool), size=(*shape, self.seeds))].mean(-2))

    def difference(self, curve: int, base: int, compute: tuple[float, float], measured: bool = False) -> Interval:
        """The difference of two curves at a compute of each, ``curve`` minus ``base``, that the laws predict.

        ``measured``: with the interval for the mean difference of as many seeds, which scatters besides.
        """
        ours, theirs = np.array([compute[0]]), np.array([compute[1]])
        estimate = self.laws.losses(curve, ours) - self.laws.losses(base, theirs)
        if self.samples is None:
            return Interval(float(estimate[0]))
        samples = (self.samples.losses(curve, ours) - self.samples.losses(base, theirs))[:, 0]
        if measured:
            noise = self._mean_deviations((len(samples),))
            samples = samples + noise[:, curve] - noise[:, base]
        return self._interval(float(estimate[0]), samples)

    def curve(self, curve: int, compute: Floats, points: int = 32) -> tuple[tuple[float, float], ...]:
        """Points (compute, loss) of a law from the smallest to the largest of some computes."""
        grid = np.geomspace(compute.min(), compute.max(), points)
        return tuple(zip(grid.tolist(), self.laws.losses(curve, grid).tolist(), strict=True))

    def exponent(self, curve: int) -> Interval:
        """The exponent α of a curve."""
        return self._interval(
            float(self.laws.exponent[curve]), self.samples.exponent[:, curve] if self.samples else None
        )

    def irreducible(self) -> Interval:
        """The irreducible term E; its interval is not widened where it ends at a bound of the search."""
        interval = self._interval(float(self.laws.irreducible), self.samples.irreducible if self.samples else None)
        return Interval(interval.value, max(interval.low, 0.0), interval.high)

    def crossing(self, curve: int, base: int) -> Crossing:
        """The compute at which two laws have one loss, from BEYOND times below to BEYOND times above the sizes'."""
        low, high = self.compute.min() / BEYOND, self.compute.max() * BEYOND
        grid = np.geomspace(low, high, POINTS)
        # E is common to both, so that they cross where their reducible terms do: a line in the logarithms
        rise = self.laws.exponent[base] - self.laws.exponent[curve]
        offset = self.laws.log_scale[curve] - self.laws.log_scale[base]
        # log A_v - α_v log C = log A_b - α_b log C
        point = math.exp(-offset / rise) if rise and abs(offset / rise) < 600 else math.inf
        value = point if low <= point <= high else None
        if self.samples is None:
            return Crossing(value, None, None, value is not None, (low, high))
        estimate = offset + rise * np.log(grid)  # log of the ratio of the reducible terms
        rises = self.samples.exponent[:, base] - self.samples.exponent[:, curve]
        offsets = self.samples.log_scale[:, curve] - self.samples.log_scale[:, base]
        ratios = offsets[:, None] + rises[:, None] * np.log(grid)
        lows, highs = self._bounds(estimate, ratios)
        inside = np.flatnonzero((lows <= 0) & (highs >= 0))
        if not len(inside):
            return Crossing(value, None, None, False, (low, high))
        start, last = inside[0], inside[-1]
        return Crossing(
            value, None if start == 0 else float(grid[start - 1]),
            None if last == POINTS - 1 else float(grid[last + 1]), True, (low, high),
        )  # fmt: skip

    def _interval(self, estimate: float, samples: Floats | None) -> Interval:
        if samples is None:
            return Interval(estimate)
        low, high = self._bounds(np.asarray(estimate), samples)
        return Interval(estimate, float(low), float(high))

    def _bounds(self, estimate: Floats, samples: Floats) -> tuple[Floats, Floats]:
        """The quantiles of samples (R, ...) around an estimate (...), widened for few seeds."""
        from scipy.special import ndtri, stdtrit

        low, high = np.quantile(samples, [self.level / 2, 1 - self.level / 2], axis=0)
        wider = stdtrit(self.freedom, 1 - self.level / 2) / ndtri(1 - self.level / 2)
        return estimate - wider * (estimate - low), estimate + wider * (high - estimate)
