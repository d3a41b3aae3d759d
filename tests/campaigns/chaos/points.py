"""A kill at each point of saving: before every link, rename and fsync, and in the middle of every write.

    python -m tests.campaigns.chaos.points --home DIR --each 20

Half of the kills are power cuts: what had not been forced to the disk is lost as well. A file without fsync is cut at
random, and of the renames and removals that no fsync of their folder follows a random number of the last is undone.
Prints one JSON object: the kills at each point, and how many runs ended as the undisturbed one.
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

from tests.campaigns.chaos import toys
from tests.campaigns.chaos.site import Site

LIVES = 5  # kills of one run
DRAFT = re.compile(r"^\.(.+)\.\d+\.partial$")


class Disk:
    """What a power cut would lose of the files below ``home``."""

    def __init__(self, home: Path, draw: random.Random) -> None:
        self.attic, self.draw = home / f".attic.{os.getpid()}", draw
        self.unforced: set[str] = set()  # files
        self.names: list[tuple[str, str, str]] = []  # renames and removals: from, to, what was there

    def keep(self, path: str) -> str:
        """A second name for what is about to be replaced or removed."""
        if not os.path.exists(path):
            return ""
        self.attic.mkdir(exist_ok=True)
        backup = str(self.attic / str(len(list(self.attic.iterdir()))))
        os.link(path, backup)
        return backup

    def forced(self, path: str) -> None:
        """A file, or the names in a folder."""
        self.unforced.discard(path)
        self.names = [one for one in self.names if os.path.dirname(one[1]) != path]

    def lose_power(self) -> None:
        """Lose it."""
        for path in self.unforced:
            if os.path.exists(path):
                os.truncate(path, self.draw.randrange(os.path.getsize(path) + 1))
        for _ in range(self.draw.randrange(len(self.names) + 1)):
            before, after, backup = self.names.pop()
            if before:
                os.replace(after, before)
            if backup:
                os.replace(backup, after)


def role(path: str | os.PathLike) -> str:
    """What a file of a run is to a checkpoint."""
    place = Path(path)
    if place.suffix == ".json" or (DRAFT.match(place.name) and ".json." in place.name):
        return "manifest" if place.parent.name == "manifests" else DRAFT.sub(r"\1", place.name)
    return DRAFT.sub(r"\1", place.name)


def watched(home: Path, draw: random.Random, at: Callable[[str], bool], power: bool = False) -> Callable[[], None]:
    """A prologue that asks ``at`` at each point by its name, and ends the process where it says so."""

    def prologue() -> None:
        from zoo.io import atomic_files

        disk, newest = Disk(home, draw), ""

        def end() -> None:
            if power:
                disk.lose_power()
            os.kill(os.getpid(), signal.SIGKILL)

        def passing(name: str) -> None:
            nonlocal newest
            if at(f"{name} after {newest}" if name == "fsync checkpoints" else name):
                end()
            newest = name

        write, fsync, replace, link, unlink = atomic_files.HashingFile.write, os.fsync, os.replace, os.link, Path.unlink

        def writing(self: atomic_files.HashingFile, content: bytes) -> int:
            disk.unforced.add(os.path.abspath(self.file.name))
            if at(f"write {role(self.file.name)}"):
                self.file.write(bytes(content)[: len(content) // 2])
                self.file.flush()
                end()
            return write(self, content)

        def forcing(handle: int) -> None:
            path = os.readlink(f"/proc/self/fd/{handle}")
            passing(f"fsync {role(path)}")
            fsync(handle)
            disk.forced(path)

        def renaming(before: str, after: str) -> None:
            passing(f"rename to {role(after)}")
            backup = disk.keep(str(after))
            replace(before, after)
            disk.names.append((os.path.abspath(before), os.path.abspath(after), backup))

        def linking(before: str, after: str) -> None:
            passing(f"link {role(after)}")
            link(before, after)

        def removing(self: Path, missing_ok: bool = False) -> None:
            if self.parent.name == "manifests" and self.suffix == ".json":
                passing("remove manifest")
                disk.names.append(("", os.path.abspath(self), disk.keep(str(self))))
            unlink(self, missing_ok)

        class Watched:
            """The module os, as zoo.io.atomic_files sees it."""

            fsync, replace, link = staticmethod(forcing), staticmethod(renaming), staticmethod(linking)

            def __getattr__(self, name: str) -> object:
                return getattr(os, name)

        atomic_files.os = Watched()  # type: ignore[attr-defined]
        atomic_files.HashingFile.write = writing  # type: ignore[method-assign]
        Path.unlink = removing  # type: ignore[method-assign]

    return prologue


def nth(name: str, number: int) -> Callable[[str], bool]:
    """Whether this is the so-manyeth time that a point is met."""
    countdown = number

    def at(passed: str) -> bool:
        nonlocal countdown
        countdown -= passed == name
        return countdown == 0 and passed == name

    return at


def met(site: Site, draw: random.Random) -> dict[str, int]:
    """How often an undisturbed run passes each point."""
    record = site.home / "points.txt"
    record.unlink(missing_ok=True)

    def at(name: str) -> bool:
        with record.open("a") as file:
            file.write(f"{name}\n")
        return False

    site.clear("points")
    assert site.ended(site.begin(prologue=watched(site.home, draw, at))) == 0, site.log_text()[-2000:]
    names = record.read_text().splitlines()
    return {name: names.count(name) for name in dict.fromkeys(names)}


def campaign(home: Path, each: int, seed: int = 0, only: str = "", minutes: float = 1e9) -> dict:
    """Kill so often at each point, a run up to ``LIVES`` times before it may end, while there is time; the figures."""
    until = time.monotonic() + 60 * minutes
    draw = random.Random(seed)
    site = Site(home, "lm", ["--save-every", "2"], steps=12)
    site.reference()
    passed = {name: times for name, times in met(site, draw).items() if only in name}
    pending = [(name, turn % 2 == 1) for name in passed for turn in range(each)]
    draw.shuffle(pending)
    counts = {name: {"kills": 0, "power cuts": 0} for name in passed}
    result = {"runs": 0, "identical": 0, "left": 0}
    problems: list[str] = []
    while pending and time.monotonic() < until:
        site.clear("round")
        died: list[str] = []
        code: int | None = -9
        while pending and code == -9 and len(died) < LIVES:
            name, power = pending.pop()
            at = nth(name, draw.randint(1, 1 + passed[name] // (2 if died else 1) // LIVES * 2))
            code = site.ended(site.begin("--requeue", prologue=watched(site.home, draw, at, power)))
            if code == -9:
                counts[name]["power cuts" if power else "kills"] += 1
                died.append(f"{name}{', power' if power else ''}")
            else:
                pending.insert(0, (name, power))
        if code == -9:
            code = site.ended(site.begin("--requeue"))
        result["runs"] += 1
        differ = toys.differences(toys.outcome(site.run), site.undisturbed) if code == 0 else [f"code {code}"]
        drafts = [path.name for path in site.run.rglob(".*.partial")]
        result["identical"] += not differ
        result["left"] += len(drafts)
        if differ or drafts:
            problems.append(f"{died}: {differ[:5]}, {drafts}: {site.log_text()[-300:]}")
            print(problems[-1], file=sys.stderr, flush=True)
        print(json.dumps({**result, "still to do": len(pending)}), file=sys.stderr, flush=True)
    return {**result, "not done": len(pending), "points": counts, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--only", default="", help="points whose name has this in it")
    parser.add_argument("--minutes", type=float, default=1e9)
    arguments = parser.parse_args()
    start = time.monotonic()
    report = campaign(arguments.home.resolve(), arguments.each, only=arguments.only, minutes=arguments.minutes)
    json.dump({**report, "seconds": round(time.monotonic() - start)}, sys.stdout, indent=1)
    print()
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
