"""Power laws of loss against compute, and what they say of two variants: differences at a size, and crossing points.

    L(C) = E + A · C^-α        E: the irreducible term, one for all variants; A and α: each variant's own

as Hoffmann et al. (2022) and Kaplan et al. (2020) fit losses of trained models. Intervals come from the bootstrap; the
interval of a crossing point holds every C at which the interval of the difference holds zero (Fieller, 1954).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
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
class Interval:
    """An estimate with its interval; NaN bounds without one."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value is inside."""
        return self.low <= value <= self.high


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

    def difference(self, curve: int, base: int, compute: tuple[float, float]) -> Interval:
        """The difference of two curves at a compute of each, ``curve`` minus ``base``, that the laws predict."""
        estimate, samples = self._difference(curve, base, compute)
        return self._interval(estimate, samples)

    def measured_difference(self, curve: int, base: int, compute: tuple[float, float]) -> Interval:
        """The same with the interval for the mean difference of as many seeds, which scatters besides."""
        estimate, samples = self._difference(curve, base, compute)
        if self.samples is not None:
            noise = self._mean_deviations((len(samples),))
            samples = samples + noise[:, curve] - noise[:, base]
        return self._interval(estimate, samples)

    def _difference(self, curve: int, base: int, compute: tuple[float, float]) -> tuple[float, Floats]:
        ours, theirs = np.array([compute[0]]), np.array([compute[1]])
        estimate = self.laws.losses(curve, ours) - self.laws.losses(base, theirs)
        if self.samples is None:
            return float(estimate[0]), np.empty(0)
        return float(estimate[0]), (self.samples.losses(curve, ours) - self.samples.losses(base, theirs))[:, 0]

    def curve(self, curve: int, compute: Floats, points: int = 32) -> tuple[tuple[float, float], ...]:
        """Points (compute, loss) of a law from the smallest to the largest of some computes."""
        grid = np.geomspace(compute.min(), compute.max(), points)
        return tuple(zip(grid.tolist(), self.laws.losses(curve, grid).tolist(), strict=True))

    def exponent(self, curve: int) -> Interval:
        """The exponent α of a curve."""
        samples = np.empty(0) if self.samples is None else self.samples.exponent[:, curve]
        return self._interval(float(self.laws.exponent[curve]), samples)

    def irreducible(self) -> Interval:
        """The irreducible term E; its interval is not widened where it ends at a bound of the search."""
        samples = np.empty(0) if self.samples is None else self.samples.irreducible
        interval = self._interval(float(self.laws.irreducible), samples)
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

    def _interval(self, estimate: float, samples: Floats) -> Interval:
        if not len(samples):
            return Interval(estimate, math.nan, math.nan)
        low, high = self._bounds(np.asarray(estimate), samples)
        return Interval(estimate, float(low), float(high))

    def _bounds(self, estimate: Floats, samples: Floats) -> tuple[Floats, Floats]:
        """The quantiles of samples (R, ...) around an estimate (...), widened for few seeds."""
        from scipy.special import ndtri, stdtrit

        low, high = np.quantile(samples, [self.level / 2, 1 - self.level / 2], axis=0)
        wider = stdtrit(self.freedom, 1 - self.level / 2) / ndtri(1 - self.level / 2)
        return estimate - wider * (estimate - low), estimate + wider * (high - estimate)
