"""kill -9 at random moments; every run goes on and ends as the one that nobody disturbed.

    python -m tests.campaigns.chaos.kills --kills 200  # LM, translation and ViT in turn, a third aimed at writing
    python -m tests.campaigns.chaos.kills --kills 200 --each 1  # 200 runs, each killed once
    python -m tests.campaigns.chaos.kills --kills 20 --processes 2 --strategy fsdp2 --save async

TMPDIR lies on another file system (/dev/shm). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.chaos import lives, toys, worlds

SHARED_MEMORY = Path("/dev/shm")


def prologue(processes: int, more: Callable[[], None] | None = None) -> Callable[[], None]:
    """What the first process of a life does before its command: have the others ready, which do nothing more."""

    def first() -> None:
        if processes > 1:
            worlds.ready(processes)
        if more is not None:
            more()

    return first


def campaign(
    home: Path,
    kills: int,
    seed: int = 0,
    processes: int = 1,
    tasks: tuple[str, ...] = toys.TASKS,
    each: int = 100,
    workers: int = 0,
    strategy: str = "ddp",
    save: str = "whole",
) -> dict:
    """Kill until so many kills were made, at most ``each`` of one run, finishing each run; the figures."""
    draw = random.Random(seed)
    lives.load()
    toys.write(home, workers=workers)
    counts = {"kills": 0, "while writing": 0, "runs": 0, "identical": 0, "lost": 0, "damaged": 0, "left": 0, "lives": 0}
    several = ["--trainer.devices", str(processes), "--trainer.strategy", strategy] if processes > 1 else []
    several += ["--save", save] if save != "whole" else []
    reference, lasted = {}, {}
    for task in tasks:
        start = time.monotonic()
        words = ["fit", f"{task}.yaml", "--save-every", "2", "--runs", "reference", *several]
        assert lives.ended(lives.born(words, home, home / "reference.log", prologue(processes)), 600) == 0, (
            home / "reference.log"
        ).read_text()
        lasted[task] = time.monotonic() - start
        reference[task] = toys.outcome(home / f"reference/{task}/default/s1")
    problems: list[str] = []
    while counts["kills"] < kills:
        task = tasks[counts["runs"] % len(tasks)]
        shutil.rmtree(home / "runs", ignore_errors=True)
        counts["runs"] += 1
        run = home / f"runs/{task}/default/s1"
        log = home / f"{task}-{counts['runs']}.log"
        until = min(kills, counts["kills"] + each)
        words = ["fit", f"{task}.yaml", "--save-every", "2", "--requeue", *several]
        for _ in range(100):
            counts["lives"] += 1
            disturb = counts["kills"] < until
            writing = disturb and counts["kills"] % 3 == 0
            child = lives.born(words, home, log, prologue(processes, lives.aimed(draw) if writing else None))
            code = lives.ended(child, draw.uniform(0.0, lasted[task]) if disturb and not writing else 600)
            if code is None:
                code = lives.kill(child)
            # what the next life does must not meet a process of this one, which may take long on a busy machine
            assert worlds.emptied(child, lives.PATIENCE) is not None, f"processes of {child} outlive it"
            if code == -9:
                counts["kills"] += 1
                counts["while writing"] += writing
            else:
                break
        if code != 0:
            counts["lost"] += 1
            problems.append(f"run {counts['runs']} ({task}) ended with {code}: {log.read_text()[-400:]}")
            continue
        counts["damaged"] += log.read_text().count("skipped:")
        counts["left"] += len(list(run.rglob(".*.partial")))
        differ = toys.differences(toys.outcome(run), reference[task])
        counts["identical"] += not differ
        if differ:
            problems.append(f"run {counts['runs']} ({task}) differs in {differ[:6]}")
    return {**counts, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--each", type=int, default=100, help="how often one run is killed at most")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="loading processes of each process")
    parser.add_argument("--strategy", default="ddp", help="of several processes")
    parser.add_argument("--save", default="whole", help="how a strategy of shares saves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=toys.TASKS, default=toys.TASKS)
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    if SHARED_MEMORY.is_dir():
        os.environ["TMPDIR"] = str(SHARED_MEMORY)
    start = time.monotonic()
    report = campaign(
        arguments.home.resolve(),
        arguments.kills,
        arguments.seed,
        arguments.processes,
        tuple(arguments.tasks),
        arguments.each,
        arguments.workers,
        arguments.strategy,
        arguments.save,
    )
    json.dump({**report, "seconds": round(time.monotonic() - start)}, sys.stdout, indent=1)
    print()
    raise SystemExit(0 if report["identical"] == report["runs"] and not report["damaged"] else 1)


if __name__ == "__main__":
    main()
