"""Format figures for tables and sentences: fixed places, SI prefixes, p values, durations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.compare.statistics import Interval

MINUS, NONE = "−", "–"
PREFIXES = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))
UNITS = {"loss": "nats", "bits_per_byte": "bits", "nats": "nats"}  # by goal; other goals have no unit


def decimal_places(deviations: Sequence[float]) -> int:
    """Decimal places that show two digits of the median standard deviation; 3 without any."""
    finite = sorted(deviation for deviation in deviations if math.isfinite(deviation) and deviation > 0)
    if not finite:
        return 3
    return max(0, min(6, 1 - math.floor(math.log10(finite[len(finite) // 2]))))


def format_fixed(value: float, places: int, sign: bool = False) -> str:
    """``1.632``, with ``sign`` ``+0.113`` or ``−0.113``; a dash for NaN."""
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return f"{MINUS if value < 0 else '+' if sign else ''}∞"
    text = f"{abs(value):.{places}f}"
    zero = not any(digit in text for digit in "123456789")
    return f"{'' if zero else MINUS if value < 0 else '+' if sign else ''}{text}"


def format_interval(interval: Interval, places: int, sign: bool = False) -> str:
    """``0.68 [0.60, 0.76]``; the value alone without an interval (NaN), a dash without a value."""
    value, low, high = (format_fixed(end, places, sign) for end in (interval.value, interval.low, interval.high))
    return value if math.isnan(interval.value) or math.isnan(interval.low) else f"{value} [{low}, {high}]"


def format_probability(p: float) -> str:
    """A p value: two digits, at most four decimal places."""
    if math.isnan(p):
        return NONE
    if p < 0.0001:
        return "<0.0001"
    return f"{p:.4f}" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def format_short(value: float, digits: int = 3) -> str:
    """``950``, ``1.23M``, ``5.10k``: a number with SI prefix, for parameters, tokens and FLOPs."""
    if not math.isfinite(value):
        return NONE
    value = float(f"{value:.{digits - 1}e}")
    for power, prefix in PREFIXES:
        if abs(value) >= 10**power:
            return f"{_digits(value / 10**power, digits)}{prefix}"
    text = _digits(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_apart(value: float, second: float) -> tuple[str, str]:
    """Two different amounts with as many digits as needed to show that they differ."""
    for digits in range(2, 12):
        texts = format_short(value, digits), format_short(second, digits)
        if texts[0] != texts[1]:
            break
    return texts


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


def join_words(words: Sequence[str], most: int = 4) -> str:
    """``a, b and c``; of more than ``most`` words ``a, b, c and 3 more``."""
    items = list(words)
    if len(items) > most:
        items = [*items[: most - 1], f"{len(items) - most + 1} more"]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def format_span(counts: Sequence[int]) -> str:
    """``5`` or ``3 to 5``: the smallest and the largest of sorted numbers."""
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
