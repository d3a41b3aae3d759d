"""A comparison of toy runs as a process of its own, to be killed; prints the titles of the runs that failed."""

import json
import sys
from pathlib import Path

from zoo.compare import execute
from zoo.compare.plan import take_shard

FAKE = Path(__file__).with_name("fake_fit.py")


def jobs(runs, variants="abc", seeds=(1, 2, 3)):
    return [
        execute.FitJob(f"{variant} s{seed}", Path(runs, "toy", variant, f"s{seed}"),
                    (f"--variant={variant}", f"--seed={seed}", f"--runs={runs}"))
        for seed in seeds for variant in variants
    ]  # fmt: skip


def how(**more):
    return execute.RunOptions(command=(sys.executable, str(FAKE)), report=lambda line: print(line, flush=True), **more)


if __name__ == "__main__":
    settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    shard = settings.pop("shard", None)
    mine = take_shard(jobs(sys.argv[1]), shard)
    sys.exit(1 if execute.execute(mine, how(**settings)) else 0)
