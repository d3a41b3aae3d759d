"""What a run costs, one record per measure: a new one is a column of `zoo compare` and a curve without more code."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RunFacts:
    """Measurements of a run in progress; None where nothing measures them."""

    parameters: int | None  # trainable ones
    flops: float | None  # FLOPs of a forward pass, per token or image
    rates: Sequence[float]  # tokens per second of each steady window
    peak_bytes: int
    seconds: float  # seconds of training, without validation
    tokens: int
    state_bytes: int | None = None  # of a language model that has written its longest text

    @property
    def speed(self) -> float | None:
        """Tokens per second: the median over steady windows, or the mean of a run too short for them."""
        mean = self.tokens / self.seconds if self.seconds and self.tokens else None
        return statistics.median(self.rates) if self.rates else mean


@dataclass(frozen=True)
class CostMeasure:
    """One thing that training costs: how it is measured, written, shown and drawn."""

    name: str  # in ledger.json, and in `zoo compare --json` and --csv
    heading: str  # heading of the column; {unit} is token or image
    measure: Callable[[RunFacts], float | None]
    over_seeds: Callable[[Sequence[float]], float]  # a variant's figure, from those of its runs
    form: str  # how it is shown: count, bytes or seconds
    chart: str = ""  # the name of its chart against quality, where there is one
    axis: str = ""  # label of the chart's axis
    word: str = ""  # in that chart's title
    low_is_good: bool = True
    tag: str = ""  # cost/TAG in TensorBoard, where it is a curve
    scale: float = 1.0  # that the curve is divided by
    fixed: bool = False  # the same all the time: logged once


def first(values: Sequence[float]) -> float:
    """The first of figures that are the same for all seeds."""
    return values[0]


MEASURES = (
    CostMeasure(
        "parameters", "parameters", lambda run: run.parameters, first, "count",
        "parameters", "parameters", "size", tag="params_m", scale=1e6, fixed=True,
    ),
    CostMeasure(
        "flops_per_token", "FLOPs/{unit}", lambda run: run.flops, first, "count",
        "flops", "forward FLOPs per token", "computation", tag="mflops_per_token", scale=1e6, fixed=True,
    ),
    CostMeasure(
        "tokens_per_s", "{unit}s/s", lambda run: run.speed, statistics.median, "count",
        "speed", "tokens per second", "speed", low_is_good=False, tag="tokens_per_s",
    ),
    CostMeasure(
        "peak_memory_bytes", "memory", lambda run: run.peak_bytes, max, "bytes",
        "memory", "peak memory (bytes)", "memory", tag="peak_memory_mb", scale=2**20,
    ),
    CostMeasure("state_bytes", "state", lambda run: run.state_bytes, first, "bytes"),
    CostMeasure(
        "seconds", "time", lambda run: run.seconds, statistics.median, "seconds",
        "seconds", "training time (s)", "time",
    ),
)  # fmt: skip
