"""Whether a difference over a few seeds is one: paired t test, Holm's correction, seeds that would be needed.

scipy.special is imported where a verdict is computed: commands that compute none start without it. It loads in a third
of the time of scipy.stats, whose functions these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

ALPHA, POWER = 0.05, 0.8
MOST = 1000  # seeds: beyond it nobody asks how many
SAME = 1e-12  # of the figures' size: differences that are equal but for rounding


@dataclass(frozen=True)
class Paired:
    """Differences variant - baseline over the ``n`` seeds that both have, in the unit of the figures.

    ``low`` and ``high`` bound their mean with 1 - ALPHA confidence, for this pair alone. ``effect`` is Cohen's d_z
    (1988, 2.3.5), mean / sd; ``p`` is two-sided. What one seed cannot tell is NaN.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float
    t: float
    p: float
    effect: float


@dataclass(frozen=True)
class Verdict:
    """One of "better", "worse", "not distinguishable", "no verdict"; the same in words; seeds that would be needed."""

    word: str
    sentence: str
    needed: int | None = None


def summary(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (n - 1 in the denominator) of the finite values; NaN where there are too few."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not finite.size:
        return math.nan, math.nan
    return float(finite.mean()), float(finite.std(ddof=1)) if finite.size > 1 else math.nan


def paired(variant: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Student's t test (1908) on the differences of finite figures, seed by seed.

    Where all differences are equal, t says nothing (figures such as accuracies are steps, and equal steps happen by
    chance): then p is that of the sign test, 2^(1-n), and 1 where all of them are zero.
    """
    ours, theirs = np.array(variant, dtype=np.float64), np.array(baseline, dtype=np.float64)
    differences = ours - theirs
    n = len(differences)
    if n == 0:
        return Paired(0, *[math.nan] * 7)
    mean = float(differences.mean())
    if n == 1:
        return Paired(1, mean, *[math.nan] * 6)
    sd, size = float(differences.std(ddof=1)), float(max(np.abs(ours).max(), np.abs(theirs).max()))
    if sd <= SAME * size:
        moved = abs(mean) > SAME * size
        mean = mean if moved else 0.0
        far = math.copysign(math.inf, mean) if moved else 0.0
        return Paired(n, mean, 0.0, mean, mean, far, 2.0 ** (1 - n) if moved else 1.0, far)
    error = sd / math.sqrt(n)
    reach = t_critical(ALPHA, n - 1) * error
    return Paired(n, mean, sd, mean - reach, mean + reach, mean / error, two_sided_p(mean / error, n - 1), mean / sd)


def two_sided_p(t: float, df: float) -> float:
    """P(|T| >= |t|) for Student's T with ``df`` degrees of freedom."""
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -abs(t)))


@lru_cache(1024)
def t_critical(alpha: float, df: float) -> float:
    """The t with P(|T| >= t) = ``alpha``, for Student's T with ``df`` degrees of freedom."""
    from scipy.special import stdtrit

    return -float(stdtrit(df, alpha / 2))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down adjusted p values: max over j <= i of (m - j + 1)·p_(j), at most 1; NaN is no test.

    A family of tests that calls significant what is at most ALPHA errs at all with probability ALPHA at most.
    """
    order = sorted((index for index, p in enumerate(values) if not math.isnan(p)), key=lambda index: values[index])
    adjusted, largest = [math.nan] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


@lru_cache(65536)
def power(effect: float, n: int, alpha: float = ALPHA) -> float:
    """Probability that a two-sided paired t test of ``n`` seeds sees a true d_z of ``effect``: noncentral t, d_z·√n."""
    from scipy.special import nctdtr

    bound, shift = t_critical(alpha, n - 1), abs(effect) * math.sqrt(n)
    below = nctdtr(n - 1, shift, [-bound, bound])
    below[np.isnan(below)] = 0.0  # what scipy gives for a probability below 1e-17 that it cannot represent
    return float(1.0 - below[1] + below[0])


def seeds_needed(effect: float, alpha: float = ALPHA, chance: float = POWER) -> int | None:
    """The fewest seeds that see a true d_z of ``effect`` with probability ``chance``; None beyond MOST or for none.

    An infinite effect, equal differences at every seed, needs as many as let the sign test reach ``alpha``.
    """
    if math.isnan(effect) or effect == 0.0:
        return None
    if math.isinf(effect):
        return 1 + math.ceil(math.log2(1 / alpha))
    # the normal approximation is a few seeds short: the exact number is searched from there
    normal = (NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(chance)) / effect
    if normal * normal > MOST:
        return None
    count = max(2, math.floor(normal * normal))
    while power(effect, count, alpha) < chance:
        count += 1
    while count > 2 and power(effect, count - 1, alpha) >= chance:
        count -= 1
    return count if count <= MOST else None


def judge(pair: Paired, adjusted: float, tests: int, lower_is_better: bool) -> Verdict:
    """The verdict on one of ``tests`` variants from its p value after correction. One seed never gives one.

    Seeds needed are for POWER at the effect observed and at ALPHA / tests, which Holm's procedure never asks more than.
    """
    if pair.n == 0:
        return Verdict("no verdict", "no seed in common with the baseline: no verdict")
    if pair.n == 1:
        return Verdict("no verdict", "one seed: no verdict")
    if adjusted <= ALPHA:
        word = "better" if (pair.mean < 0) == lower_is_better else "worse"
        return Verdict(word, word)
    if pair.sd == 0.0 and pair.mean == 0.0:
        return Verdict("not distinguishable", f"identical with {pair.n} seeds")
    needed = seeds_needed(pair.effect, ALPHA / tests)
    corrected = f", corrected for {tests} comparisons" if pair.p <= ALPHA else ""
    seeds = f"about {rounded(needed)}" if needed else f"more than {MOST:,}"
    return Verdict(
        "not distinguishable",
        f"not distinguishable with {pair.n} seeds{corrected}; {seeds} would be needed",
        needed,
    )


def rounded(count: int) -> str:
    """A number of seeds as it is known: two digits."""
    return f"{int(float(f'{count:.2g}')):,}"
