"""Jobs of two processes in which one dies, breaks or hangs: the other ends soon, nothing is left, the run goes on.

    python -m tests.campaigns.chaos.deaths --home DIR --rounds 100                  # SIGKILL of one, the other, or both
    python -m tests.campaigns.chaos.deaths --home DIR --rounds 60 --ways raise memory segfault exit hang

A death is at a random moment, also before the processes know each other; the other ways are aimed at training,
validation and saving. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from tests.campaigns.chaos import lives, worlds
from tests.campaigns.chaos.site import Site

PHASES = {"training": "on_batch_boundary", "validation": "on_validation_batch_start", "saving": "save"}
KILLS = ("first", "second", "both")
SOON = 30.0  # seconds that the others may take
HANGS = 5.0  # and after so many a process counts as hung, where users wait for ten minutes
LINES = 5


def refuse() -> None:
    """What a part may raise that can only be meant for its author."""
    raise KeyError("a mistake in a part")


def exhaust() -> None:
    """Ask for more memory than this process may have."""
    import torch

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**26, size + 2**26))
    torch.ones(2**28)


WAYS: dict[str, Callable[[], None]] = {
    "raise": refuse,
    "memory": exhaust,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(3600),
}


def inside(rank: int, phase: str, after: int, act: Callable[[], None], note: Path) -> Callable[[], None]:
    """A prologue that does something at the so-manyeth moment of a phase in one process of the job."""

    def prologue() -> None:
        from zoo.training import distributed
        from zoo.training.checkpoint import CheckpointSaver

        distributed.PATIENCE = timedelta(seconds=HANGS)
        wrapped, countdown = getattr(CheckpointSaver, PHASES[phase]), after

        def hook(self, *args, **kwargs):
            nonlocal countdown
            countdown -= worlds.rank() == rank
            if countdown == 0:
                countdown -= 1
                note.write_text(str(time.monotonic()))
                act()
            return wrapped(self, *args, **kwargs)

        setattr(CheckpointSaver, PHASES[phase], hook)

    return prologue


def killed(site: Site, target: str, after: float) -> tuple[int, float]:
    """Start a job and kill; its first process, and when that was."""
    child = site.begin()
    time.sleep(after)
    group = worlds.members(child)
    others = [one for one in group if one != child]
    for one in {"first": [child], "second": others, "both": group}[target]:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return child, time.monotonic()


def campaign(home: Path, rounds: int, ways: tuple[str, ...] = KILLS, seed: int = 0) -> dict:
    """The figures of so many rounds, which take the ways in turn."""
    draw = random.Random(seed)
    site = Site(home, "lm", ["--save-every", "2"], 2, steps=16)
    start = time.monotonic()
    site.reference()
    lasted = time.monotonic() - start
    counts = {"rounds": 0, "too late": 0, "hung": 0, "orphans": 0, "identical": 0, "at most 5 lines": 0}
    result = {way: {"rounds": 0, "slowest": 0.0} for way in ways}
    problems: list[str] = []
    note = home / "when"
    for turn in range(rounds):
        site.clear(f"round-{turn % 10}")
        note.unlink(missing_ok=True)
        way = ways[turn % len(ways)]
        if way in KILLS:
            what = f"round {turn}: {way}"
            child, when = killed(site, way, draw.uniform(0.2, lasted))
        else:
            rank, phase, after = draw.randrange(2), draw.choice(list(PHASES)), draw.randrange(1, 5)
            what = f"round {turn}: {way} of {rank} in {phase} {after}"
            child = site.begin(prologue=inside(rank, phase, after, WAYS[way], note))
            when = 0.0
        code = site.ended(child)
        survivors = worlds.emptied(child, SOON)
        if not when and note.exists():
            when = float(note.read_text())
        took = time.monotonic() - when if when else 0.0
        if survivors is None:
            lives.kill(child)
        counts["rounds"] += 1
        counts["too late"] += code == 0
        counts["hung"] += code is None or took > SOON + (HANGS if way == "hang" else 0)
        counts["orphans"] += survivors is None
        result[way]["rounds"] += 1
        result[way]["slowest"] = round(max(result[way]["slowest"], took), 1)
        lines = site.complaints()
        few = len(lines) <= LINES and not any("Traceback" in line for line in lines)
        counts["at most 5 lines"] += few
        if code is None or survivors is None or took > SOON + HANGS or not (few or way == "raise"):
            problems.append(f"{what}: code {code} after {took:.1f} s, left {survivors}: {chr(10).join(lines[-6:])}")
        print(what, code, round(took, 1), lines[:LINES], file=sys.stderr, flush=True)
        differ = site.went_on()
        counts["identical"] += not differ
        if differ:
            problems.append(f"{what}: {differ[:5]}")
    return {**counts, "ways": result, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--ways", nargs="+", choices=(*KILLS, *WAYS), default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = campaign(arguments.home.resolve(), arguments.rounds, tuple(arguments.ways), arguments.seed)
    json.dump(report, sys.stdout, indent=1)
    print()
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
