"""Where a training step spends its time: FLOPs and bytes of each operation, its share of the time, and what the machine
allows. Counted as `zoo explain` counts, forward, backward and the optimizer; timed by torch's profiler.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.study import Options, Table
from bench.training import Step
from bench.workloads import language
from zoo.explain.ceilings import Ceilings, matrix, measure
from zoo.explain.trace import Operation, Recorder

STYLE, VOCABULARY = "gpt2", 8192
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALLEST = 0.005  # share of the time of an operation with a row of its own
# one name for what is one kind of operation: the profiler has the time of both copies at the copy inside, and products
# are torch's while they are counted and may be oneDNN's while they are timed
KINDS = {"to_copy": "copy", "clone": "copy"} | dict.fromkeys(("mm", "addmm", "linear_pointwise"), "matrix products")
COLUMNS = ["operation", "calls", "GFLOP", "MB", "FLOP per byte", "bound by", "ms", "share, %", "of the ceiling, %"]


class StepRecorder(Recorder):
    """Records the operations of a whole step, without keeping its tensors."""

    def _remember(self, tensor: Any, source: tuple[int, ...]) -> None:
        pass


@dataclass
class Costs:
    """What all calls of an operation cost: FLOPs, bytes, and the seconds that the ceilings allow at least."""

    calls: int = 0
    flops: int = 0
    traffic: int = 0
    least: float = 0.0
    compute: float = 0.0  # the part of ``least`` of calls that compute bounds

    def add(self, operation: Operation, ceilings: Ceilings) -> None:
        """Count a call."""
        seconds = ceilings.seconds(operation)
        self.calls, self.flops, self.traffic = (
            self.calls + 1, self.flops + operation.flops, self.traffic + operation.traffic,
        )  # fmt: skip
        self.least += seconds
        self.compute += seconds if ceilings.bound(operation) == "compute" else 0.0


def study(options: Options) -> list[Table]:
    """A table for float32, and one for bfloat16 autocast."""
    torch.set_num_threads(options.threads)
    ceilings = measure()
    tables = []
    for precision, dtype in PRECISIONS.items():
        own = ceilings if dtype is torch.float32 else replace(ceilings, flops=matrix(dtype))
        step = language.zoo(STYLE, VOCABULARY, precision)
        tables.append(roofline(step, own, options.turns, f"A GPT-2-like training step, {precision}"))
    return tables


def roofline(step: Step, ceilings: Ceilings, turns: int, title: str) -> Table:
    """A row for each operation, the slowest first; what is below SMALLEST of the time is one row."""
    for number in range(2):
        step.run(number)
    costs, milliseconds = count(step, ceilings), time_operations(step, turns)
    whole = sum(milliseconds.values())
    table = Table(title, COLUMNS)
    small = [name for name in milliseconds if name not in costs or milliseconds[name] < SMALLEST * whole]
    for name in sorted(milliseconds.keys() - set(small), key=lambda name: -milliseconds[name]):
        table.rows.append(row(name, costs[name], milliseconds[name], whole))
    others = Costs()
    for name in (costs.keys() & set(small)) | (costs.keys() - milliseconds.keys()):
        one = costs[name]
        others.calls, others.flops, others.traffic = (
            others.calls + one.calls,
            others.flops + one.flops,
            others.traffic + one.traffic,
        )
        others.least, others.compute = others.least + one.least, others.compute + one.compute
    table.rows.append(
        row("all others, views and the interpreter", others, sum(milliseconds[name] for name in small), whole)
    )
    total = Costs(*(sum(getattr(one, field) for one in costs.values()) for field in vars(others)))
    table.rows.append(row("the step", total, whole, whole))
    table.notes.append(
        f"Ceilings: {ceilings.flops / 1e9:.0f} GFLOP/s of products, {ceilings.bandwidth / 1e9:.1f} GB/s of memory; "
        f"{torch.get_num_threads()} thread(s), load {os.getloadavg()[0]:.1f}, {turns} steps. An operation that "
        "stays in the caches can be above 100 %: bytes are counted as if each call read its operands from memory."
    )
    return table


def row(name: str, cost: Costs, milliseconds: float, whole: float) -> list[Any]:
    """What a table shows of an operation."""
    bound = "" if not cost.least else "compute" if cost.compute >= cost.least / 2 else "memory"
    intensity = cost.flops / cost.traffic if cost.traffic else None
    reached = 1e5 * cost.least / milliseconds if milliseconds and cost.least else None
    megabytes = cost.traffic / 1e6
    return [
        name,
        cost.calls,
        cost.flops / 1e9,
        megabytes,
        intensity,
        bound,
        milliseconds,
        100 * milliseconds / whole,
        reached,
    ]


def count(step: Step, ceilings: Ceilings) -> dict[str, Costs]:
    """The costs of the operations of one step, by name."""
    recorder = StepRecorder()
    with recorder:
        step.run(0)
    costs: dict[str, Costs] = defaultdict(Costs)
    for operation in recorder.operations:
        costs[KINDS.get(operation.name, operation.name)].add(operation, ceilings)
    return dict(costs)


def time_operations(step: Step, turns: int) -> dict[str, float]:
    """Milliseconds that the operations of one step take themselves, by name, the mean of ``turns`` steps.

    The profiler's are of wall time: they are scaled to the processor's time of the steps where there is one thread, so
    that what other processes take is not counted.
    """
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        start, before = time.perf_counter(), time.process_time()
        for number in range(turns):
            step.run(number)
        share = (time.process_time() - before) / (time.perf_counter() - start)
    share = min(1.0, share) if torch.get_num_threads() == 1 else 1.0
    milliseconds: dict[str, float] = defaultdict(float)
    for event in recorded.key_averages():
        if not event.key.startswith("ProfilerStep"):
            name = event.key.rpartition("::")[2].strip("_")
            milliseconds[KINDS.get(name, name)] += share * event.self_cpu_time_total / 1e3 / turns
    return dict(milliseconds)
