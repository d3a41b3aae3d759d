"""A paired test that may be looked at after every seed: betting on the signs of the differences.

If runs of two variants are exchangeable, the difference of a seed is as likely to be positive as negative, whatever its
size. The wealth of a gambler who bets on these signs, M_n = prod(1 + tanh(lambda z_i)) with z_i = d_i / rms(d_1..d_i),
is then a nonnegative martingale with mean 1, and exceeds 1 / alpha at any time with a probability of at most alpha
(Ville, 1939; de la Pena, 1999; Ramdas et al., 2020). Nothing but the symmetry of the differences is assumed: no normal
distribution, no equal variances between seeds, no finite variance, no fixed number of looks.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zoo.compare.statistics import ALPHA, MAX_SEEDS, POWER

Floats = NDArray[np.float64]
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
def fewest_seeds(level: float) -> int:
    """The number of seeds before which no verdict is possible at ``level``: M_n of n equal differences exceeds it."""
    reached = np.flatnonzero(p_values(np.ones(MAX_SEEDS)) <= level)
    return int(reached[0]) + 1 if reached.size else MAX_SEEDS


def confidence_sequence(differences: Floats, level: float = ALPHA) -> tuple[float, float]:
    """Ends of the set of centres that `p_values` has not rejected; NaN while the set is unbounded.

    Of ``differences`` (n,). With probability 1 - level it contains the centre after every seed.
    """
    if len(differences) < fewest_seeds(level):
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
