"""Figures as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

MINUS, NONE = "−", "–"
PREFIXES = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))
UNITS = {"loss": "nats", "bits_per_byte": "bits", "nats": "nats"}  # of a goal; others are plain numbers


def decimals(deviations: Sequence[float]) -> int:
    """Places behind the point that show two digits of a typical standard deviation; 3 where there is none."""
    finite = sorted(each for each in deviations if math.isfinite(each) and each > 0)
    if not finite:
        return 3
    return max(0, min(6, 1 - math.floor(math.log10(finite[len(finite) // 2]))))


def format_fixed(value: float, places: int, sign: bool = False) -> str:
    """``1.632``, with ``sign`` ``+0.113`` or ``−0.113``; a dash for what is not a number."""
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return f"{MINUS if value < 0 else '+' if sign else ''}∞"
    text = f"{abs(value):.{places}f}"
    zero = not any(digit in text for digit in "123456789")
    return f"{'' if zero else MINUS if value < 0 else '+' if sign else ''}{text}"


def format_probability(p: float) -> str:
    """A p value: two digits, no more than four places."""
    if math.isnan(p):
        return NONE
    if p < 0.0001:
        return "<0.0001"
    return f"{p:.4f}" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def format_short(value: float, digits: int = 3) -> str:
    """``950``, ``1.23M``, ``5.10k``: decimal prefixes, as parameters and FLOPs are told."""
    if not math.isfinite(value):
        return NONE
    value = float(f"{value:.{digits - 1}e}")
    for power, prefix in PREFIXES:
        if abs(value) >= 10**power:
            return f"{_digits(value / 10**power, digits)}{prefix}"
    text = _digits(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def apart(value: float, other: float) -> tuple[str, str]:
    """Two different amounts, told with as many digits as it takes to see that they differ."""
    for digits in range(2, 12):
        texts = format_short(value, digits), format_short(other, digits)
        if texts[0] != texts[1]:
            break
    return texts


def format_memory(count: float) -> str:
    """Bytes as MiB or GiB."""
    if not math.isfinite(count):
        return NONE
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def format_duration(seconds: float) -> str:
    """``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return NONE
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _digits(value: float, digits: int) -> str:
    places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{places}f}"


def listed(words: Sequence[str], most: int = 4) -> str:
    """``a, b and c``; from ``most`` on ``and 3 more``."""
    shown = list(words)
    if len(shown) > most:
        shown = [*shown[: most - 1], f"{len(shown) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""
