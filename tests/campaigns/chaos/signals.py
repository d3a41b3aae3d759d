"""SIGTERM, SIGINT and SIGUSR1 in training, validation and saving, to one process of a job or to all of them.

    python -m tests.campaigns.chaos.signals --home DIR --rounds 60
    python -m tests.campaigns.chaos.signals --home DIR --rounds 90 --processes 2
    python -m tests.campaigns.chaos.signals --home DIR --rounds 12 --twice # and again while the first one's save hangs

With several processes the signal is sent to the first, the second or all of them, when the first one is in that phase.
A round starts a run, signals it, checks the exit code and that the newest checkpoint is intact and of the step that was
said, goes on with it, and compares the end with a run that nobody disturbed. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.chaos import worlds
from tests.campaigns.chaos.site import Site
from zoo.io import checkpoint_manifest

AGAIN = 2.5  # seconds after which a second signal is one, and not the first one's echo
CODES = {signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGINT: 130}
PHASES = {
    "training": "on_batch_boundary",
    "validation": "on_validation_batch_start",
    "saving": "save",
    "between epochs": "on_train_epoch_end",
}
TARGETS = ("first", "second", "all")


def inside(phase: str, number: int, after: int, target: str = "first", twice: bool = False) -> Callable[[], None]:
    """A prologue that signals processes of its job at the so-manyeth moment of a phase of the first one.

    ``twice``: and again after some seconds, in which the save that the first signal asks for has not ended.
    """

    def prologue() -> None:
        from zoo.training.checkpoint import CheckpointSaver

        wrapped, save, countdown = getattr(CheckpointSaver, PHASES[phase]), CheckpointSaver.save, after

        def hook(self, *args, **kwargs):
            nonlocal countdown
            countdown -= worlds.rank() == 0
            if countdown == 0:
                countdown -= 1
                here = os.getpid()
                pids = {"first": [here], "all": worlds.members(os.getpgid(0))}.get(target)
                for one in worlds.members(os.getpgid(0)) if pids is None else pids:
                    if target != "second" or one != here:
                        os.kill(one, number)
                if twice:
                    CheckpointSaver.save = hang
            return wrapped(self, *args, **kwargs)

        def hang(self, *args, **kwargs):
            time.sleep(AGAIN)
            os.kill(os.getpid(), number)
            time.sleep(60)
            return save(self, *args, **kwargs)

        setattr(CheckpointSaver, PHASES[phase], hook)

    return prologue


def campaign(home: Path, rounds: int, seed: int = 0, processes: int = 1, task: str = "lm", twice: bool = False) -> dict:
    """The figures of so many rounds."""
    draw = random.Random(seed)
    short = ["--trainer.limit_train_batches", "10"]
    site = Site(home, task, ["--save-every", "4", *short], processes)
    site.reference()
    names = ("rounds", "hung", "stopped", "too late", "at the step", "identical")
    counts = dict.fromkeys(names, 0)
    problems: list[str] = []
    slowest = 0.0
    for turn in range(rounds):
        site.clear(f"{processes}-{turn}")
        number = list(CODES)[turn % len(CODES)]
        phase = list(PHASES)[turn // len(CODES) % len(PHASES)]
        target = TARGETS[turn // len(CODES) // len(PHASES) % 3] if processes > 1 else "first"
        after = draw.randrange(1, 3) if phase == "between epochs" else draw.randrange(2, 9)
        start = time.monotonic()
        child = site.begin(prologue=inside(phase, number, after, target, twice))
        code = site.ended(child)
        slowest = max(slowest, time.monotonic() - start)
        what = f"round {turn} ({number.name} to {target} in {phase} {after})"
        has_survivors = processes > 1 and worlds.emptied(child, 30.0) is None
        counts["rounds"] += 1
        counts["hung"] += code is None or has_survivors
        counts["stopped"] += code == CODES[number]
        counts["too late"] += code == 0
        if code not in (0, CODES[number]) or has_survivors:
            problems.append(f"{what}: code {code}, {has_survivors=}: {site.log_text()[-300:]}")
        match = re.search(r"step (\d+) is saved", site.log_text())
        newest = checkpoint_manifest.newest_intact(site.run)
        if code and match and newest.path is not None:
            counts["at the step"] += checkpoint_manifest.verify(newest.path)["step"] == int(match[1])
        print(what, code, match and match[0], file=sys.stderr, flush=True)
        differ = site.went_on()
        counts["identical"] += not differ
        if differ:
            problems.append(f"{what}: differs in {differ[:5]}")
    return {**counts, "slowest": round(slowest, 1), "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--twice", action="store_true")
    arguments = parser.parse_args()
    report = campaign(
        arguments.home.resolve(), arguments.rounds, arguments.seed, arguments.processes, twice=arguments.twice
    )
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
