"""A run saved by two processes goes on with one, and the reverse, with the same global batches.

    python -m tests.campaigns.chaos.elastic --home DIR

Without dropout, whose chance belongs to a process. Prints one JSON object: per direction and moment the largest
relative difference of any logged loss from that of a run that keeps its number of processes.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.campaigns.chaos import toys, worlds
from tests.campaigns.chaos.resumes import at
from tests.campaigns.chaos.site import Site

ROWS = 8  # of a global batch
MOMENTS = ("mid-epoch", "mid-accumulation", "epoch end", "mid-validation")


def recipe_options(processes: int) -> list[str]:
    """The options by which so many processes share the same batches."""
    return [
        *("--data.batch_size", str(ROWS // processes), "--trainer.devices", str(processes)),
        *(("--trainer.strategy", "ddp") if processes > 1 else ()),
    ]


def curve(run: Path) -> dict[tuple[str, int], float]:
    """Every logged loss by its name and step."""
    return {
        (name, step): value for name, values in toys.scalars(run).items() if "loss" in name for step, value in values
    }


def campaign(home: Path, tasks: tuple[str, ...] = ("lm",)) -> dict:
    """Both directions at each moment."""
    result: dict[str, float] = {}
    problems: list[str] = []
    common = ["--save-every", "3", "--model.dropout", "0", "--trainer.limit_train_batches", "8"]
    for task in tasks:
        site = Site(home, task, common, steps=12)
        code = site.ended(site.begin("--runs", "reference", *recipe_options(1)))
        assert code == 0, site.log_text()[-2000:]
        whole = curve(home / f"reference/{task}/default/s1")
        for before, after in ((2, 1), (1, 2)):
            for moment in MOMENTS:
                site.clear(f"{task}-{before}-{after}-{moment.replace(' ', '-')}")
                code = site.ended(
                    site.begin(*recipe_options(before), prologue=at(moment, signal.SIGTERM), processes=before)
                )
                worlds.emptied(site.child, 10.0)
                ended = site.ended(site.begin(*recipe_options(after), "--resume", "--accept-changes", processes=after))
                name = f"{task}, {before} → {after}, {moment}"
                if (code, ended) != (143, 0):
                    problems.append(f"{name}: codes {code} and {ended}: {site.log_text()[-500:]}")
                    continue
                here = curve(site.run)
                if set(here) != set(whole):
                    problems.append(f"{name}: logged at other steps: {sorted(set(here) ^ set(whole))[:5]}")
                gaps = [abs(here[key] - whole[key]) / abs(whole[key]) for key in set(here) & set(whole)]
                result[name] = max(gaps)
                print(name, result[name], file=sys.stderr, flush=True)
                if result[name] > 1e-5:
                    problems.append(f"{name}: {result[name]}")
    return {"largest": max(result.values(), default=None), **result, "problems": problems}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    report = campaign(arguments.home.resolve())
    json.dump(report, sys.stdout, indent=1, ensure_ascii=False)
    print()
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
