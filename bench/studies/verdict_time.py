"""What `zoo compare` takes for fifteen short runs, against Lightning's Trainer alone with the same tasks and steps.

Both are counted with their child processes. Lightning trains all runs in one process, without logger, checkpoints and
progress bar, and validates as often; its imports and the building of tasks are a row of their own.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench.study import PATIENCE, Options, Table, command_seconds, fresh

POSITIONS, SEEDS = ("learned", "rope", "none"), 5
STEPS = {"vit-glyphs": 120, "lm-tiny": 60}
GOAL, SECONDS_PER_RUN = 1.05, 0.7


def study(options: Options) -> list[Table]:
    """Seconds by recipe: medians of ``turns`` comparisons, each beside a turn of Lightning."""
    tables = []
    for recipe, steps in STEPS.items():
        turns = [_measure(recipe, steps, options.clock) for _ in range(options.turns)]
        compare, again, folder, fits, start = (statistics.median(column) for column in zip(*turns, strict=True))
        runs = len(POSITIONS) * SEEDS
        ratio, above = compare / fits, (compare - fits) / runs
        table = Table(f"{runs} runs of {recipe} with {steps} steps", ["what", "s", "of Lightning's fits", "goal"])
        table.rows += [
            ["Lightning's fits, one after another", fits, 1.0, ""],
            ["its imports, and building tasks and data", start, start / fits, ""],
            ["zoo compare, to the verdict", compare, ratio, _judge(ratio, GOAL, "times")],
            ["above the fits, per run", above, "", _judge(above, SECONDS_PER_RUN, "s")],
            ["the same command again, which compares configurations", again, again / fits, ""],
            ["reading the folder of the finished comparison", folder, folder / fits, ""],
        ]  # fmt: skip
        tables.append(table)
    return tables


def _measure(recipe: str, steps: int, clock: str) -> tuple[float, float, float, float, float]:
    zoo_compare = [sys.executable, "-m", "zoo", "compare"]
    words = [*zoo_compare, recipe, "--vary", f"model.position={','.join(POSITIONS)}", "--seeds", str(SEEDS)]
    command = [*words, *_options(steps)]
    with tempfile.TemporaryDirectory() as place:
        compare, again = (command_seconds(command, place, clock, limit=PATIENCE, check=True) for _ in range(2))
        (home,) = Path(place).glob(f"runs/{recipe}/compare/position*")
        folder = command_seconds([*zoo_compare, str(home)], place, clock, limit=PATIENCE, check=True)
    fits, start = fresh("bench.studies.verdict_time:train_bare", recipe=recipe, steps=steps, clock=clock)
    return compare, again, folder, fits, start


def _options(steps: int) -> list[str]:
    return ["--trainer.max_steps", str(steps), "--trainer.val_check_interval", str(steps // 2)]


def train_bare(recipe: str, steps: int, clock: str) -> tuple[float, float]:
    """Seconds of all fits by Lightning's Trainer, and of everything before and between them, in this process."""
    from bench.arena import CLOCKS
    from zoo.system.malloc import keep_freed_memory

    for stream in (1, 2):  # what runs print is no figure
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    now = CLOCKS[clock]
    started = 0.0 if clock == "cpu" else now()
    keep_freed_memory()
    from lightning.pytorch import Trainer, seed_everything

    from bench.bare_loop import BareLoop

    fits = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for position in POSITIONS:
            for seed in range(1, SEEDS + 1):
                seed_everything(seed, verbose=False)
                run = BareLoop(recipe, folder, "--model.position", position, *_options(steps))
                trainer = Trainer(
                    max_steps=steps, val_check_interval=steps // 2, check_val_every_n_epoch=None, logger=False,
                    gradient_clip_val=run.clip, enable_checkpointing=False, enable_progress_bar=False,
                    enable_model_summary=False, num_sanity_val_steps=0, precision=run.trainer.precision,
                )  # fmt: skip
                run.data.ready()
                before = now()
                trainer.fit(run.task, run.data)
                fits += now() - before
    return fits, now() - started - fits


def _judge(value: float, goal: float, unit: str) -> str:
    return f"{'reached' if value <= goal else 'missed'} (≤ {goal:g} {unit})"
