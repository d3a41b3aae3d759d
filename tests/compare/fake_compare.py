"""A comparison of toy runs as a process of its own, to be killed; prints the titles of the runs that failed.

It is started often: what imports numpy is imported where it is needed.
"""

import json
import sys
from pathlib import Path

from zoo.compare import parallel_runs

FAKE = Path(__file__).with_name("fake_fit.py")


def jobs(runs, variants="abc", seeds=(1, 2, 3)):
    return [
        parallel_runs.FitJob(f"{variant} s{seed}", Path(runs, "toy", variant, f"s{seed}"),
                    (f"--variant={variant}", f"--seed={seed}", f"--runs={runs}"))
        for seed in seeds for variant in variants
    ]  # fmt: skip


def how(**more):
    return parallel_runs.RunOptions(
        command=(sys.executable, str(FAKE)), report=lambda line: print(line, flush=True), **more
    )


if __name__ == "__main__":
    settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    mine, shard = jobs(sys.argv[1], **settings.pop("jobs_of", {})), settings.pop("shard", None)
    if shard:
        from zoo.compare.plan import take_shard

        mine = take_shard(mine, shard)
    name, _, address = settings.pop("executor", "").partition(":")
    if name:
        from zoo.compare.executor import Request, find_executor

        settings["executor"] = find_executor(name)
        settings["executor"].start(Request(settings["jobs"], address, trainer={"accelerator": "cpu"}))
    if gpus := settings.pop("gpus", None):
        parallel_runs.gpus_of_runs = lambda request: gpus
    failures = parallel_runs.execute(mine, how(**settings))
    if name:
        settings["executor"].stop()
    sys.exit(1 if failures else 0)
