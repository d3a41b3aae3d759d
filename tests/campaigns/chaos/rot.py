"""Bits that flip and files that end early: each is noticed, and the newest intact checkpoint is used instead.

    python -m tests.campaigns.chaos.rot RUN --flips 400 --truncations 200

Works on a copy of a run's checkpoints. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from zoo.errors import CheckpointError
from zoo.io import checkpoint_manifest


def campaign(run: Path, flips: int, truncations: int, seed: int = 0) -> dict[str, int]:
    """Damage the newest checkpoint, or its manifest every tenth time, and look what is found."""
    draw = random.Random(seed)
    counts = {"damaged": 0, "noticed": 0, "fallback used": 0}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "checkpoints")
        shutil.copytree(run / "checkpoints", home, ignore=shutil.ignore_patterns("best.ckpt"))
        last, previous = home / "last.ckpt", home / "previous.ckpt"
        described = home / checkpoint_manifest.FOLDER / f"{checkpoint_manifest.sha256(last)}.json"
        for turn in range(flips + truncations):
            path = described if turn % 10 == 9 else last
            whole = path.read_bytes()
            if turn < flips:
                broken = bytearray(whole)
                broken[draw.randrange(len(broken))] ^= 1 << draw.randrange(8)
            else:
                broken = bytearray(whole[: draw.randrange(len(whole))])
            path.write_bytes(broken)
            counts["damaged"] += 1
            try:
                checkpoint_manifest.verify(last)
            except CheckpointError:
                counts["noticed"] += 1
            newest = checkpoint_manifest.newest_intact(home)
            counts["fallback used"] += newest.path == previous and len(newest.skipped) == 1
            path.write_bytes(whole)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--truncations", type=int, default=200)
    arguments = parser.parse_args()
    json.dump(campaign(arguments.run, arguments.flips, arguments.truncations), sys.stdout)
    print()


if __name__ == "__main__":
    main()
