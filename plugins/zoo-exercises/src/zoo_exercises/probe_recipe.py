"""The scorecard of a recipe's parts: small models with these parts are trained on the synthetic tasks and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from zoo import registry
from zoo.errors import UsageError
from zoo.explain.subjects import Subject
from zoo.inference.rebuild_task import rebuild_task
from zoo.tasks.task import Task
from zoo_exercises.probe import SEED, Scorecard, examine, score_task
from zoo_exercises.short_runs import train
from zoo_exercises.synthetic import Copying, Induction, MultiQueryRecall, Parity, SyntheticData

STEPS, TEXTS, EVALUATED = 300, 32, 128  # of a training; per batch; of each length in validation
RATES = (3e-3, 1e-2)  # peak learning rates, of which the better accuracy counts
WIDEST, DEEPEST = 64, 2  # of the models
PARTS = (*registry.STACK_KINDS, "window", "overrides", "embedding_norm", "init")
TASKS: dict[str, tuple[type[SyntheticData], dict[str, int]]] = {
    "recall": (MultiQueryRecall, {"pairs": 8, "vocab_size": 32}),
    "copying": (Copying, {}),
    "induction": (Induction, {}),
    "parity": (Parity, {}),
}
OPTIMIZER = {"class_path": "torch.optim.AdamW", "init_args": {"betas": [0.9, 0.99], "weight_decay": 0.1}}
SCHEDULE = {"class_path": "zoo.tasks.schedule.Cosine", "init_args": {"warmup": 40, "floor": 0.05}}


def probe_recipe(
    subject: Subject,
    steps: int = STEPS,
    allow: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> Scorecard:
    """The scorecard of the parts of a recipe, in causal models that are trained for ``steps`` steps on each task.

    What is inside is that of the model of induction. Raises UsageError for parts that no language model can have.
    """
    options, notes = small_model(subject.config["model"].get("init_args") or {})
    sizes = ", ".join(f"{key} {options[key]}" for key in ("dim", "depth", "heads"))
    model = (
        f"CausalLM of {sizes} with the parts of the recipe, trained on each task for {steps} steps of {TEXTS} texts "
        f"at peak learning rates {RATES[0]:g} and {RATES[1]:g}: the better one counts"
    )
    card = Scorecard(subject.title, model, "validation texts of induction, with the model of that task", notes=notes)
    for name, (data_class, data_options) in TASKS.items():
        data = data_class(**data_options, batch_size=TEXTS, eval_size=EVALUATED, seed=SEED)
        data.ready()
        trained = [train_once(options, data, rate, steps, allow) for rate in RATES]
        scores = [score_task(name, task, data) for task in trained]
        best = max(range(len(RATES)), key=lambda number: scores[number].accuracy)
        card.scores.append(scores[best])
        progress(f"{name}: {scores[best].accuracy:.2f}")
        if name == "induction":
            examine(trained[best].eval(), next(iter(data.val_dataloader())), card)
    return card


def small_model(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options of a small language model with the parts that ``options`` of another name; and notes about them."""
    heads, depth = int(options.get("heads") or 8), min(int(options.get("depth") or 6), DEEPEST)
    even = 2 * heads  # rotary positions turn pairs of numbers of a head
    dim = max(even, min(int(options.get("dim") or 512), max(WIDEST, 8 * heads)) // even * even)
    parts = {name: options[name] for name in PARTS if options.get(name) is not None}
    notes = []
    if "overrides" in parts and depth != int(options.get("depth") or 6):
        notes.append(f"the overrides of single layers are left out: the model has {depth} layers")
        del parts["overrides"]
    return {**parts, "dim": dim, "depth": depth, "heads": heads}, notes


def train_once(
    options: Mapping[str, Any], data: SyntheticData, rate: float, steps: int, allow: tuple[str, ...] = ()
) -> Task:
    """A language model with the options, trained on data. Raises UsageError where it cannot have these parts."""
    init_args = {**options, **data.sizes(), "lr": rate, "optimizer": OPTIMIZER, "schedule": SCHEDULE}
    source = Path(f"a small model for {type(data).__name__}")
    task = rebuild_task({"model": {"class_path": "zoo.tasks.lm.CausalLM", "init_args": init_args}}, source, allow)
    try:
        with torch.random.fork_rng([]):
            torch.manual_seed(SEED)
            train(task, data, steps)
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(
            f"{source} with these parts cannot be trained: {' '.join(str(error).split())[:200]}"
        ) from error
    return task
