"""Which parts can be combined: every combination is built and trained for two steps.

A cell is what became of one combination in one task: it trains, it is refused by a sentence when it is built, or it is
broken, which is a fault of a part or of zoo.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from zoo import registry
from zoo.conformance.check import describe_error
from zoo.conformance.short_training import training_fault
from zoo.errors import UsageError, ZooError
from zoo.models.layer_overrides import Override
from zoo.plugins.description import describe
from zoo.registry import Part
from zoo.tasks.task import Task

STEPS = 2
PATIENCE = 32  # steps until every weight must have moved: an expert of a mixture has waited 24 for its first token
ROWS = 12
SIZES: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "hidden": 24}
COST_SIZES: dict[str, Any] = {"dim": 64, "depth": 1, "heads": 4}
OPTIONS: dict[str, dict[str, Any]] = {
    # a class token stands outside of the grid. In the last layer it alone counts, and nothing is at a distance from it
    "Classification": {"patch_size": 4, "pool": "cls", "depth": 2},
}
MIXING = ("position", "attention", "backend")
COMPUTING = ("norm", "ffn", "block")

Status = Literal["trains", "refused", "BROKEN"]


@dataclass(frozen=True)
class CombinationOutcome:
    """What became of one combination, and the sentence where it does not train."""

    status: Status
    sentence: str = ""

    def __str__(self) -> str:
        return f"{self.status}: {self.sentence}" if self.sentence else self.status


TRAINS = CombinationOutcome("trains")


@dataclass(frozen=True)
class Cell:
    """One combination of parts, None for the kinds left to their default, in one task."""

    task: str
    parts: tuple[Part | None, ...]
    verdict: CombinationOutcome


def import_classes(part: Part) -> Any:
    """The class of a part, or a sentence where it cannot be imported."""
    try:
        return part.load()
    except ZooError as error:
        return str(error).partition("\n")[0]


def tasks() -> dict[str, Any]:
    """The installed tasks, by name, whose network takes every kind of part, and that give a batch to try it with.

    Of tasks that ask the same of a stack one is enough: the others say that they are not ``in_matrix``.
    """
    wide = [
        part for part in registry.parts("task") if {*MIXING, *COMPUTING} <= {o.name for o in describe(part).options}
    ]
    classes = {part.name: import_classes(part) for part in wide}
    return {
        name: task
        for name, task in classes.items()
        if getattr(task, "sample", None) is not Task.sample and getattr(task, "in_matrix", True)
    }


def attempt(task: Any, parts: Mapping[str, Any]) -> CombinationOutcome:
    """Build a task of these classes, one for each kind that is named, and train it for a few steps.

    A text stands for a class that cannot be imported: why.
    """
    if absent := [problem for problem in (task, *parts.values()) if isinstance(problem, str)]:
        return CombinationOutcome("BROKEN", absent[0])
    options = SIZES | OPTIONS.get(task.__name__, {}) | dict(parts)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        try:
            module: Any = task(**task.small_sizes(options), **options)
        except UsageError as refusal:
            return CombinationOutcome("refused", str(refusal))
        except (Exception, SystemExit) as error:  # a part of a plugin may raise anything
            return CombinationOutcome("BROKEN", f"{describe_error(error)}, while it is built")
        try:
            complaint = fault(module)
        except (Exception, SystemExit) as error:
            complaint = f"{describe_error(error)}, in training"
    return CombinationOutcome("BROKEN", complaint) if complaint else TRAINS


def fault(task: Task) -> str:
    """What is wrong with the gradients and weights of a task in its first steps, or nothing."""

    def loss() -> Tensor:
        total, size = task.loss(task.sample(ROWS))
        return total / size

    trained = {name: parameter for name, parameter in task.train().named_parameters() if parameter.requires_grad}
    # without decay, which would move what has no gradient
    return training_fault(task, loss, trained, STEPS, PATIENCE, decay=0.0)


def cost_in_stack(kind: str, cls: type) -> dict[str, list[float]] | None:
    """Parameters, and forward FLOPs per token, of a language model of one layer: with the part, and by default.

    None for kinds that are no part of a stack.
    """
    if kind not in registry.STACK_KINDS:
        return None
    from zoo.tasks.lm import CausalLM
    from zoo.training.model_cost import cost

    sizes: dict[str, Any] = {"vocab_size": 64, "max_length": 64, **COST_SIZES}
    costs = [cost(CausalLM(**sizes, **parts)) for parts in ({kind: cls}, {})]  # type: ignore[arg-type]
    return {"parameters": [estimate.parameters for estimate in costs], "flops": [estimate.flops for estimate in costs]}


def partners(kind: str, cls: type) -> list[dict[str, str]]:
    """What became of a part with every installed part of the other kinds of a stack, in a language model."""
    if kind not in registry.STACK_KINDS:
        return []
    from zoo.tasks.lm import CausalLM

    results = []
    for part in (part for name in registry.STACK_KINDS if name != kind for part in registry.parts(name)):
        verdict = attempt(CausalLM, {kind: cls, part.kind: import_classes(part)})
        results.append({"kind": part.kind, "name": part.name, "status": verdict.status, "sentence": verdict.sentence})
    return results


def layer_cells() -> Iterator[Cell]:
    """Every installed part of every kind as that of the first layer of two, in every task, all else by default."""
    everywhere = tasks()
    for kind in (*MIXING, *COMPUTING):
        for part in registry.parts(kind):
            loaded = import_classes(part)
            for name, task in everywhere.items():
                first = loaded if isinstance(loaded, str) else [Override(layers="first", **{kind: loaded})]
                yield Cell(name, (part,), attempt(task, {"depth": 2, "overrides": first}))


def cells(kinds: Iterable[str]) -> Iterator[Cell]:
    """Every combination of the installed parts of these kinds in every task, all else by default.

    An attention may choose its backend itself, so "backend" has one choice more: none.
    """
    kinds, everywhere = tuple(kinds), tasks()
    choices: list[list[Part | None]] = [
        [*([None] if kind == "backend" else []), *registry.parts(kind)] for kind in kinds
    ]
    loaded = {part: import_classes(part) for choice in choices for part in choice if part}
    for combination in itertools.product(*choices):
        classes = {kind: loaded[part] for kind, part in zip(kinds, combination, strict=True) if part}
        for name, task in everywhere.items():
            yield Cell(name, combination, attempt(task, classes))
