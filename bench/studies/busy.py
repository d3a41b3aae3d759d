"""Training beside other work: `lm-tiny` alone, beside a busy process, and twice at once, by threads and how they wait.

Threads of one operation wait for the slowest of them. While they spin, they take the processor from what they wait for,
if another process needs it too. `following` is what `zoo fit` does: it begins by spinning, and looks at the load.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from bench.study import PATIENCE, Options, Table
from zoo.system.threads import PASSIVE, PERIOD, POLICY, SETTINGS

SPINNING, SLEEPING, FOLLOWING = "spinning", "sleeping", "following"  # the first is OpenMP's own choice
WAYS = {SPINNING: {}, SLEEPING: {POLICY: PASSIVE}, FOLLOWING: {}}
STEPS, WARM = 60, 10
SITUATIONS = ("alone", "beside a busy process", "two at once")


def study(options: Options) -> list[Table]:
    """Milliseconds of a step in each situation, and how many times those of the default way alone they are."""
    table = Table(
        f"A training step of lm-tiny, ms ({STEPS} steps; median over {options.turns} turns)",
        ["threads", "waiting", *SITUATIONS],
    )
    ways = [(threads, way) for threads in (2, 1) for way in (WAYS if threads > 1 else [SLEEPING])]
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
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    env = {**inherited, **WAYS[way], "OMP_NUM_THREADS": str(threads)}
    code = f"from bench.studies.busy import step; print(step({way == FOLLOWING}))"
    words = [sys.executable, "-c", code]
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


def step(following: bool = False) -> float:
    """Wall seconds of a training step of lm-tiny's model, in this process, after two looks at the load."""
    import torch

    from zoo.parts.ffn import SwiGLU
    from zoo.parts.norm import RMSNorm
    from zoo.parts.position import RoPE
    from zoo.system.threads import follow_load
    from zoo.tasks.lm import CausalLM

    torch.manual_seed(0)
    task = CausalLM(1024, 64, dim=128, depth=4, heads=4, position=RoPE, norm=RMSNorm, ffn=SwiGLU, lr=3e-3).train()
    optimizer, tokens = task.make_optimizer(), torch.randint(1024, (12, 65))
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

    def train() -> None:
        total, size = task.loss(batch)
        optimizer.zero_grad()
        (total / size).backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()

    with follow_load() if following else nullcontext():
        start = time.perf_counter()
        for number in itertools.count():
            if number >= WARM and time.perf_counter() - start > 2.5 * PERIOD:
                break
            train()
        start = time.perf_counter()
        for _ in range(STEPS):
            train()
        return (time.perf_counter() - start) / STEPS
