"""A few training steps in a model of each of the three tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from zoo.conformance.check import Inapplicable, in_situations, once, require
from zoo.conformance.subject import DIM, HEADS, HIDDEN, Subject
from zoo.errors import UsageError
from zoo.models.language import LanguageModel
from zoo.models.loss import IGNORED
from zoo.models.seq2seq import Seq2Seq
from zoo.models.vit import ViT
from zoo.parts.ffn import aux_losses
from zoo.parts.packing import Packing
from zoo.parts.position import Sinusoidal

WORDS = 19
STEPS = 4  # the first may open a gain that starts at zero in a decoder, the second one in its encoder


def steps(subject: Subject, model: Callable[..., nn.Module], sizes: tuple, loss: Callable[[Any], Tensor]) -> None:
    """A few optimiser steps by the loss () of a model. Raises Inapplicable where the model refuses the part."""
    refusal = None
    for others in ({}, {"position": Sinusoidal}):
        try:
            net = model(
                *sizes, dim=DIM, depth=1, heads=HEADS, hidden=HIDDEN, **others | {subject.kind: subject.factory}
            )
        except UsageError as error:
            refusal = refusal or error
        else:
            train(net.train(), partial(loss, net), type(net).__name__)
            return
    raise Inapplicable(f"it refuses: {refusal}")


def train(module: nn.Module, loss_now: Callable[[], Tensor], where: str, may_freeze: bool = False) -> None:
    """A few optimiser steps of a module by the loss () that a function computes. Raises Broken unless everything is
    finite and every parameter moves; with ``may_freeze``, every one that is not frozen.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad or not may_freeze}
    fault = training_fault(module, loss_now, trained, STEPS, STEPS)
    hint = ": where does it start with a gradient of zero, as the second of two zero matrices does?"
    if frozen := [name for name, parameter in trained.items() if not parameter.requires_grad]:
        hint = f": {some(frozen)} is frozen (requires_grad=False). Register as a buffer what does not learn."
    require(not fault, f"in {where} {fault}{hint if frozen or 'do not move' in fault else '.'}")


def training_fault(
    module: nn.Module, loss_now: Callable[[], Tensor], trained: dict[str, nn.Parameter], least: int, most: int,
    decay: float = 0.01,
) -> str:  # fmt: skip
    """What is wrong with the first steps of AdamW by the loss () that a function computes, or nothing.

    Loss and gradients of ``trained``, parameters by name, are to be finite, and all of these are to move within
    ``most`` steps, of which ``least`` are made.
    """
    still = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimiser = torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=decay)
    for step in range(1, most + 1):
        loss = loss_now() + sum(aux_losses(module))
        if not loss.isfinite():
            return f"the loss is {loss.item()}"
        optimiser.zero_grad()
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in trained.items()}
        if missing := [name for name, grad in gradients.items() if grad is None]:
            return f"no gradient reaches {some(missing)}"
        if wild := [name for name, grad in gradients.items() if grad is not None and not grad.isfinite().all()]:
            return f"the gradient is not finite in {some(wild)}"
        optimiser.step()
        still = {name: start for name, start in still.items() if torch.equal(trained[name], start)}
        if step >= least and not still:
            return ""
    return f"{most} steps do not move {some(list(still))}"


def some(names: list[str]) -> str:
    """The first of many names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def loss_of_language_falls(least: float, lr: float, **options: Any) -> None:
    """Train a small causal language model for 30 steps, as a recipe does. Raises Broken unless its loss on one batch
    falls by ``least``.
    """
    from zoo.tasks.lm import CausalLM  # it imports Lightning

    sizes = {"dim": 32, "depth": 2, "heads": 2, "hidden": 48}
    task = CausalLM(vocab_size=WORDS, max_length=16, lr=lr, **sizes | options).train()
    losses = learn_tokens(task, torch.randint(WORDS, (8, 13)), 30)
    fell = losses[-1] < losses[0] - least
    require(fell, f"30 steps of lr {lr:g} take the loss from {losses[0]:.3f} to {losses[-1]:.3f}.")


def learn_tokens(task: Any, tokens: Tensor, steps: int) -> list[float]:
    """The losses of a language task in steps of its own optimizer on tokens (B, T + 1)."""
    optimizer, losses = task.make_optimizer(), []
    for _ in range(steps):
        total, size = task.loss({"inputs": tokens[:, :-1], "targets": tokens[:, 1:]})
        optimizer.zero_grad()
        (total / size).backward()
        optimizer.step()
        losses.append(float(total.detach() / size))
    return losses


@in_situations("options")
def trains_language(subject: Subject) -> None:
    """A causal language model with it trains: finite loss and gradients, every parameter moves."""
    tokens = torch.randint(WORDS, (8, 13))

    def loss(net: LanguageModel) -> Tensor:
        return cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    steps(subject, LanguageModel, (WORDS, 16), loss)


@in_situations("options")
def trains_translation(subject: Subject) -> None:
    """A translation model with it trains on packed batches: finite loss and gradients, every parameter moves."""
    source, target = torch.randint(WORDS, (9, 7)), torch.randint(WORDS, (9, 6))
    source_valid = torch.arange(7) < torch.tensor([[7], [2], [5]] * 3)
    packing = Packing(torch.arange(5) < torch.tensor([[2], [5], [3]] * 3))
    targets = packing.pack(target[:, 1:], IGNORED).flatten()

    def loss(net: Seq2Seq) -> Tensor:
        states = net.states(source, target[:, :-1], source_valid, packing)
        return cross_entropy((states @ net.output.mT).flatten(0, 1), targets, ignore_index=IGNORED)

    steps(subject, Seq2Seq, (WORDS, WORDS, 16), loss)


@in_situations("options")
def trains_vision(subject: Subject) -> None:
    """A vision model with it trains: finite loss and gradients, every parameter moves."""
    images, labels = torch.randn(8, 1, 12, 12), torch.randint(5, (8,))
    steps(subject, ViT, (5, 12, 1, 4), lambda net: cross_entropy(net(images), labels))


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
