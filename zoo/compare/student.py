"""Student's t, central and noncentral, in plain Python and numpy: scipy would cost every start a second."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


def incomplete_beta(a: float, b: float, x: float, y: float | None = None) -> float:
    """I_x(a, b), the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22, Lentz's method).

    ``y`` is 1 - x, given where it is known more exactly than that subtraction gives it.
    """
    y = 1.0 - x if y is None else y
    if x <= 0.0 or y <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):  # beyond it the fraction of the mirrored function converges fast
        return 1.0 - incomplete_beta(b, a, y, x)
    front = math.exp(a * math.log(x) + b * math.log(y) - _log_beta(a, b)) / a
    tiny, c, d = 1e-300, 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or tiny)
            c = 1.0 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return front * fraction


def two_sided(t: float, df: float) -> float:
    """P(|T| >= |t|) for Student's T with ``df`` degrees of freedom, I_{df/(df+t²)}(df/2, 1/2)."""
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0
    return incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) for Student's T with ``df`` degrees of freedom."""
    tail = two_sided(t, df) / 2
    return 1.0 - tail if t > 0 else tail


@lru_cache(1024)
def t_critical(alpha: float, df: float) -> float:
    """The t with P(|T| >= t) = ``alpha``, by Newton's method held in a bracket."""
    low, high = 0.0, 1.0
    while two_sided(high, df) > alpha:
        low, high = high, 2 * high
    scale, t = -_log_beta(df / 2, 0.5) - math.log(df) / 2, (low + high) / 2
    for _ in range(200):
        over = two_sided(t, df) - alpha
        low, high = (t, high) if over > 0 else (low, t)
        step = over / (2 * math.exp(scale - (df + 1) / 2 * math.log1p(t * t / df)))
        following = t + step if low < t + step < high else (low + high) / 2
        if abs(following - t) <= 2e-16 * t:
            break
        t = following
    return t


def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = ``p``, 0 < p < 1."""
    return math.copysign(t_critical(2 * min(p, 1.0 - p), df), p - 0.5) if p != 0.5 else 0.0


def noncentral_t_cdf(t: float, df: float, shift: float) -> float:
    """P(T <= t) for T = (Z + shift) / S, Z standard normal, df·S² chi-squared: the integral of Phi(t·s - shift) over S.

    Gauss-Legendre, 16 nodes in each of 16 panels over 12 standard deviations of S, of 64 where t is so large that Phi
    is steep there: absolute error below 1e-12 for |t| <= 40.
    """
    nodes, weights = _legendre(16 if abs(t) <= 10 else 64)
    reach = 12 / math.sqrt(2 * df)
    low, high = max(0.0, 1.0 - reach), 1.0 + reach
    s = low + (high - low) * (nodes + 1) / 2
    scale = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    density = np.exp(scale + (df - 1) * np.log(s) - df * s * s / 2)
    normal = np.array([math.erfc(each) for each in ((shift - t * s) / math.sqrt(2)).tolist()]) / 2
    return float((weights * density * normal).sum() * (high - low) / 2)


@lru_cache(2)
def _legendre(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on -1..1, in panels: one long rule takes LAPACK longer than all else here together."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    middles = (2 * np.arange(panels) + 1) / panels - 1
    return (middles[:, None] + nodes / panels).ravel(), np.tile(weights / panels, panels)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
