"""`--compile`: seconds to the first step with and without programs of an earlier run, and what a step then takes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.study import PATIENCE, Options, Table
from zoo.system.kernel_choice import SWITCH

STEPS = 10
SIZES = {"lm-tiny (width 128, 4 layers)": (128, 4, 4), "width 384, 6 layers": (384, 6, 6)}


def study(options: Options) -> list[Table]:
    """A row for each size: first steps of an empty and of a filled cache, and the ratio of eager to compiled steps."""
    table = Table(
        "Compiled training steps, float32",
        ["model", "first step, empty cache, s", "first step, next process, s", "eager, ms", "compiled, ms", "ratio"],
    )
    for label, sizes in SIZES.items():
        with TemporaryDirectory() as cache:
            first, *_ = start(sizes, cache, options.threads, 1)
            second, eager, compiled = start(sizes, cache, options.threads, max(2, options.turns))
        table.rows.append([label, first, second, 1e3 * eager, 1e3 * compiled, eager / compiled])
    table.notes.append(f"Medians of {options.turns} turns of {STEPS} steps of 12 rows of 64 tokens.")
    return [table]


def start(sizes: tuple[int, int, int], cache: str, threads: int, turns: int) -> tuple[float, float, float]:
    """Of a fresh process: seconds of the first compiled step, and of a later step, eager and compiled."""
    env = {**os.environ, "ZOO_CACHE": cache, "OMP_NUM_THREADS": str(threads), SWITCH: "plain"}
    env.pop("TORCHINDUCTOR_CACHE_DIR", None)  # programs are kept in the cache, as those of a run
    code = f"from bench.studies.compilation import time_steps; print(*time_steps({sizes!r}, {turns}))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    if not (Path(cache) / "compiled").is_dir():
        raise RuntimeError("the compiler kept its programs elsewhere, so that a first start has those of others")
    first, eager, compiled = map(float, done.stdout.split())
    return first, eager, compiled


def time_steps(sizes: tuple[int, int, int], turns: int) -> tuple[float, float, float]:
    """What ``start`` returns, measured in this process."""
    import torch

    from zoo.parts.ffn import SwiGLU
    from zoo.parts.norm import RMSNorm
    from zoo.parts.position import RoPE
    from zoo.tasks.lm import CausalLM
    from zoo.training.compilation import compile_loss

    dim, depth, heads = sizes
    tasks = []
    for compiled in (False, True):
        torch.manual_seed(0)
        parts = {"position": RoPE, "norm": RMSNorm, "ffn": SwiGLU}
        tasks.append(CausalLM(1024, 64, dim=dim, depth=depth, heads=heads, **parts).train())
        if compiled:
            compile_loss(tasks[-1])
    tokens = torch.randint(1024, (12, 65))
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

    def step(task: CausalLM) -> None:
        total, size = task.loss(batch)
        task.zero_grad()
        (total / size).backward()

    step(tasks[0])
    begin = time.perf_counter()
    step(tasks[1])
    first = time.perf_counter() - begin
    seconds: list[list[float]] = [[], []]
    for _ in range(turns):
        for place, task in enumerate(tasks):
            begin = time.process_time()
            for _ in range(STEPS):
                step(task)
            seconds[place].append((time.process_time() - begin) / STEPS)
    return first, statistics.median(seconds[0]), statistics.median(seconds[1])
