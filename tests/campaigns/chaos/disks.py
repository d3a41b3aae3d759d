"""A disk that is full, or fails, or cannot be written: nothing under a good name is damaged, and training outlives it.

    python -m tests.campaigns.chaos.disks --home DIR --rounds 50
    python -m tests.campaigns.chaos.disks --home DIR --rounds 0 --mount # as root: on small file systems of their own

Rounds with a fault: ENOSPC, EDQUOT, EIO, EACCES or EROFS from a random write, fsync or rename of a checkpoint and from
all that follow until it is mended some writes later, or never. Small file systems: a tmpfs that fills up while a run
goes on and is freed, one that stays full, one that is too small or read-only from the start, and one for TMPDIR that is
full all the time. Prints one JSON object, and one more of the small file systems.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.chaos.site import Site, bad_tensors
from zoo.io import checkpoint_manifest

FAULTS = ("ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS")
LINES = 4


def failing(number: int, first: int, last: int) -> Callable[[], None]:
    """A prologue after which the calls from ``first`` to ``last`` that write a checkpoint fail."""

    def prologue() -> None:
        from zoo.io import atomic_files
        from zoo.training import checkpoint

        checkpoint.RETRY = 0.0
        calls = 0

        def counting(wrapped: Callable) -> Callable:
            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if first <= calls <= last:
                    raise OSError(number, os.strerror(number))
                return wrapped(*args, **kwargs)

            return call

        class Failing:
            """The module os, as zoo.io.atomic_files sees it."""

            replace, fsync, link = (staticmethod(counting(call)) for call in (os.replace, os.fsync, os.link))

            def __getattr__(self, name: str) -> object:
                return getattr(os, name)

        atomic_files.os = Failing()  # type: ignore[attr-defined]
        # below what zoo writes with, where a disk fails
        init = atomic_files.HashingFile.__init__

        def opened(self, file):
            init(self, file)
            self.file = Through(file)

        class Through:
            """A file whose writes fail."""

            def __init__(self, file):
                self.write, self.flush = counting(file.write), file.flush

        atomic_files.HashingFile.__init__ = opened  # type: ignore[method-assign]

    return prologue


def sound(run: Path) -> list[str]:
    """What is wrong with the files of a run that have a checkpoint's name."""
    wrong = bad_tensors(run) if run.exists() else []
    return wrong + checkpoint_manifest.newest_intact(run).skipped if run.exists() else wrong


def faults(home: Path, rounds: int, seed: int = 0) -> dict:
    """Calls that fail; the figures."""
    draw = random.Random(seed)
    site = Site(home, "lm", ["--save-every", "2"], steps=12)
    site.reference()
    counts = {"rounds": 0, "ended": 0, "stopped with 5": 0, "damaged": 0, "few lines": 0, "identical": 0, "drafts": 0}
    problems: list[str] = []
    for turn in range(rounds):
        name = FAULTS[turn % len(FAULTS)]
        first = draw.randrange(1, 2000)
        last = first + draw.choice((0, 0, 300, 10**9))  # one call, a while, or for ever
        site.clear("round")
        code = site.ended(site.begin(prologue=failing(getattr(errno, name), first, last)))
        lines, wrong = site.complaints(), sound(site.run)
        drafts = [path.name for path in site.run.rglob(".*.partial")]
        counts["rounds"] += 1
        counts["ended"] += code == 0
        counts["stopped with 5"] += code == 5
        counts["damaged"] += len(wrong)
        counts["drafts"] += len(drafts)
        messages = [line for line in lines if line.startswith(("warning:", "error:"))]
        few = not any("Traceback" in line for line in lines) and (code == 0 or 0 < len(messages) <= LINES)
        counts["few lines"] += few
        what = f"{name} in calls {first} to {last}"
        print(what, code, messages, file=sys.stderr, flush=True)
        differ = site.went_on()
        counts["identical"] += not differ
        if code not in (0, 5) or wrong or drafts or not few or differ:
            problems.append(f"{what}: code {code}, {wrong}, {drafts}, {differ[:4]}: {chr(10).join(lines[-8:])}")
    return {**counts, "problems": problems}


class Small:
    """A file system of its own, of so many KiB, in a folder; needs root."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", folder], check=True)

    def __enter__(self) -> Small:
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)

    def fill(self) -> None:
        """To the last byte."""
        with (self.folder / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        """Again."""
        (self.folder / "filler").unlink()

    def read_only(self) -> None:
        """While no file in it is open."""
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)


def moments(*acts: tuple[int, Callable[[], None]]) -> Callable[[], None]:
    """A prologue that does things after so many batches."""

    def prologue() -> None:
        from zoo.training import checkpoint

        checkpoint.RETRY, wrapped, boundaries = 0.0, checkpoint.CheckpointSaver.on_batch_boundary, 0

        def hook(self, *args, **kwargs):
            nonlocal boundaries
            boundaries += 1
            for when, act in acts:
                if boundaries == when:
                    act()
            return wrapped(self, *args, **kwargs)

        checkpoint.CheckpointSaver.on_batch_boundary = hook

    return prologue


def mounted(home: Path) -> dict:
    """Small file systems; what each run ended with, and what was wrong."""
    result: dict[str, dict] = {}
    for name in ("freed", "stays full", "read-only", "too small", "TMPDIR full"):
        site = Site(home / name.replace(" ", "-"), "lm", ["--save-every", "2"], steps=12)
        site.reference()
        runs = site.home / "runs"
        site.clear("round")
        with Small(runs if name != "TMPDIR full" else site.home / "tmp", 64 if name == "too small" else 4096) as disk:
            acts = {
                "freed": [(5, disk.fill), (11, disk.free)],
                "stays full": [(5, disk.fill)],
            }.get(name, [])
            if name == "read-only":
                disk.read_only()
            if name == "TMPDIR full":
                disk.fill()
                os.environ["TMPDIR"] = str(disk.folder)
            code = site.ended(site.begin(prologue=moments(*acts)))
            os.environ.pop("TMPDIR", None)
            lines, wrong = site.complaints(), sound(site.run)
            step = next(
                iter(
                    [
                        checkpoint_manifest.verify(p)["step"]
                        for p in [checkpoint_manifest.newest_intact(site.run).path]
                        if p
                    ]
                ),
                None,
            )
            differ: list[str] | None = None
            if name == "stays full":
                disk.free()
            if name not in ("read-only", "too small"):
                differ = site.went_on()
            result[name] = {"code": code, "lines": lines[-LINES:], "damaged": wrong, "newest": step, "differs": differ}
            print(name, result[name], file=sys.stderr, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--mount", action="store_true")
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    if arguments.mount:
        print(json.dumps(mounted(home / "mounted"), indent=1))
    report = faults(home / "faults", arguments.rounds)
    print(json.dumps(report, indent=1))
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
