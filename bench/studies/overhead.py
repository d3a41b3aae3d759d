"""What `zoo fit` adds to a step: logging, progress bar, metrics, checks and checkpoints, over a bare loop.

The task, its data and its optimiser are the same; a step is timed from one call of the loss to the next, in a process
of its own that believes to write to a terminal, so that the progress bar is drawn. The model is made small: what is
measured does not depend on it. All ways keep freed memory, as `zoo fit` does: what that gains is not counted here. The
bare loop does without the environment variable of Lightning's that makes an optimiser look for a driver at each step.
"""

from __future__ import annotations

import itertools
import os
import pty
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from bench.arena import CLOCKS
from bench.study import Options, Table, fresh

SMALL = [
    "--model.dim",
    "32",
    "--model.depth",
    "1",
    "--model.heads",
    "2",
    "--data.batch_size",
    "1",
    "--data.max_length",
    "32",
]
STEPS, WARM, BLOCK = 2001, 500, 300
GOAL, SHARE, STEP = 0.6e-3, 0.015, 50e-3
WAYS = ("bare loop", "zoo fit", "Lightning's defaults", "Lightning, barebones")


def study(options: Options) -> list[Table]:
    """Milliseconds per step by way, and what is above the bare loop, of rounds of all ways.

    The least mean of ``BLOCK`` steps: it holds its share of what happens now and then, and of a machine that is slower
    for seconds at a time, or whole processes long, the fast times are compared.
    """
    means: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(options.turns):
        for way in WAYS[:: -1 if turn % 2 else 1]:
            means[way] += fresh("bench.studies.overhead:timed", way=way, clock=options.clock)
    fastest = {way: min(block_means) for way, block_means in means.items()}
    bare = fastest[WAYS[0]]
    table = Table(
        "Overhead per step, 1 layer of width 32, one text of 32 tokens of lm-tiny's data",
        ["way", "ms per step", "above", "goal", "of 50 ms"],
    )
    for way, seconds in fastest.items():
        above = seconds - bare
        judged = f"{'reached' if above <= GOAL and above <= SHARE * STEP else 'missed'} (0.6 ms, 1.5 %)"
        share = "" if way == WAYS[0] else f"{100 * above / STEP:.2f} %"
        table.rows.append([way, (above + bare) * 1e3, above * 1e3, judged if way == "zoo fit" else "", share])
    table.notes.append("Every 50th step logs, as by default; no validation and no checkpoint falls between two steps.")
    return [table]


def timed(way: str, clock: str) -> list[float]:
    """Mean seconds of each ``BLOCK`` of steps after the first ``WARM``."""
    from zoo.system.malloc import keep_freed_memory

    keep_freed_memory()
    _pretend_terminal()
    now, calls = CLOCKS[clock], []

    def note(loss: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            calls.append(now())
            return loss(*args)

        return wrapper

    from zoo.tasks.lm import CausalLM

    CausalLM.loss = note(CausalLM.loss)  # type: ignore[method-assign]
    steps = ["--trainer.max_steps", str(STEPS), "--trainer.val_check_interval", str(STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        if way == "zoo fit":
            from zoo.cli import main

            words = ["--trainer.num_sanity_val_steps", "0", "--trainer.limit_val_batches", "1"]
            main(["fit", "lm-tiny", "--runs", folder, *SMALL, *steps, *words])
        else:
            _otherwise(way, folder, steps)
    marks = calls[WARM:STEPS:BLOCK]
    return [(end - start) / BLOCK for start, end in itertools.pairwise(marks)]


def _otherwise(way: str, folder: str, steps: list[str]) -> None:
    from bench.bare_loop import BareLoop

    run = BareLoop("lm-tiny", folder, *SMALL, *steps)
    if way == "bare loop":
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)  # Lightning's
        for number, batch in enumerate(_endless(run)):
            if number == STEPS:
                return
            run.step(batch)
    from lightning.pytorch import Trainer

    options: dict[str, Any] = {"barebones": True} if "barebones" in way else {"default_root_dir": folder}
    options |= {"gradient_clip_val": run.clip} if "barebones" not in way else {}
    run.data.ready()
    trainer = Trainer(max_steps=STEPS, max_epochs=-1, limit_val_batches=0, **options)
    trainer.fit(run.task, run.data.train_dataloader())


def _endless(run: Any) -> Any:
    while True:
        yield from run.batches()


def _pretend_terminal() -> None:
    """Standard output and error become a terminal that is not displayed."""
    reader, terminal = pty.openpty()
    for stream in (1, 2):
        os.dup2(terminal, stream)
    threading.Thread(target=_drain, args=(reader,), daemon=True).start()


def _drain(reader: int) -> None:
    while os.read(reader, 1 << 16):
        pass
