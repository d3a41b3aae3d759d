"""Where and how a run is interrupted, times how it is made: each goes on and ends as the undisturbed one, bit for bit.

    python -m tests.campaigns.chaos.resumes --home DIR

In the middle of an epoch, at its end, within a validation, and within an accumulated step; by SIGTERM and by SIGKILL in
turn; with 0 and 2 loading workers (which persist), 1 and 2 processes, with and without dropout, in float32 and with
bfloat16. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.chaos import worlds
from tests.campaigns.chaos.site import Site

EPOCH = 8  # batches, of which two make a step
MOMENTS = {
    "mid-epoch": ("on_batch_boundary", EPOCH + 4),
    "epoch end": ("on_batch_boundary", EPOCH),
    "mid-validation": ("on_validation_batch_start", 4),  # the second batch of the second
    "mid-accumulation": ("on_batch_boundary", EPOCH + 3),
}
DATA_OPTIONS = tuple(itertools.product((0, 2), (1, 2), (0.1, 0.0), ("32-true", "bf16-mixed")))


def at(moment: str, number: int) -> Callable[[], None]:
    """A prologue that signals the first process at a moment, by SIGKILL its whole group."""

    def prologue() -> None:
        from zoo.training.checkpoint import CheckpointSaver

        name, countdown = MOMENTS[moment]
        wrapped = getattr(CheckpointSaver, name)

        def hook(self, *args, **kwargs):
            nonlocal countdown
            counts = worlds.rank() == 0 and not (name != "on_batch_boundary" and self.trainer.sanity_checking)
            countdown -= counts
            if countdown == 0 and counts:
                (os.killpg if number == signal.SIGKILL else os.kill)(os.getpid(), number)
            return wrapped(self, *args, **kwargs)

        setattr(CheckpointSaver, name, hook)

    return prologue


def campaign(home: Path, share: tuple[int, int] = (0, 1)) -> dict:
    """The figures; ``share`` is which part of the ways to make a run, of how many."""
    result = {"cells": 0, "stopped": 0, "identical": 0}
    problems: list[str] = []
    for number, (workers, processes, dropout, precision) in enumerate(DATA_OPTIONS):
        if number % share[1] != share[0]:
            continue
        words = [
            *("--save-every", "3", "--data.num_workers", str(workers), "--model.dropout", str(dropout)),
            *("--trainer.precision", precision, "--trainer.limit_train_batches", str(EPOCH)),
        ]
        site = Site(home, "lm", words, processes, steps=10)
        site.reference()
        for turn, moment in enumerate(MOMENTS):
            way = (signal.SIGTERM, signal.SIGKILL)[(number + turn) % 2]
            site.clear("round")
            code = site.ended(site.begin(prologue=at(moment, way)))
            if processes > 1:
                worlds.emptied(site.child, 10.0)
            differ = site.went_on()
            result["cells"] += 1
            result["stopped"] += code == (143 if way == signal.SIGTERM else -9)
            result["identical"] += not differ
            what = f"{moment}, {way.name}, {workers=}, {processes=}, {dropout=}, {precision}: {code}"
            print(what, differ[:3], file=sys.stderr, flush=True)
            if differ or not code:
                problems.append(f"{what}: {differ[:5]}")
    return {**result, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--share", nargs=2, type=int, default=(0, 1))
    arguments = parser.parse_args()
    report = campaign(arguments.home.resolve(), tuple(arguments.share))
    json.dump(report, sys.stdout, indent=1)
    print()
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
