"""Statistics over seeds: paired t, Dunnett's and sign-flip tests, Holm's correction, power, and seeds needed.

scipy.special is imported inside the functions, so that commands that compute no verdict start faster; it loads in a
third of the time of scipy.stats.

The sequential test may be looked at after every seed: it bets on the signs of the differences. If runs of two variants
are exchangeable, the difference of a seed is as likely to be positive as negative, whatever its size. The wealth of a
gambler who bets on these signs, M_n = prod(1 + tanh(lambda z_i)) with z_i = d_i / rms(d_1..d_i), is then a nonnegative
martingale with mean 1, and exceeds 1 / alpha at any time with a probability of at most alpha (Ville, 1939; de la Pena,
1999; Ramdas et al., 2020). Nothing but the symmetry of the differences is assumed: no normal distribution, no equal
variances between seeds, no finite variance, no fixed number of looks.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ALPHA, POWER = 0.05, 0.8
MAX_FLIPS, FLIPS = 14, 20_000  # seeds up to which all signs are enumerated; random signs above
BISECTIONS = 30  # for the ends of an interval
MAX_SEEDS = 1000  # above it, the number of seeds needed is reported as "more than"
EQUAL_SUMS = 1e-12  # relative: sums of differences in another order
ROUNDING = 2.0**-23  # rounding of a difference of two figures, relative to them: runs record float32
STEPS = 4096  # most steps between the smallest and the largest figure that are searched; finer ones change no verdict


@dataclass(frozen=True)
class Paired:
    """Differences variant - baseline over the ``n`` seeds that both have, in the unit of the figures.

    ``low`` and ``high`` bound their mean, with 1 - ALPHA confidence unless the test was asked for another, NaN where so
    few seeds exclude no difference. ``sd`` is at least a step (`find_step`), ``effect`` Cohen's d_z (1988, 2.3.5),
    mean / sd, ``p`` two-sided; ``tied``: all differences are equal. Values that one seed does not determine are NaN.
    """

    n: int
    mean: float = math.nan
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    t: float = math.nan
    p: float = math.nan
    effect: float = math.nan
    tied: bool = False

    @property
    def identical(self) -> bool:
        """Whether the figures of both are equal at every seed."""
        return self.tied and self.mean == 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """``low`` and ``high``, infinite where several seeds exclude no difference."""
        return (-math.inf, math.inf) if math.isnan(self.low) and self.n > 1 else (self.low, self.high)


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval; NaN without one, as of a single run."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def holds(self, value: float) -> bool:
        """Whether a value is inside."""
        return self.low <= value <= self.high

    def excludes(self, value: float) -> bool:
        """Whether a value is outside; False without an interval."""
        return value < self.low or value > self.high


@dataclass(frozen=True)
class Verdict:
    """One of "better", "worse", "as good as", "not distinguishable", "no verdict"; a sentence; the seeds needed.

    ``fewest`` and ``most`` are the seeds needed at the 90 % and 10 % quantiles of the effect; None above MAX_SEEDS.
    ``earlier``: reached by an earlier look, whose figures belong to it.
    """

    word: str
    sentence: str
    needed: int | None = None
    fewest: int | None = None
    most: int | None = None
    earlier: bool = False


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (n - 1 in the denominator) of the finite values; NaN if there are too few."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not finite.size:
        return math.nan, math.nan
    return float(finite.mean()), float(finite.std(ddof=1)) if finite.size > 1 else math.nan


def rounding_of(figures: Sequence[float]) -> float:
    """The largest rounding error of a difference of two of the figures, which are as exact as float32."""
    return ROUNDING * max(map(abs, figures))


def find_step(differences: Floats, rounding: float) -> float:
    """The coarsest step of which all differences are multiples, such as 0.001 between accuracies of 1,000 images.

    ``rounding`` is the step of differences without another, such as those of losses.
    """
    values = np.unique([0.0, *differences])
    width = values[-1] - values[0]
    if width <= 2 * rounding:
        return rounding
    # numbers of steps between the ends that differ from chance
    counts = np.arange(1.0, 1 + min(STEPS, width / rounding / 20))
    for place in (values[1:-1] - values[0]) / width:
        multiples = place * counts
        counts = counts[np.abs(multiples - np.round(multiples)) <= 2 * rounding / width * counts]
        if not counts.size:
            return rounding
    return float(width / counts[0]) if counts.size else rounding


def paired_differences(variant: Sequence[float], baseline: Sequence[float]) -> Floats:
    """Variant minus baseline by seed, (n,); 0 where they differ by rounding alone."""
    result = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    if result.size:
        result[np.abs(result) <= rounding_of([*variant, *baseline])] = 0.0
    return result


def least_p(n: int) -> float:
    """2 / 4^n: with what probability ``n`` differences may all be alike by chance, which a t test takes for certain.

    For independent runs X and Y of one distribution, P(X - Y = c) is at most 1/4 for any c but 0 (Motzkin and Straus,
    1965), as with half of the seeds bad.
    """
    return 2.0 * 4.0**-n


def fewest_seeds(level: float) -> int:
    """The number of seeds before which no t test decides at ``level``."""
    return max(2, math.ceil(math.log(2 / level, 4) - 1e-12)) if level > 0 else MAX_SEEDS


def paired_t_test(
    variant: Sequence[float], baseline: Sequence[float], level: float = ALPHA, rounding: float | None = None
) -> Paired:
    """Student's paired t test (1908) of finite figures, aligned by seed; the interval's confidence is 1 - ``level``.

    Differences of figures such as accuracies lie on steps, between which their scatter cannot be seen. So the standard
    deviation is taken to be at least a step (`find_step`, with the ``rounding`` of the figures); where all differences
    are equal, p is at least that of the sign test, 2^(1-n). There is no interval where `least_p` is above ``level``.
    """
    n = len(variant)
    if n == 0:
        return Paired(0)
    rounding = rounding_of([*variant, *baseline]) if rounding is None else rounding
    differences = paired_differences(variant, baseline)
    mean = float(differences.mean())
    if n == 1:
        return Paired(1, mean)
    tied = bool(np.ptp(differences) <= 2 * rounding)
    figures = np.array([*variant, *baseline], dtype=np.float64)
    sd = max(float(differences.std(ddof=1)), find_step(figures - figures[0] if tied else differences, rounding))
    return _test_mean(Paired(n, mean, sd, tied=tied), n - 1, level)


def _test_mean(pair: Paired, freedom: float, level: float, sd: float | None = None) -> Paired:
    """A pair with its t test: by its own standard deviation or another, of so many degrees of freedom."""
    sign_p = 2.0 ** (1 - pair.n) if pair.tied else 0.0
    error = (sd or pair.sd) / math.sqrt(pair.n)
    t = pair.mean / error if error else 0.0
    reach = t_critical(level, freedom) * error if max(least_p(pair.n), sign_p) <= level else math.nan
    p = max(two_sided_p(t, freedom), sign_p)
    effect = pair.mean / pair.sd if pair.sd else 0.0
    return replace(pair, low=pair.mean - reach, high=pair.mean + reach, t=t, p=p, effect=effect)


def two_sided_p(t: float, df: float) -> float:
    """P(|T| >= |t|) for Student's T with ``df`` degrees of freedom."""
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -abs(t)))


@lru_cache(1024)
def t_critical(alpha: float, df: float) -> float:
    """The t with P(|T| >= t) = ``alpha``, for Student's T with ``df`` degrees of freedom."""
    from scipy.special import stdtrit

    return -float(stdtrit(df, alpha / 2))


def equivalence_p(pair: Paired, margin: float) -> float:
    """Two one-sided t tests (Schuirmann, 1987): the larger p of "mean <= -margin" and "mean >= margin".

    NaN for fewer than two seeds. At least 2^-n where all differences are equal, as for signs.
    """
    from scipy.special import stdtr

    if pair.n < 2:
        return math.nan
    inside = margin - abs(pair.mean)
    t = inside * math.sqrt(pair.n) / pair.sd if pair.sd else math.copysign(math.inf, inside)
    return max(float(stdtr(pair.n - 1, -t)), 2.0**-pair.n if pair.tied else 0.0)


def sign_flip_p(differences: Sequence[float], rounding: float = 0.0) -> float:
    """Fisher's (1935) randomization test: the share of all 2^n choices of signs with a mean at least as far from zero.

    Exact for symmetric differences, at least 2^(1-n); above MAX_FLIPS seeds from FLIPS random choices and the observed
    one. NaN for fewer than two seeds. Sums within ``rounding`` of a difference are equal.
    """
    sizes = np.abs(np.array(differences, dtype=np.float64))
    n = len(sizes)
    if n < 2:
        return math.nan
    observed = abs(math.fsum(differences))
    if n <= MAX_FLIPS:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        extra = 0
    else:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (FLIPS, n))
        extra = 1
    as_far = int((np.abs(signs @ sizes) >= observed * (1 - EQUAL_SUMS) - n * rounding).sum())
    return (as_far + extra) / (len(signs) + extra)


@lru_cache(4096)
def dunnett_p(t: float, variants: int, df: float) -> float:
    """P(max |T_i| >= t) of so many T_i with one denominator and correlations of 1/2 (Dunnett, 1955), to 1e-6.

    Such are the differences of variants from one baseline over the same seeds, if all scatter alike.
    """
    from scipy.special import chdtri, ndtr

    nodes, weights = _quadrature()
    scale = np.sqrt(chdtri(df, (1 - nodes) / 2) / df)  # of the denominator, at equal steps of probability
    base = 9.0 * nodes[:, None]  # the baseline's deviate
    outside = ndtr(base - math.sqrt(2) * t * scale) + ndtr(-base - math.sqrt(2) * t * scale)
    density = 9.0 * weights[:, None] * np.exp(-base * base / 2) / math.sqrt(2 * math.pi)
    return float((density * weights / 2 * -np.expm1(variants * np.log1p(-np.minimum(outside, 1 - 1e-16)))).sum())


@lru_cache(1)
def _quadrature() -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(80)


@lru_cache(4096)
def dunnett_level(variants: int, n: int, level: float = ALPHA) -> float:
    """The level of each t test of ``n`` seeds, by `join_variances`, with which all variants together keep ``level``."""
    from scipy.optimize import brentq

    bound = brentq(lambda t: dunnett_p(t, variants, 2 * (n - 1)) - level, 0.0, t_critical(level / variants, n - 1) + 1)
    return min(level, two_sided_p(float(bound), n - 1))


def dunnett_adjusted(p: float, variants: int, n: int) -> float:
    """The p value of ``variants`` tests of ``n`` seeds by `join_variances` of which the least p is ``p``."""
    return max(p, dunnett_p(t_critical(p, n - 1), variants, 2 * (n - 1))) if 0 < p < 1 else p


def join_variances(pairs: Sequence[Paired], level: float = ALPHA) -> list[Paired]:
    """t tests of variants with equally many seeds, by the mean of their variances, or the own one where that is more.

    All together keep ``level`` with Dunnett's critical value for 2 (n - 1) degrees of freedom, but at least Student's
    of one test for n - 1: also where some variants or the baseline scatter more than others. Pooled residuals without
    that guard err in up to 25 % of families.
    """
    variance = float(np.mean([pair.sd**2 for pair in pairs]))
    each = dunnett_level(len(pairs), pairs[0].n, level)
    tested = [_test_mean(pair, pair.n - 1, each, math.sqrt(max(variance, pair.sd**2))) for pair in pairs]
    return [
        replace(joint, low=math.nan, high=math.nan) if math.isnan(pair.low) else joint
        for joint, pair in zip(tested, pairs, strict=True)
    ]


def sign_flip_interval(differences: Sequence[float], level: float = ALPHA) -> tuple[float, float]:
    """The centres that `sign_flip_p` does not reject at ``level``; NaN for so few seeds that none is rejected."""
    values = np.array(differences, dtype=np.float64)
    if len(values) < 2 or sign_flip_p(np.ones(len(values)).tolist()) > level:
        return math.nan, math.nan
    middle, width = float(values.mean()), float(np.ptp(values))
    ends = []
    for direction in (-1.0, 1.0):
        inside, outside = middle, middle + direction * (width or abs(middle) or 1.0)
        for _ in range(BISECTIONS):
            centre = (inside + outside) / 2
            rejected = sign_flip_p((values - centre).tolist()) <= level
            inside, outside = (inside, centre) if rejected else (centre, outside)
        ends.append(outside)
    return ends[0], ends[1]


def holm_adjust(
    values: Sequence[float], families: Sequence[Hashable] | None = None,
    adjust: Callable[[float, int], float] = operator.mul,
) -> list[float]:  # fmt: skip
    """Holm's (1979) step-down adjusted p values: max over j <= i of (m - j + 1)·p_(j), at most 1; NaN is skipped.

    ``adjust`` may be sharper than the product: p of a least value among so many.

    Calling all adjusted values <= ALPHA significant has a family-wise error rate of at most ALPHA. Of the hypotheses of
    one family at most one can be true: then the factor is the number of families that are left (Shaffer, 1986).
    """
    members = list(range(len(values))) if families is None else list(families)
    order = sorted((index for index, p in enumerate(values) if not math.isnan(p)), key=lambda index: values[index])
    adjusted, largest = [math.nan] * len(values), 0.0
    for rank, index in enumerate(order):
        remaining = len({members[later] for later in order[rank:]})
        largest = max(largest, min(1.0, adjust(values[index], remaining)))
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
    """The fewest seeds with power ``chance`` for a true d_z of ``effect``; None above MAX_SEEDS or for no effect."""
    if math.isnan(effect) or effect == 0.0:
        return None
    # the normal approximation is a few seeds too low
    normal = (NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(chance)) / effect
    if normal * normal > MAX_SEEDS:
        return None
    counts = range(fewest_seeds(alpha), MAX_SEEDS + 1)
    index = bisect.bisect_left(counts, chance, key=lambda count: power(effect, count, alpha))
    return counts[index] if index < len(counts) else None


def smallest_effect(n: int, alpha: float = ALPHA, chance: float = POWER) -> float:
    """The d_z that a two-sided paired t test of ``n`` seeds finds with power ``chance``."""
    from scipy.optimize import brentq

    return float(brentq(lambda effect: power(effect, n, alpha) - chance, 0.0, 1000.0))


def effect_quantiles(pair: Paired, chance: float = 0.9) -> tuple[float, float]:
    """The d_z nearest to and farthest from zero on the side observed, for which t is at quantile ``chance`` and
    1 - ``chance`` of the noncentral t distribution. The nearest is 0 where it would have the other sign.
    """
    if not math.isfinite(pair.t) or pair.n < 2:
        return pair.effect, pair.effect
    from scipy.optimize import brentq
    from scipy.special import nctdtr

    t, df = abs(pair.t), pair.n - 1

    def shift_at(quantile: float) -> float:
        def gap(shift: float) -> float:
            below = float(nctdtr(df, shift, t))
            return (0.0 if math.isnan(below) else below) - quantile

        return 0.0 if gap(0.0) <= 0 else float(brentq(gap, 0.0, 2 * t + 10))

    near, far = (shift_at(quantile) / math.sqrt(pair.n) for quantile in (chance, 1 - chance))
    return near, far


def judge(
    pair: Paired, adjusted: float, tests: int, lower_is_better: bool, level: float = ALPHA,
    count_needed: Callable[[float], int | None] | None = None, equivalent: float = math.nan, fewest_possible: int = 2,
) -> Verdict:  # fmt: skip
    """The verdict on one of ``tests`` variants from its corrected p value. One seed never gives a verdict.

    ``equivalent`` is the corrected p of `equivalence_p`, NaN without a margin. Seeds needed are those of
    ``count_needed`` for an effect: by default for POWER at level ``level`` / tests, the strictest of Holm's procedure.
    Fewer seeds than ``fewest_possible`` decide nothing.
    """
    if pair.n == 0:
        return Verdict("no verdict", "no seed in common with the baseline: no verdict")
    if pair.n == 1:
        return Verdict("no verdict", "one seed: no verdict")
    if adjusted <= level and pair.n >= fewest_possible:
        word = "better" if (pair.mean < 0) == lower_is_better else "worse"
        return Verdict(word, word)
    if equivalent <= level:
        return Verdict("as good as", "as good as the baseline within the margin")
    if pair.identical:
        return Verdict("not distinguishable", f"identical with {pair.n} seeds")
    if pair.n < fewest_possible:
        return Verdict("no verdict", f"too few seeds ({pair.n} of {fewest_possible}): no verdict")
    needed_at = count_needed or (lambda effect: seeds_needed(effect, level / tests))
    near, far = effect_quantiles(pair)
    counts = (needed_at(effect) for effect in (pair.effect, far, near))
    needed, fewest, most = (None if count is None else max(count, pair.n + 1) for count in counts)
    corrected = f", corrected for {tests} comparisons" if pair.p <= level else ""
    return Verdict(
        "not distinguishable",
        f"not distinguishable with {pair.n} seeds{corrected}; {seeds_text(needed, fewest, most)}",
        needed,
        fewest,
        most,
    )


def seeds_text(needed: int | None, fewest: int | None, most: int | None, bracketed: bool = False) -> str:
    """``about 14 (6 to more than 1,000) would be needed``; without a range where its ends are rounded to the same.

    Where the text itself is ``bracketed``, the range follows a comma: ``about 14 would be needed, range 6 to 90``.
    """
    if needed is None:
        count, span = f"more than {MAX_SEEDS:,}", f"{round_count(fewest)} or more" if fewest else ""
    else:
        ends = [round_count(count) if count else f"more than {MAX_SEEDS:,}" for count in (fewest, most)]
        count, span = f"about {round_count(needed)}", "" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    if bracketed:
        return f"{count} would be needed" + (f", range {span}" if span else "")
    return count + (f" ({span})" if span else "") + " would be needed"


def round_count(count: int) -> str:
    """A number of seeds rounded to two digits."""
    return f"{int(float(f'{count:.2g}')):,}"


Side = Literal["both", "positive"]
# lambda and its weight in the mixture: for effects of a third of a standard deviation, of one, and above. The small
# weight of the first leaves a verdict possible after six seeds.
BETS = {0.3: 0.1, 1.0: 0.35, 3.0: 0.55}
GRID = 801  # centres that are tried for the ends of a confidence sequence
SIMULATIONS = 400  # paths by which the number of seeds needed is determined


def log_wealth(differences: Floats, side: Side = "both") -> Floats:
    """log M_n after each of n seeds. ``differences`` and the result have shape (..., n).

    "both" bets half on positive and half on negative differences; "positive" bets on positive ones alone.
    """
    count = np.arange(1, differences.shape[-1] + 1)
    scale = np.sqrt(np.cumsum(differences * differences, axis=-1) / count)
    sizes = differences / np.where(scale == 0.0, 1.0, scale)
    signs = (1.0, -1.0) if side == "both" else (1.0,)
    # log(1 + tanh x) = log 2 - log(1 + exp(-2x))
    paths = [math.log(weight) + np.cumsum(math.log(2) - np.logaddexp(0.0, -2.0 * sign * bet * sizes), axis=-1)
             for sign in signs for bet, weight in BETS.items()]  # fmt: skip
    return np.asarray(np.logaddexp.reduce(paths, axis=0) - math.log(len(signs)))


def p_values(differences: Floats, side: Side = "both") -> Floats:
    """p after each of n seeds, 1 / max of M so far, at most 1: (..., n) to (..., n).

    P(any p_n <= alpha) <= alpha if the differences are symmetric about 0; for "positive", if they are symmetric about a
    point <= 0 with one mode.
    """
    highest = np.maximum.accumulate(log_wealth(differences, side), axis=-1)
    return np.asarray(np.exp(-np.maximum(highest, 0.0)))


def last_p(differences: Floats, side: Side = "both") -> float:
    """The newest of the p values of one sequence (n,); 1 without any."""
    return float(p_values(differences, side)[-1]) if len(differences) else 1.0


@lru_cache(1024)
def fewest_sequential_seeds(level: float) -> int:
    """The number of seeds before which no verdict is possible at ``level``: M_n of n equal differences exceeds it."""
    reached = np.flatnonzero(p_values(np.ones(MAX_SEEDS)) <= level)
    return int(reached[0]) + 1 if reached.size else MAX_SEEDS


def confidence_sequence(differences: Floats, level: float = ALPHA) -> tuple[float, float]:
    """Ends of the set of centres that `p_values` has not rejected; NaN while the set is unbounded.

    Of ``differences`` (n,). With probability 1 - level it contains the centre after every seed.
    """
    if len(differences) < fewest_sequential_seeds(level):
        return math.nan, math.nan
    low, high = float(differences.min()), float(differences.max())
    reach = high - low or abs(high) or 1.0

    def excluded(centres: Floats) -> NDArray[np.bool_]:
        return p_values(differences - centres[:, None])[:, -1] <= level

    while not excluded(np.array([low - reach, high + reach])).all():
        reach *= 2.0
        if reach > 1e9 * max(high - low, abs(high), abs(low), 1e-300):
            return math.nan, math.nan
    grid = np.linspace(low - reach, high + reach, GRID)
    inside = np.flatnonzero(~excluded(grid))
    if not inside.size:  # narrower than the grid
        middle = float(np.median(differences))
        return middle, middle
    return (
        _bisect_edge(excluded, grid[inside[0] - 1], grid[inside[0]]),
        _bisect_edge(excluded, grid[inside[-1] + 1], grid[inside[-1]]),
    )


def _bisect_edge(excluded: object, outside: float, inside: float) -> float:
    """The last centre outside of the set, to 1e-12 of the width of the grid's cell."""
    assert callable(excluded)
    for _ in range(40):
        middle = (outside + inside) / 2
        if excluded(np.array([middle]))[0]:
            outside = middle
        else:
            inside = middle
    return float(outside)


@lru_cache(4096)
def seeds_needed_sequentially(effect: float, level: float = ALPHA, chance: float = POWER) -> int | None:
    """The seeds after which the test has decided with probability ``chance`` for a true d_z of ``effect``.

    By simulation of normal differences with fixed random numbers; None above MAX_SEEDS or for no effect.
    """
    if math.isnan(effect) or effect == 0.0:
        return None
    size = abs(effect)
    quantile = NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(chance)
    if (quantile / size) ** 2 > MAX_SEEDS:  # a test with one look would need more already
        return None
    longest = min(MAX_SEEDS, 20 + int(5 * (quantile / size) ** 2))
    noise = np.random.default_rng(0).standard_normal((SIMULATIONS, longest))
    decided = (p_values(noise + size) <= level).mean(axis=0) >= chance
    return int(decided.argmax()) + 1 if decided.any() else None
