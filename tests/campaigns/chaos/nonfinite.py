"""A loss, a gradient, a weight or an input that is not finite, at a random step, in a random process.

    python -m tests.campaigns.chaos.nonfinite --home DIR --rounds 40
    python -m tests.campaigns.chaos.nonfinite --home DIR --rounds 24 --processes 2

The run has to end before the step, with code 4 and a few lines that name the step; what it has saved is finite; and
when it goes on without the fault it ends as the undisturbed one. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.chaos import worlds
from tests.campaigns.chaos.site import Site, bad_tensors

KINDS = ("loss", "gradient", "weight", "input")
STEPS, EACH = 12, 2  # optimiser steps, and batches of each
LINES = 5


def spoiled(kind: str, value: float, batch: int, rank: int, number: int) -> Callable[[], None]:
    """A prologue that spoils the so-manyeth batch of one process; ``number`` chooses a parameter."""

    def prologue() -> None:
        from zoo.tasks.task import Task

        count = 0

        def step(self, content, batch_idx):
            nonlocal count
            count += 1
            now = count == batch and worlds.rank() == rank
            parameters = [p for p in self.parameters() if p.requires_grad]
            parameter = parameters[number % len(parameters)]
            if now and kind == "weight":
                parameter.data.flatten()[-1] = value
            if now and kind == "input":
                content["images"] = content["images"].clone()
                content["images"][-1, ..., -1] = value
            if now and kind == "gradient":
                handle = parameter.register_hook(lambda grad: (handle.remove(), grad * value)[1])
            loss = wrapped(self, content, batch_idx)
            if now and kind == "loss":
                self.step_losses[-1] = self.step_losses[-1] * value
                return loss * value
            return loss

        wrapped, Task.training_step = Task.training_step, step

    return prologue


def campaign(home: Path, rounds: int, processes: int = 1, seed: int = 0) -> dict:
    """The figures of so many rounds, which take the kinds in turn."""
    draw = random.Random(seed)
    words = ["--save-every", "3", "--trainer.limit_train_batches", "10"]  # an epoch is a whole number of steps
    sites = {task: Site(home / task, task, words, processes, steps=STEPS) for task in ("lm", "vit")}
    for site in sites.values():
        site.reference()
    names = ("rounds", "code 4", "the step", "samples", "few lines", "finite on disk", "identical")
    counts = {kind: dict.fromkeys(names, 0) for kind in KINDS}
    problems: list[str] = []
    for turn in range(rounds):
        kind = KINDS[turn % len(KINDS)]
        site = sites["vit" if kind == "input" else "lm"]
        value, rank = draw.choice((float("nan"), float("inf"), -float("inf"))), draw.randrange(processes)
        batch = draw.randrange(1, STEPS * EACH + 1)
        what = f"{kind} {value} in batch {batch} of process {rank}"
        site.clear("round")
        child = site.begin(prologue=spoiled(kind, value, batch, rank, draw.randrange(1000)))
        code = site.ended(child)
        if processes > 1 and worlds.emptied(child, 20.0) is None:
            problems.append(f"{what}: something is left running")
        lines, match = site.complaints(), re.search(r"step (\d+): the", site.log_text())
        record = site.run / "nonfinite.json"
        result = counts[kind]
        result["rounds"] += 1
        result["code 4"] += code == 4
        result["the step"] += match is not None and int(match[1]) == (batch - 1) // EACH
        result["samples"] += record.exists() and len(json.loads(record.read_text())["samples"]) > 0
        result["few lines"] += 0 < len(lines) <= LINES
        result["finite on disk"] += not bad_tensors(site.run)
        print(what, code, lines[:LINES], file=sys.stderr, flush=True)
        differ = site.went_on()
        result["identical"] += not differ
        if code != 4 or differ or len(lines) > LINES:
            problems.append(f"{what}: code {code}, {differ[:4]}: {chr(10).join(lines[:7])}")
    return {"processes": processes, **counts, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = campaign(arguments.home.resolve(), arguments.rounds, arguments.processes, arguments.seed)
    json.dump(report, sys.stdout, indent=1)
    print()
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
