"""A long run: memory, files and threads must not grow.

    python -m tests.campaigns.chaos.soak --home DIR --steps 10000

Prints one JSON object: resident memory after warm-up (a tenth of the samples) and at the end, in MB, and the range of
open files and threads after it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PAGE = 4096


class Sample(NamedTuple):
    """What a process holds."""

    resident: float
    files: int
    threads: int


def sample(number: int) -> Sample | None:
    """Now; None where it has ended."""
    home = Path("/proc", str(number))
    try:
        resident = int((home / "statm").read_text().split()[1]) * PAGE / 2**20
        return Sample(resident, len(list((home / "fd").iterdir())), len(list((home / "task").iterdir())))
    except (OSError, IndexError):
        return None


def soak(words: list[str], home: Path, every: float) -> dict:
    """Run `zoo words` and watch it."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "soak.log").open("w") as log, (home / "samples.jsonl").open("w") as samples_file:
        command = [sys.executable, "-m", "zoo", *words]
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT)
        samples: list[Sample] = []
        while process.poll() is None:
            if (now := sample(process.pid)) and list(home.rglob("last.ckpt")):  # training has begun
                samples.append(now)
                samples_file.write(json.dumps(now._asdict()) + "\n")
                samples_file.flush()
            time.sleep(every)
    return {"code": process.returncode, "samples": len(samples), **figures(samples)}


def figures(samples: list[Sample]) -> dict:
    """Early against late, each the median of a tenth of the samples after the first tenth."""
    tenth = max(1, len(samples) // 10)
    early, late, after = samples[tenth : 2 * tenth], samples[-tenth:], samples[tenth:]
    before, now = (statistics.median(one.resident for one in part) for part in (early or samples, late))
    return {
        "resident_mb": [round(before, 1), round(now, 1)], "growth_percent": round(100 * (now / before - 1), 2),
        "files": sorted({one.files for one in after}), "threads": sorted({one.threads for one in after}),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    words = ["fit", "lm-tiny", "--trainer.max_steps", str(arguments.steps), "--save-every", "500", "--overwrite"]
    json.dump(soak(words, arguments.home.resolve(), 1.0), sys.stdout)
    print()


if __name__ == "__main__":
    main()
