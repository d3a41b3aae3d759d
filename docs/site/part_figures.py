"""Figures of each part on three tasks, and a scorecard of it: measured once, stored, and read by the site.

    python -m docs.site.part_figures                      # what is missing of all installed parts, for hours
    python -m docs.site.part_figures --only norm          # one kind of part
    python -m docs.site.part_figures --only norm rmsnorm  # one part, measured again

Each result is written as soon as it is there, so that the command can be stopped and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.registry import Part

FILE = Path(__file__).with_name("part_figures.json")
SEEDS, STEPS, PROBE_STEPS, WARM_UP = 3, 150, 100, 30
PROBED = tuple(kind for kind in registry.STACK_KINDS if kind != "backend")  # backends compute the same numbers
KINDS = (*PROBED, "backend", "optimizer", "schedule", "init")  # of parts that every task can train with
TASKS = {  # the recipe, and what makes it small
    "lm-tiny": ("--model.dim", "64", "--model.depth", "2"),
    "translation-tiny": ("--model.dim", "64", "--model.depth", "1", "--data.max_tokens", "512"),
    "vit-tiny": ("--model.dim", "32"),
}
VALIDATED = 4  # batches of the validation split


def main(arguments: list[str] | None = None) -> int:
    """Measure what is missing, and write it. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.site.part_figures", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="a kind, or a kind and a part, which is measured again"
    )
    parser.add_argument("--no-probe", action="store_true", help="leave the scorecards out")
    options = parser.parse_args(arguments)
    kind, name = [*(options.only or []), None, None][:2]
    stored = read()
    stored.setdefault("about", describe_machine())
    for part in selected_parts(kind, name):
        for key, measure in measurements(part, not options.no_probe):
            record = stored.setdefault("parts", {}).setdefault(part_key(part), {})
            if key not in record or name:
                start = time.process_time()
                record[key] = measure()
                write(stored)
                print(f"{part_key(part)} {key}: {record[key]} ({time.process_time() - start:.0f} s)", flush=True)
    return 0


def read() -> dict[str, Any]:
    """What is stored; empty where nothing is."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def write(stored: dict[str, Any]) -> None:
    """Store results, one part a line."""
    parts = ",\n".join(f"  {json.dumps(key)}: {json.dumps(stored['parts'][key])}" for key in sorted(stored["parts"]))
    FILE.write_text(f'{{"about": {json.dumps(stored["about"])},\n "parts": {{\n{parts}\n }}}}\n', encoding="utf-8")


def describe_machine() -> dict[str, str]:
    """When and where results were measured."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"date": date.today().isoformat(), "machine": (names or [platform.processor()])[0]}


def selected_parts(kind: str | None = None, name: str | None = None) -> list[Part]:
    """The installed parts to measure."""
    every = [part for one in KINDS if kind in (None, one) for part in registry.parts(one)]
    return [part for part in every if name is None or part.name.lower() == name.lower()]


def part_key(part: Part) -> str:
    """The name of a part in the file: kind, name and package."""
    return f"{part.kind} {part.name} {part.distribution}"


def measurements(part: Part, probe: bool = True) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The names of a part's measurements, and functions that make them."""
    for task in TASKS:
        yield task, lambda task=task: measure_task(part, task)
    if probe and part.kind in PROBED:
        yield "probe", lambda: measure_probe(part)


def measure_task(part: Part, recipe: str) -> dict[str, Any]:
    """Mean and standard deviation of the validation loss over seeds; or the sentence that refuses the part.

    Args:
        part: what replaces the recipe's own part of its kind.
        recipe: one of TASKS.
    """
    from zoo.errors import ZooError

    refusal = ""
    for more in ([], ["--model.position", "none"]):  # some attentions have positions of their own
        try:
            values = [train_once(part, recipe, seed, more) for seed in range(1, SEEDS + 1)]
        except (ZooError, RuntimeError, TypeError, NotImplementedError, ValueError) as error:
            refusal = refusal or " ".join(str(error).split())[:300]
            continue
        return {
            "mean": statistics.mean(values), "deviation": statistics.stdev(values), "seeds": SEEDS,
            **({"with": "position none"} if more else {}),
        }  # fmt: skip
    return {"refused": refusal}


@functools.cache
def shared_meter() -> Any:
    """What prepares data once for all runs."""
    from zoo.training.config_meter import ConfigMeter

    return ConfigMeter()


def train_once(part: Part, recipe: str, seed: int, more: list[str]) -> float:
    """The validation loss of one short run, in nats per token or image."""
    import torch
    from zoo_exercises.short_runs import train

    from zoo.config import data_sizes, fit_options, run_config
    from zoo.inference.rebuild_task import rebuild_task

    words, meter = TASKS[recipe], shared_meter()
    swap = [f"--model.{part.kind}", part.path]
    schedule = [] if part.kind == "schedule" else ["--model.schedule.warmup", str(WARM_UP)]
    command = fit_options.parse("fit", [recipe, *words, *more, *schedule, *swap])
    config = run_config.make_plan(command, run_config.read_draft(command)).config
    data = meter.data(config)
    data.seed = seed  # of the order
    torch.manual_seed(seed)
    model = config["model"]
    options = dict(model["init_args"])
    data_sizes.fill_sizes(meter.task_class(config), options, data.sizes(), getattr(data, "max_length", None))
    task = rebuild_task({"model": {"class_path": model["class_path"], "init_args": options}}, Path(recipe))
    train(task, data, STEPS)
    task.eval()
    with torch.no_grad():
        losses = [task.loss(batch) for batch in islice(data.val_dataloader(), VALIDATED)]
    return float(sum(one.total for one in losses) / sum(one.size for one in losses))


def measure_probe(part: Part) -> dict[str, Any]:
    """The scorecard of a small language model with a part; or the sentence that refuses it."""
    from zoo_exercises.probe_recipe import probe_recipe

    from zoo.errors import ZooError
    from zoo.explain.subjects import recipe_subject

    refusal = ""
    for position in ({}, {"model.position": "none"}):
        values = {**position, f"model.{part.kind}": part.path}
        try:
            subject = recipe_subject("lm-tiny", [(key, value, f"--{key} {value}") for key, value in values.items()])
            card = probe_recipe(subject, PROBE_STEPS)
        except (ZooError, RuntimeError, TypeError, NotImplementedError, ValueError) as error:
            refusal = refusal or " ".join(str(error).split())[:300]
            continue
        return {
            "steps": PROBE_STEPS,
            "scores": {one.task: [one.accuracy, one.longer, one.chance] for one in card.scores},
            "roles": sorted(role for head in card.heads for role in head.roles),
            "heads": len(card.heads),
            "ranks": [[one.layer, one.rank, one.most] for one in card.ranks],
            "gradients": [[one.layer, one.norm] for one in card.gradients],
            **({"with": "position none"} if position else {}),
        }
    return {"refused": refusal}


if __name__ == "__main__":
    raise SystemExit(main())
