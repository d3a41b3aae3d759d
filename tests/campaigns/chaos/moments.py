"""SIGTERM, SIGUSR1, SIGINT and SIGHUP at any moment from a process's start to its end, its first milliseconds too.

    python -m tests.campaigns.chaos.moments --home DIR --rounds 60
    python -m tests.campaigns.chaos.moments --home DIR --rounds 60 --processes 2

Every round starts `python -m zoo fit`, signals the first or the second process after a random time (a quarter of the
rounds in its first 20 ms), checks the exit code, goes on and compares the end with a run that nothing disturbed. The
first process has no handler before its first line of Python: there the operating system ends it. Prints a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.campaigns.chaos import worlds
from tests.campaigns.chaos.site import Site

ROOT = Path(__file__).parents[3]
CODES = {signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGINT: 130, signal.SIGHUP: 143}
FIRST_MOMENTS = 0.02  # seconds
PATIENCE = 900.0  # seconds until a life counts as hung, on a machine that has other work


def start(home: Path, words: list[str], log: Path) -> subprocess.Popen:
    """`python -m zoo` with these words as the leader of a process group."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "zoo", *words], cwd=home, env=env, stdout=file, stderr=file, process_group=0
        )


def further_process(process: subprocess.Popen) -> int | None:
    """The process that the first one starts, as soon as it exists; None where there is none before the end."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        try:
            for child in path.read_text().split():
                if "LOCAL_RANK=1" in Path(f"/proc/{child}/environ").read_text().split("\0"):
                    return int(child)
        except OSError:
            continue
    return None


def handles(pid: int, number: int) -> bool:
    """Whether a process handles, ignores or blocks a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    masks = {line[:6]: int(line.split()[1], 16) for line in status.splitlines() if line[:3] == "Sig" and line[3] != "Q"}
    return any(masks[name] >> (number - 1) & 1 for name in ("SigCgt", "SigIgn", "SigBlk"))


def wait(process: subprocess.Popen) -> int | None:
    """The exit code; None where the process hangs, and is killed."""
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def campaign(home: Path, rounds: int, seed: int = 0, processes: int = 1, task: str = "lm") -> dict:
    """The counts of so many rounds."""
    rng = random.Random(seed)
    site = Site(home, task, ["--save-every", "4"], processes)
    site.reference()
    start_time = time.monotonic()
    assert wait(start(home, [*site.words, "--name", "duration"], home / "duration.log")) == 0
    duration = time.monotonic() - start_time
    names = ("rounds", "with the documented code", "too late", "before the first line", "hung", "identical")
    counts = dict.fromkeys(names, 0)
    problems: list[str] = []
    for turn in range(rounds):
        site.clear(f"{processes}-{turn}")
        number = list(CODES)[turn % len(CODES)]
        second = processes > 1 and turn % 3 > 0
        delay = rng.uniform(0, FIRST_MOMENTS) if turn % 4 == 3 else rng.uniform(0, duration * (0.7 if second else 1.0))
        process = start(home, site.words, site.log)
        target = further_process(process) if second else process.pid
        time.sleep(delay)
        sent = target is not None and process.poll() is None
        handled = not sent or handles(target, number)
        if sent:
            try:
                os.kill(target, number)
            except ProcessLookupError:
                sent = False
        code = wait(process)
        has_survivors = worlds.emptied(process.pid, 30.0) is None
        what = f"round {turn} ({number.name} to the {'second' if second else 'first'} process after {delay:.3f} s)"
        counts["rounds"] += 1
        counts["hung"] += code is None or has_survivors
        counts["with the documented code"] += code == CODES[number]
        counts["too late"] += code == 0
        early = not handled and not second and code == -number
        counts["before the first line"] += early
        if (code not in (0, CODES[number]) and not early) or has_survivors:
            problems.append(f"{what}: code {code}, {has_survivors=}: {site.log_text()[-500:]}")
        if "Traceback" in site.log_text() and not early:
            problems.append(f"{what}: a traceback: {site.log_text()[-1500:]}")
        print(what, code, site.log_text().strip().rpartition("\n")[2], file=sys.stderr, flush=True)
        differ = site.went_on()
        counts["identical"] += not differ
        if differ:
            problems.append(f"{what}: differs in {differ[:5]}")
    return {**counts, "seconds of a run": round(duration, 1), "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = campaign(options.home.resolve(), options.rounds, options.seed, options.processes)
    json.dump(counts, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
