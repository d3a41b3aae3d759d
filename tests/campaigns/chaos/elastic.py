"""A run goes on with another number of processes, or by another strategy, with the same global batches.

    python -m tests.campaigns.chaos.elastic --home DIR
    python -m tests.campaigns.chaos.elastic --home DIR --strategy fsdp2 --save async --moments mid-accumulation

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


World = tuple[str, int]  # a strategy, and how many processes


def directions(strategy: str) -> list[tuple[World, World]]:
    """From which processes to which; a strategy other than ddp is also changed to that, and to more processes."""
    pairs: list[tuple[World, World]] = [((strategy, 2), (strategy, 1)), ((strategy, 1), (strategy, 2))]
    if strategy == "tp":  # with two heads
        pairs += [((strategy, 2), ("ddp", 2)), (("ddp", 2), (strategy, 2))]
    elif strategy != "ddp":
        pairs += [(before, after) for a, b in (((strategy, 2), (strategy, 4)), ((strategy, 2), ("ddp", 2)))
                  for before, after in ((a, b), (b, a))]  # fmt: skip
    return pairs


def recipe_options(strategy: str, processes: int, save: str = "whole") -> list[str]:
    """The options by which so many processes share the same batches; only strategies of shares save otherwise."""
    return [
        *("--data.batch_size", str(ROWS if strategy == "tp" else ROWS // processes)),
        *("--trainer.devices", str(processes)),
        *(("--trainer.strategy", strategy) if processes > 1 else ()),
        *(("--save", save) if processes > 1 and strategy != "ddp" else ()),
    ]


def curve(run: Path) -> dict[tuple[str, int], float]:
    """Every logged loss by its name and step."""
    return {
        (name, step): value for name, values in toys.scalars(run).items() if "loss" in name for step, value in values
    }


def campaign(
    home: Path,
    strategy: str = "ddp",
    moments: tuple[str, ...] = MOMENTS,
    tasks: tuple[str, ...] = ("lm",),
    save: str = "whole",
    precision: str = "",
) -> dict:
    """Every direction at each moment."""
    result: dict[str, float] = {}
    problems: list[str] = []
    common = ["--save-every", "3", "--model.dropout", "0", "--trainer.limit_train_batches", "8"]
    common += ["--trainer.precision", precision] if precision else []
    for task in tasks:
        site = Site(home, task, common, steps=12)
        code = site.ended(site.begin("--runs", "reference", *recipe_options("ddp", 1)))
        assert code == 0, site.log_text()[-2000:]
        whole = curve(home / f"reference/{task}/default/s1")
        for before, after in directions(strategy):
            for moment in moments:
                name = f"{task}, {before[0]} × {before[1]} → {after[0]} × {after[1]}, {moment}"
                site.clear(name.replace(" ", ""))
                code = site.ended(
                    site.begin(*recipe_options(*before, save), prologue=at(moment, signal.SIGTERM), processes=before[1])
                )
                worlds.emptied(site.child, 10.0)
                # the batch of each process is another one with another number of them, which is a change of the recipe
                changes = recipe_options(*before)[1] != recipe_options(*after)[1]
                accept = ["--accept-changes"] if changes else []
                ended = site.ended(site.begin(*recipe_options(*after, save), "--resume", *accept, processes=after[1]))
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
    parser.add_argument("--strategy", default="ddp", help="of several processes")
    parser.add_argument("--moments", nargs="+", choices=MOMENTS, default=MOMENTS)
    parser.add_argument("--save", default="whole", help="how strategies other than ddp save")
    parser.add_argument("--precision", default="", help="64-true shows what is more than rounding")
    arguments = parser.parse_args()
    report = campaign(
        arguments.home.resolve(),
        arguments.strategy,
        tuple(arguments.moments),
        save=arguments.save,
        precision=arguments.precision,
    )
    json.dump(report, sys.stdout, indent=1, ensure_ascii=False)
    print()
    raise SystemExit(bool(report["problems"]))


if __name__ == "__main__":
    main()
