"""A run that is resumed with another optimizer, rate or schedule than its checkpoint's: those of now hold.

An optimiser's state has its options besides its moments, and loading it would bring back the options of before.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from zoo.errors import UsageError


def keep_options(optimizers: Sequence[Optimizer], schedulers: Sequence[Any], checkpoint: dict[str, Any]) -> list[str]:
    """Change a checkpoint of Lightning so that loading it leaves options, rates and schedules as they are.

    Moments are still those of the checkpoint, unless the optimiser keeps others. Returns sentences about optimisers
    that begin anew. Schedulers of other classes than LambdaLR keep their state of the checkpoint.
    """
    sentences = []
    states = checkpoint.get("optimizer_states", [])
    for number, (optimizer, saved) in enumerate(zip(optimizers, states, strict=False)):
        states[number], anew = with_options_of(optimizer, saved)
        if anew:
            sentences.append(
                f"the moments of {type(optimizer).__name__} start anew: those of the checkpoint do not fit"
            )
    for scheduler, saved in zip(schedulers, checkpoint.get("lr_schedulers", []), strict=False):
        if isinstance(scheduler, LambdaLR):
            step = saved["last_epoch"]
            factors = [factor(step) for factor in scheduler.lr_lambdas]
            rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
            counts = {name: saved[name] for name in ("last_epoch", "_step_count") if name in saved}
            saved.clear()
            saved.update({**scheduler.state_dict(), **counts, "_last_lr": rates})
            for optimizer, state in zip(optimizers, states, strict=False):
                if scheduler.optimizer is optimizer:
                    for group, rate in zip(state["param_groups"], rates, strict=True):
                        group["lr"] = rate
    return sentences


def check_groups(optimizers: Sequence[Optimizer], checkpoint: dict[str, Any]) -> None:
    """Raise UsageError where a checkpoint has other groups of parameters than the optimizers."""
    for optimizer, saved in zip(optimizers, checkpoint.get("optimizer_states", []), strict=False):
        groups = [(len(group["params"]), group.get("param_names")) for group in optimizer.param_groups]
        saved_groups = [(len(group["params"]), group.get("param_names")) for group in saved["param_groups"]]
        if groups != saved_groups and all(names for _, names in saved_groups):
            raise UsageError(
                f"the checkpoint has other groups of parameters for {type(optimizer).__name__} than this version "
                "makes: it cannot go on. Train further from its weights instead: zoo fit … --tune.start RUN"
            )


def with_options_of(optimizer: Optimizer, saved: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A saved state with the options that ``optimizer`` has now, and whether its moments had to be left out."""
    now = optimizer.state_dict()
    counters = counters_of(optimizer, saved)
    if counters is None:
        return {**now, "state": {}}, True
    groups = [
        {**copy.deepcopy(group), **{name: old[name] for name in counters & old.keys()}}
        for group, old in zip(now["param_groups"], saved["param_groups"], strict=True)
    ]
    return {**saved, "param_groups": groups}, False


def counters_of(optimizer: Optimizer, saved: dict[str, Any]) -> set[str] | None:
    """What a step changes in the groups of an optimiser, so that it is no option, such as the ``k`` of schedule-free
    AdamW; None where the optimiser cannot go on from a saved state, as its smallest parameter of each group shows.

    A copy of the optimiser makes a step with these parameters alone; what it then keeps of each is compared with what
    was saved: names, types and shapes.
    """
    groups, old_groups = optimizer.param_groups, saved["param_groups"]
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in old_groups]:
        return None
    if any(a.get("param_names", b.get("param_names")) != b.get("param_names", a.get("param_names"))
           for a, b in zip(groups, old_groups, strict=True)):  # fmt: skip
        return None
    selected: dict[int, Any] = {}  # by a parameter's id: the number under which its state was saved
    for group, old in zip(groups, old_groups, strict=True):
        pairs = [(p, number) for p, number in zip(group["params"], old["params"], strict=True)
                 if number in saved["state"]]  # fmt: skip
        if pairs:
            parameter, number = min(pairs, key=lambda pair: pair[0].numel())
            selected[id(parameter)] = parameter, number
    copies = {
        id(p): nn.Parameter(torch.zeros_like(p) if id(p) in selected else p.new_zeros(0), requires_grad=True)
        for group in groups for p in group["params"]
    }  # fmt: skip
    twin = copy.deepcopy(optimizer, dict(copies))
    for key in selected:
        copies[key].grad = torch.zeros_like(copies[key])
    twin.step()
    if any(describe(twin.state[copies[key]]) != describe(saved["state"][number])
           for key, (_, number) in selected.items()):  # fmt: skip
        return None
    return {
        name
        for group, stepped in zip(groups, twin.param_groups, strict=True) for name, value in group.items()
        if isinstance(value, (int, float)) and stepped[name] != value
    }  # fmt: skip


def describe(state: dict[str, Any]) -> dict[str, Any]:
    """The names in the state of a parameter, with type and shape of tensors that are no numbers of steps."""
    return {
        name: (value.dtype, value.shape) if isinstance(value, Tensor) and value.dim() else None
        for name, value in state.items()
        if value is not None
    }
