"""Training beside other work: `lm-tiny` alone, beside a busy process, and twice at once, by threads and how they wait.

Threads of one operation wait for the slowest of them. While they spin, they take the processor from what they wait for,
if another process needs it too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.study import PATIENCE, Options, Table
from zoo.system.threads import DECIDED, PASSIVE, POLICY

WAYS = {"spinning": {}, "passive": {POLICY: PASSIVE}}  # the first is what OpenMP does unless it is told otherwise
STEPS, WARM = 60, 10
SITUATIONS = ("alone", "beside a busy process", "two at once")


def study(options: Options) -> list[Table]:
    """Milliseconds of a step in each situation, and how many times those of the default way alone they are."""
    table = Table(
        f"A training step of lm-tiny, ms ({STEPS} steps; median over {options.turns} turns)",
        ["threads", "waiting", *SITUATIONS],
    )
    ways = [(threads, way) for threads in (2, 1) for way in (WAYS if threads > 1 else ["passive"])]
    times: dict[tuple[int, str, str], list[float]] = {}
    for _ in range(options.turns):
        for situation in SITUATIONS:
            for threads, way in ways:
                times.setdefault((threads, way, situation), []).append(measure(threads, way, situation))
    for threads, way in ways:
        medians = [statistics.median(times[threads, way, situation]) for situation in SITUATIONS]
        table.rows.append([threads, way, *(1e3 * seconds for seconds in medians)])
        ratios = ", ".join(
            f"{seconds / medians[0]:.2f} {situation}"
            for seconds, situation in zip(medians[1:], SITUATIONS[1:], strict=True)
        )
        table.notes.append(f"{threads} threads, {way}: {ratios}, relative to alone.")
    return [table]


def measure(threads: int, way: str, situation: str) -> float:
    """Seconds of a step of lm-tiny; of the slower one where two train at once."""
    inherited = {name: value for name, value in os.environ.items() if name not in DECIDED}
    env = {**inherited, **WAYS[way], "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", "from bench.studies.busy import step; print(step())"]
    copies = 2 if situation == "two at once" else 1
    with busy_process(situation == "beside a busy process"):
        processes = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) for _ in range(copies)]
        return max(float(process.communicate(timeout=PATIENCE)[0]) for process in processes)


@contextmanager
def busy_process(present: bool) -> Iterator[None]:
    """A process beside that computes all the time."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if present else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def step() -> float:
    """Wall seconds of a training step of lm-tiny's model, in this process."""
    import time

    import torch

    from zoo.parts.ffn import SwiGLU
    from zoo.parts.norm import RMSNorm
    from zoo.parts.position import RoPE
    from zoo.tasks.lm import CausalLM

    torch.manual_seed(0)
    task = CausalLM(1024, 64, dim=128, depth=4, heads=4, position=RoPE, norm=RMSNorm, ffn=SwiGLU, lr=3e-3).train()
    optimizer, tokens = task.make_optimizer(), torch.randint(1024, (12, 65))
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    start = 0.0
    for number in range(WARM + STEPS):
        if number == WARM:
            start = time.perf_counter()
        total, size = task.loss(batch)
        optimizer.zero_grad()
        (total / size).backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
    return (time.perf_counter() - start) / STEPS
