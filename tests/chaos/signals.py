"""SIGTERM, SIGINT and SIGUSR1 in training, validation and saving, to one process of a job or to all of them.

    python -m tests.chaos.signals --home DIR --rounds 60
    python -m tests.chaos.signals --home DIR --rounds 12 --processes 2

A round starts a run, signals it, checks the exit code and that the newest checkpoint is intact and of the step that was
said, goes on with it, and compares the end with a run that nobody disturbed. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos import lives, toys
from zoo.trained import manifest

PATIENCE = 240.0  # seconds until a process that was asked to stop counts as hung
CODES = {signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGINT: 130}
PHASES = {"training": "boundary", "validation": "on_validation_batch_start", "saving": "save"}


def inside(phase: str, number: int, after: int) -> Callable[[], None]:
    """A prologue that signals its own process at the so-manyeth moment of a phase."""

    def prologue() -> None:
        from zoo.study.saver import Saver

        wrapped, left = getattr(Saver, PHASES[phase]), after

        def hook(self, *args, **kwargs):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)
            return wrapped(self, *args, **kwargs)

        setattr(Saver, PHASES[phase], hook)

    return prologue


def children(parent: int) -> list[int]:
    """The processes that one started."""
    said = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in said.split()]


def disturb(child: int, target: str, number: int, run: Path, draw: random.Random) -> None:
    """Wait until training has begun, and signal the first process, the second, or all."""
    until = time.monotonic() + PATIENCE
    while not (run / "checkpoints/last.ckpt").exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(draw.uniform(0.0, 1.5))
    others = children(child)
    chosen = {"first": [child], "second": others[:1], "all": [child, *others]}[target]
    for one in chosen:
        try:
            os.kill(one, number)
        except ProcessLookupError:
            return


def campaign(home: Path, rounds: int, seed: int = 0, processes: int = 1, task: str = "lm") -> dict:
    """The figures of so many rounds."""
    draw = random.Random(seed)
    lives.load()
    toys.write(home)
    several = ["--trainer.devices", str(processes), "--trainer.strategy", "ddp"] if processes > 1 else []
    words = ["fit", f"{task}.yaml", "--save-every", "4", *several]
    log = home / "reference.log"
    assert lives.ended(lives.born([*words, "--runs", "reference", "--overwrite"], home, log), 600) == 0, log.read_text()
    reference = toys.outcome(home / f"reference/{task}/default/s1")
    run = home / f"runs/{task}/default/s1"
    counts = {"rounds": 0, "hung": 0, "stopped": 0, "too late": 0, "at the step": 0, "identical": 0}
    problems: list[str] = []
    for turn in range(rounds):
        shutil.rmtree(home / "runs", ignore_errors=True)
        number = list(CODES)[turn % len(CODES)]
        target = ("first", "second", "all")[turn // len(CODES) % 3]
        phase = list(PHASES)[turn // len(CODES) % len(PHASES)]
        log = home / f"{processes}-{turn}.log"
        prologue = inside(phase, number, draw.randrange(2, 9)) if processes == 1 else None
        child = lives.born(words, home, log, prologue)
        if processes > 1:
            disturb(child, target, number, run, draw)
        code = lives.ended(child, PATIENCE)
        counts["rounds"] += 1
        if code is None:
            counts["hung"] += 1
            problems.append(f"round {turn}: hung")
            lives.kill(child)
            continue
        counts["stopped"] += code == CODES[number]
        counts["too late"] += code == 0
        if code not in (0, CODES[number]):
            problems.append(f"round {turn} ({number.name}): code {code}: {log.read_text()[-300:]}")
        said = re.search(r"step (\d+) is saved", log.read_text())
        newest = manifest.newest(run)
        if code and said and newest.path is not None:
            counts["at the step"] += manifest.verified(newest.path)["step"] == int(said[1])
        code = lives.ended(lives.born([*words, "--requeue"], home, log), PATIENCE)
        differ = toys.differences(toys.outcome(run), reference) if code == 0 else [f"code {code}"]
        counts["identical"] += not differ
        if differ:
            problems.append(f"round {turn}: differs in {differ[:5]}")
    return {**counts, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = campaign(asked.home.resolve(), asked.rounds, asked.seed, asked.processes)
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
