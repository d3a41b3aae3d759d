"""Cost curves of a GPT-2-like training step: time and peak memory over length, width and batch, with exponents."""

from __future__ import annotations

import statistics
from typing import Any

from bench.arena import CLOCKS
from bench.study import RETURN_MEMORY, Options, Table, exponent, fresh

AXES = {"length": (64, 128, 256, 512, 1024), "width": (128, 256, 384, 512), "batch": (1, 2, 4, 8, 16)}
BASE = {"length": 256, "width": 256, "batch": 4}
ENTRANTS = ("zoo", "torch_nn")


def study(options: Options) -> list[Table]:
    """One table per axis, the others at ``BASE``."""
    tables = []
    for axis, values in AXES.items():
        sizes = [value for value in values if axis != "length" or value <= options.longest]
        others = ", ".join(f"{name} {value}" for name, value in BASE.items() if name != axis)
        table = Table(
            f"Training step over {axis} ({others}, 6 layers, vocabulary 8,192, fp32)",
            ["entrant", *(f"{n}: ms" for n in sizes), "exponent", *(f"{n}: MB" for n in sizes), "exponent"],
        )
        for entrant in ENTRANTS:
            points = [
                fresh("bench.studies.curves:point", RETURN_MEMORY, entrant=entrant, clock=options.clock,
                      turns=options.turns, **{**BASE, axis: size})
                for size in sizes
            ]  # fmt: skip
            seconds, memory = [point[0] for point in points], [point[1] for point in points]
            table.rows.append(
                [entrant, *(1e3 * one for one in seconds), exponent(sizes, seconds),
                 *(one / 2**20 for one in memory), exponent(sizes, [float(one) for one in memory])]
            )  # fmt: skip
        tables.append(table)
    return tables


def point(entrant: str, clock: str, turns: int, **size: int) -> tuple[float, int]:
    """Seconds of a step, and bytes that it took at most beside weights and the optimiser's state."""
    from bench.study import peak_above
    from bench.workloads import language

    language.DIM, language.HEADS = size["width"], max(1, size["width"] // 64)
    language.LENGTH, language.ROWS = size["length"], size["batch"]
    step: Any = getattr(language, entrant)("gpt2", 8192)
    now = CLOCKS[clock]
    for number in range(2):
        step(number)
    memory, seconds = peak_above(lambda: step(2)), []
    for number in range(max(1, min(turns, 5))):
        start = now()
        step(number)
        seconds.append(now() - start)
    return statistics.median(seconds), memory
