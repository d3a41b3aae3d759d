"""Statistics over several tasks: normalised scores, P(improvement), interquartile means, and their intervals.

As Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice", and their rliable
define them. A score is a number of which more is better, in an array of runs for each task; a run that failed is
-infinity, or 0 once normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zoo.compare.statistics import sign_flip_p

Floats = npt.NDArray[np.float64]
RESAMPLES, CONFIDENCE = 20_000, 0.95
TRIM = 0.25  # share of the runs that an interquartile mean leaves out at either end


class BootstrapEstimate(NamedTuple):
    """An estimate and the ends of its 95 % interval, NaN where a single run gives none."""

    value: float
    low: float = math.nan
    high: float = math.nan


NO_ESTIMATE = BootstrapEstimate(math.nan)


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


def mean_over_tasks(
    ours: Sequence[Floats], theirs: Sequence[Floats], value: Callable[[Floats, Floats], float]
) -> float:
    """The mean over tasks of ``value`` of a task's scores."""
    return float(np.mean([value(*pair) for pair in zip(ours, theirs, strict=True)]))


def probability_of_improvement(ours: Sequence[Floats], theirs: Sequence[Floats]) -> float:
    """The mean over tasks of P(X > Y) + P(X = Y) / 2, for a run X of the one and a run Y of the other, any two runs.

    That is the statistic of Mann and Whitney (1947) divided by the number of pairs.
    """
    return mean_over_tasks(ours, theirs, lambda x, y: float(_wins(x, y).mean()))


def _wins(x: Floats, y: Floats) -> Floats:
    """1 where x is larger, 1/2 where it is equal, else 0: (runs of x, runs of y)."""
    return np.asarray((x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :]), dtype=np.float64)


def bootstrap_improvement(
    ours: Sequence[Floats], theirs: Sequence[Floats], paired: bool = True, resamples: int = RESAMPLES
) -> BootstrapEstimate:
    """P(improvement) with the percentile interval of a bootstrap that is stratified by task.

    ``paired``: run i of both has the same seed, and seeds are drawn for both together; else, as in rliable, runs of
    each are drawn on their own. Without an interval where a task has a single run.
    """
    random, draws = np.random.default_rng(0), np.zeros(resamples)
    value = probability_of_improvement(ours, theirs)
    for x, y in zip(ours, theirs, strict=True):
        if min(len(x), len(y)) < 2:
            return BootstrapEstimate(value)
        counts = _resample_counts(random, len(x), resamples)
        others = counts if paired else _resample_counts(random, len(y), resamples)
        draws += ((counts @ _wins(x, y)) * others).sum(1) / (len(x) * len(y) * len(ours))
    return _percentile_interval(value, draws)


def bootstrap_interquartile_mean(scores: Sequence[Floats], resamples: int = RESAMPLES) -> BootstrapEstimate:
    """The interquartile mean of all runs of all tasks, with the interval of a bootstrap stratified by task."""
    value = float(interquartile_mean(np.concatenate(list(scores))))
    if min(map(len, scores)) < 2:
        return BootstrapEstimate(value)
    random = np.random.default_rng(0)
    resampled = [
        task_scores[random.integers(0, len(task_scores), (resamples, len(task_scores)))] for task_scores in scores
    ]
    return _percentile_interval(value, interquartile_mean(np.concatenate(resampled, axis=1)))


def _resample_counts(random: np.random.Generator, runs: int, resamples: int) -> Floats:
    """How often each run is drawn in each resample, (resamples, runs)."""
    return np.asarray(random.multinomial(runs, np.full(runs, 1 / runs), resamples), dtype=np.float64)


def _percentile_interval(value: float, draws: Floats) -> BootstrapEstimate:
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return BootstrapEstimate(value, float(low), float(high))


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
    scaled = [
        task_differences / math.sqrt(float((task_differences**2).mean()))
        if task_differences.any()
        else task_differences
        for task_differences in differences
    ]
    return sign_flip_p(np.concatenate(scaled).tolist())


def sequence_over_tasks(differences: Sequence[Floats]) -> Floats:
    """All differences in the order of their seeds, for the sequential test, each in units of the root mean square of
    its task's so far: what a later seed adds changes none of the earlier ones.
    """
    scaled = []
    for task_differences in differences:
        size = np.sqrt(np.cumsum(task_differences**2) / np.arange(1, len(task_differences) + 1))
        scaled.append(np.divide(task_differences, size, out=np.zeros_like(task_differences), where=size > 0))
    most = max(map(len, scaled), default=0)
    return np.array(
        [
            task_differences[index]
            for index in range(most)
            for task_differences in scaled
            if index < len(task_differences)
        ],
        dtype=np.float64,
    )
