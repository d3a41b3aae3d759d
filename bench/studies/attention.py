"""Attention forward and backward against length: time and peak memory of every backend under four patterns.

One row, two heads of 64, float32. Memory is what the process grew by at most (``bench.study.peak_above``), in a fresh
process per curve whose freed blocks go back to the system; the inputs and their gradients count. Exponents are fitted
over the lengths from ``FROM`` on: below, fixed costs hide the growth.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench.arena import CLOCKS
from bench.study import RETURN_MEMORY, SHARE, Options, Table, exponent, free, fresh, peak_above

HEADS, WIDTH, FROM, SHORTEST = 2, 64, 2048, 256
PATTERNS = ("causal", "alibi", "padding", "window")
WINDOW = 256
SECONDS = 4.0  # how long one point is repeated


def study(options: Options) -> list[Table]:
    """Exponents, and the figures behind them."""
    from zoo import registry
    from zoo.parts.backend import Backend

    lengths = [SHORTEST << n for n in range(20) if SHORTEST << n <= options.longest]
    curves = Table("Attention against length: fitted exponents", ["backend", "pattern", "memory", "time", "lengths"])
    figures = Table(
        "Attention forward and backward, 1 row, 2 heads of 64, fp32",
        ["backend", "pattern", *(f"{n:,}: ms" for n in lengths), *(f"{n:,}: MB" for n in lengths)],
    )
    for part in registry.parts("backend"):
        backend: type[Backend] = registry.get("backend", part.name)
        for pattern in PATTERNS:
            points_by_length = _curve(part.name, pattern, lengths, options)
            if isinstance(points_by_length, str):
                curves.rows.append([part.name, pattern, points_by_length, None, None])
                continue
            long_points = {n: point for n, point in points_by_length.items() if n >= FROM} or points_by_length
            curves.rows.append(
                [
                    f"{part.name} ({backend.memory})", pattern,
                    exponent(list(long_points), [memory for _, memory in long_points.values()]),
                    exponent(list(long_points), [seconds for seconds, _ in long_points.values()]),
                    f"{min(long_points):,} to {max(long_points):,}",
                ]
            )  # fmt: skip
            figures.rows.append(
                [
                    part.name, pattern,
                    *(points_by_length[n][0] * 1e3 if n in points_by_length else None for n in lengths),
                    *(points_by_length[n][1] / 2**20 if n in points_by_length else None for n in lengths),
                ]
            )  # fmt: skip
    figures.notes.append("An empty cell was not run: four times the memory of the length before would not be free.")
    return [curves, figures]


def _curve(name: str, pattern: str, lengths: list[int], options: Options) -> dict[int, tuple[float, int]] | str:
    """Seconds and bytes by length, or why there are none."""
    arguments = {"name": name, "pattern_name": pattern, "lengths": lengths, "clock": options.clock}
    try:
        return fresh("bench.studies.attention:points", RETURN_MEMORY, **arguments)
    except RuntimeError as error:
        return f"refused: {error}".replace("|", "/")[:120]


def points(
    name: str, pattern_name: str, lengths: list[int], clock: str, seconds: float = SECONDS
) -> dict[int, tuple[float, int]]:
    """Seconds of one call with its gradients and bytes at most, by length, for as long as memory is free."""
    import torch

    from zoo import registry

    backend, now = registry.get("backend", name)(), CLOCKS[clock]
    unmet = _pattern(pattern_name, 64)().needs - backend.supports
    if unmet and not (unmet == {"bias"} and "alibi" in backend.supports):
        raise ValueError(f"{name} does not lower {', '.join(sorted(unmet))}")

    def once(n: int) -> None:
        q, k, v = (torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3))
        backend(q, k, v, _pattern(pattern_name, n)()).sum().backward()

    once(64)  # code of the first call is not the length's
    result: dict[int, tuple[float, int]] = {}
    for length in lengths:
        if result and 4 * max(memory for _, memory in result.values()) > SHARE * free():
            break
        memory = peak_above(lambda length=length: once(length))  # type: ignore[misc]
        seconds_of_calls: list[float] = []
        first_start = time.monotonic()
        while not seconds_of_calls or (len(seconds_of_calls) < 9 and time.monotonic() - first_start < seconds):
            start = now()
            once(length)
            seconds_of_calls.append(now() - start)
        result[length] = statistics.median(seconds_of_calls), memory
    return result


def _pattern(name: str, length: int) -> Any:
    """What makes a new pattern for each call: a mask that was remembered would cost nothing."""
    import torch

    from zoo.parts.pattern import Pattern
    from zoo.parts.position import ALiBi, Extent

    if name == "alibi":
        position = ALiBi(HEADS * WIDTH, HEADS, Extent((length,), causal=True))
        return lambda: Pattern(causal=True, bias=position.bias)
    if name == "padding":
        valid = torch.arange(length)[None] < length - length // 4
        return lambda: Pattern(valid=valid)
    return lambda: Pattern(causal=True, window=WINDOW if name == "window" else None)
