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
from bench.study import GIVEN_BACK, SHARE, Options, Table, exponent, free, fresh, peak_above

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
            found = _curve(part.name, pattern, lengths, options)
            if isinstance(found, str):
                curves.rows.append([part.name, pattern, found, None, None])
                continue
            kept = {n: point for n, point in found.items() if n >= FROM} or found
            curves.rows.append(
                [
                    f"{part.name} ({backend.memory})", pattern,
                    exponent(list(kept), [memory for _, memory in kept.values()]),
                    exponent(list(kept), [seconds for seconds, _ in kept.values()]),
                    f"{min(kept):,} to {max(kept):,}",
                ]
            )  # fmt: skip
            figures.rows.append(
                [
                    part.name, pattern,
                    *(found[n][0] * 1e3 if n in found else None for n in lengths),
                    *(found[n][1] / 2**20 if n in found else None for n in lengths),
                ]
            )  # fmt: skip
    figures.notes.append("An empty cell was not run: four times the memory of the length before would not be free.")
    return [curves, figures]


def _curve(name: str, pattern: str, lengths: list[int], options: Options) -> dict[int, tuple[float, int]] | str:
    """Seconds and bytes by length, or why there are none."""
    given = {"name": name, "asked": pattern, "lengths": lengths, "clock": options.clock}
    try:
        return fresh("bench.studies.attention:points", GIVEN_BACK, **given)
    except RuntimeError as error:
        return f"refused: {error}".replace("|", "/")[:120]


def points(
    name: str, asked: str, lengths: list[int], clock: str, seconds: float = SECONDS
) -> dict[int, tuple[float, int]]:
    """Seconds of one call with its gradients and bytes at most, by length, for as long as memory is free."""
    import torch

    from zoo import registry

    backend, now = registry.get("backend", name)(), CLOCKS[clock]
    unmet = _pattern(asked, 64)().needs - backend.supports
    if unmet and not (unmet == {"bias"} and "alibi" in backend.supports):
        raise ValueError(f"{name} does not lower {', '.join(sorted(unmet))}")

    def once(n: int) -> None:
        q, k, v = (torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3))
        backend(q, k, v, _pattern(asked, n)()).sum().backward()

    once(64)  # code of the first call is not the length's
    found: dict[int, tuple[float, int]] = {}
    for length in lengths:
        if found and 4 * max(memory for _, memory in found.values()) > SHARE * free():
            break
        if name == "Auto":
            once(length)  # what it measures once is not its cost
        memory = peak_above(lambda length=length: once(length))  # type: ignore[misc]
        taken: list[float] = []
        begun = time.monotonic()
        while not taken or (len(taken) < 9 and time.monotonic() - begun < seconds):
            start = now()
            once(length)
            taken.append(now() - start)
        found[length] = statistics.median(taken), memory
    return found


def _pattern(asked: str, length: int) -> Any:
    """What makes a new pattern for each call: a mask that was remembered would cost nothing."""
    import torch

    from zoo.parts.pattern import Pattern
    from zoo.parts.position import ALiBi, Extent

    if asked == "alibi":
        position = ALiBi(HEADS * WIDTH, HEADS, Extent((length,), causal=True))
        return lambda: Pattern(causal=True, bias=position.bias)
    if asked == "padding":
        valid = torch.arange(length)[None] < length - length // 4
        return lambda: Pattern(valid=valid)
    return lambda: Pattern(causal=True, window=WINDOW if asked == "window" else None)
