"""Statistics over seeds: paired t test, Holm's correction, power, and the number of seeds needed.

scipy.special is imported inside the functions, so that commands that compute no verdict start faster; it loads in a
third of the time of scipy.stats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

ALPHA, POWER = 0.05, 0.8
MAX_SEEDS = 1000  # above it, the number of seeds needed is reported as "more than"
SAME = 1e-12  # relative to the figures: differences below it are rounding errors


@dataclass(frozen=True)
class Paired:
    """Differences variant - baseline over the ``n`` seeds that both have, in the unit of the figures.

    ``low`` and ``high`` bound their mean with 1 - ALPHA confidence, for this pair alone. ``effect`` is Cohen's d_z
    (1988, 2.3.5), mean / sd; ``p`` is two-sided. Values that one seed does not determine are NaN.
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
    """One of "better", "worse", "not distinguishable", "no verdict"; a sentence; the number of seeds needed."""

    word: str
    sentence: str
    needed: int | None = None


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (n - 1 in the denominator) of the finite values; NaN if there are too few."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not finite.size:
        return math.nan, math.nan
    return float(finite.mean()), float(finite.std(ddof=1)) if finite.size > 1 else math.nan


def paired_t_test(variant: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Student's paired t test (1908) of finite figures, aligned by seed.

    If all differences are equal, t is undefined (figures such as accuracies take discrete steps, so this happens by
    chance): then p is that of the sign test, 2^(1-n), or 1 if all differences are zero.
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


def holm_adjust(values: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down adjusted p values: max over j <= i of (m - j + 1)·p_(j), at most 1; NaN is skipped.

    Calling all adjusted values <= ALPHA significant has a family-wise error rate of at most ALPHA.
    """
    order = sorted((index for index, p in enumerate(values) if not math.isnan(p)), key=lambda index: values[index])
    adjusted, largest = [math.nan] * len(values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


@lru_cache(65536)
def power(effect: float, n: int, alpha: float = ALPHA) -> float:
    """Power of a two-sided paired t test of ``n`` seeds for a true d_z of ``effect``: noncentral t with d_z·√n."""
    from scipy.special import nctdtr

    bound, shift = t_critical(alpha, n - 1), abs(effect) * math.sqrt(n)
    below = nctdtr(n - 1, shift, [-bound, bound])
    below[np.isnan(below)] = 0.0  # scipy returns NaN for probabilities below 1e-17
    return float(1.0 - below[1] + below[0])


def seeds_needed(effect: float, alpha: float = ALPHA, chance: float = POWER) -> int | None:
    """The fewest seeds with power ``chance`` for a true d_z of ``effect``; None above MAX_SEEDS or for no effect.

    For an infinite effect (equal differences at every seed), the number with which the sign test reaches ``alpha``.
    """
    if math.isnan(effect) or effect == 0.0:
        return None
    if math.isinf(effect):
        return 1 + math.ceil(math.log2(1 / alpha))
    # the normal approximation is a few seeds too low: search the exact number from there
    normal = (NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(chance)) / effect
    if normal * normal > MAX_SEEDS:
        return None
    count = max(2, math.floor(normal * normal))
    while power(effect, count, alpha) < chance:
        count += 1
    while count > 2 and power(effect, count - 1, alpha) >= chance:
        count -= 1
    return count if count <= MAX_SEEDS else None


def judge(pair: Paired, adjusted: float, tests: int, lower_is_better: bool) -> Verdict:
    """The verdict on one of ``tests`` variants from its corrected p value. One seed never gives a verdict.

    Seeds needed are for POWER at the observed effect and level ALPHA / tests, the strictest level of Holm's procedure.
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
    seeds = f"about {round_count(needed)}" if needed else f"more than {MAX_SEEDS:,}"
    return Verdict(
        "not distinguishable",
        f"not distinguishable with {pair.n} seeds{corrected}; {seeds} would be needed",
        needed,
    )


def round_count(count: int) -> str:
    """A number of seeds rounded to two digits."""
    return f"{int(float(f'{count:.2g}')):,}"
