"""Checks that train a part for a few steps in each of the three tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zoo.conformance.check import Inapplicable, in_situations, once, require
from zoo.conformance.subject import DIM, HEADS, HIDDEN, Subject
from zoo.errors import UsageError
from zoo.parts.ffn import aux_losses
from zoo.parts.position import Sinusoidal
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Task
from zoo.tasks.translation import Translation

WORDS = 19
STEPS = 4  # the first may open a gain that starts at zero in a decoder, the second one in its encoder


def steps(subject: Subject, task: Callable[..., Task], sizes: dict[str, Any], batch: dict[str, Any]) -> None:
    """A few optimiser steps on one batch. Raises Inapplicable where the task's model refuses the part."""
    slot = {subject.kind: subject.factory}
    refusal = None
    for others in ({}, {"position": Sinusoidal}):
        try:
            module: Any = task(**sizes, dim=DIM, depth=1, heads=HEADS, hidden=HIDDEN, **others | slot)
        except UsageError as error:
            refusal = refusal or error
        else:
            train(module.train(), batch, type(module).__name__)
            return
    raise Inapplicable(f"it refuses: {refusal}")


def train(module: Task, batch: dict[str, Any], where: str, may_freeze: bool = False) -> None:
    """A few optimiser steps of a task. Raises Broken unless everything is finite and every parameter moves; with
    ``may_freeze``, every one that the task has not frozen.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad or not may_freeze}
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimiser = torch.optim.AdamW(trained.values(), lr=1e-2)
    for _ in range(STEPS):
        total, size = module.loss(batch)
        loss = total / size + sum(aux_losses(module.net))
        require(bool(loss.isfinite()), f"in {where} the loss is {loss.item()}.")
        optimiser.zero_grad()
        loss.backward()
        bad = [n for n, p in trained.items() if p.grad is None or not p.grad.isfinite().all()]
        require(not bad, f"in {where} no finite gradient reaches {', '.join(bad[:3])}.")
        optimiser.step()
    still = [name for name, parameter in trained.items() if torch.equal(parameter, before[name])]
    hint = "where does it start with a gradient of zero, as the second of two zero matrices does?"
    require(not still, f"in {where} {STEPS} steps do not move {', '.join(still[:3])}: {hint}")


@in_situations("options")
def trains_language(subject: Subject) -> None:
    """A causal language model with it trains: finite loss and gradients, every parameter moves."""
    tokens = torch.randint(WORDS, (8, 13))
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    steps(subject, CausalLM, {"vocab_size": WORDS, "max_length": 16}, batch)


@in_situations("options")
def trains_translation(subject: Subject) -> None:
    """A translation model with it trains on padded batches: finite loss and gradients, every parameter moves."""
    source, target = torch.randint(WORDS, (9, 7)), torch.randint(WORDS, (9, 6))
    batch = {
        "source": source, "source_valid": torch.arange(7) < torch.tensor([[7], [2], [5]] * 3),
        "target": target, "target_valid": torch.arange(6) < torch.tensor([[3], [6], [4]] * 3),
    }  # fmt: skip
    sizes = {"source_vocab_size": WORDS, "target_vocab_size": WORDS, "max_length": 16}
    steps(subject, Translation, sizes, batch)


@in_situations("options")
def trains_vision(subject: Subject) -> None:
    """A vision model with it trains: finite loss and gradients, every parameter moves."""
    batch = {"images": torch.randn(8, 1, 12, 12), "labels": torch.randint(5, (8,))}
    steps(subject, Classification, {"num_classes": 5, "image_size": 12, "channels": 1, "patch_size": 4}, batch)


@once
def fits_somewhere(subject: Subject) -> None:
    """At least one of the three tasks takes it."""
    refusals = []
    for trains in (trains_language, trains_translation, trains_vision):
        try:
            trains(subject)
            return
        except Inapplicable as refusal:
            refusals.append(str(refusal))
    require(False, f"no task takes it: {refusals[0]}")


TASKS = [fits_somewhere, trains_language, trains_translation, trains_vision]
