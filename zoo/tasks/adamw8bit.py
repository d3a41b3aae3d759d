"""AdamW whose moments take 8 bits a number, by the library bitsandbytes."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any, ClassVar

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from zoo.errors import UsageError
from zoo.tasks.optimizers import JoinedOptimizer, as_groups, fuse


class AdamW8bit(JoinedOptimizer):
    """AdamW with both moments in 8 bits (Dettmers et al., 2022): 2 bytes a parameter in place of 8.

    Each block of 256 numbers has a scale of its own. Tensors with fewer numbers than ``smallest`` keep 32 bits, those
    in float64 are stepped by torch's AdamW. Needs bitsandbytes, which runs on GPUs and on CPUs:
    pip install 'zoo-transformers[eightbit]'.
    """

    tried_options: ClassVar[tuple[dict[str, Any], ...]] = ({"smallest": 1},)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        smallest: int = 4096,
    ):
        """
        Args:
            betas: decay of both moments.
            eps: added to the root of the second moment.
            weight_decay: of matrices, times lr per step.
            smallest: numbers of the smallest tensor whose moments take 8 bits.
        """
        if not all(0 <= beta < 1 for beta in betas):
            raise UsageError(f"optimizer.betas must be from 0 to below 1, got {tuple(betas)}.")
        if not eps > 0:
            raise UsageError(f"optimizer.eps must be above 0, got {eps}.")
        if smallest < 1:
            raise UsageError(f"optimizer.smallest must be at least 1, got {smallest}.")
        options: dict[str, Any] = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        self.smallest = smallest
        super().__init__(make_members(split_double(as_groups(params)), smallest, options))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "members": None, "smallest": self.smallest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take groups and state; a copy makes new members, since bitsandbytes leaves out half of itself in copies."""
        if "members" in state:
            groups = [{"params": group["params"]} for group in state["param_groups"]]
            state = {**state, "members": make_members(split_double(groups), state["smallest"], {})}
        super().__setstate__(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state as ``state_dict`` gives it; torch alone would make float32 numbers of the 8-bit moments."""
        super().load_state_dict(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, copy=True)


def make_members(
    split: tuple[list[dict[str, Any]], list[dict[str, Any]]], smallest: int, options: dict[str, Any]
) -> list[Optimizer]:
    """bitsandbytes' optimiser of the first groups of ``split`` and torch's of the second, where there are any."""
    narrow, double = split
    members: list[Optimizer] = []
    if narrow:
        members.append(import_library().AdamW8bit(narrow, **options, min_8bit_size=smallest))
    if double:
        members.append(fuse(optim.AdamW(double, **options)))
    return members


def split_double(groups: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The groups without, and with only, their parameters in float64, of any shape; none that are empty."""

    def select(double: bool) -> list[dict[str, Any]]:
        split = [
            {**group, "params": [item for item in group["params"] if is_double(item) == double]} for group in groups
        ]
        return [group for group in split if group["params"]]

    return select(False), select(True)


def is_double(item: Any) -> bool:
    """Whether an item of a group, a tensor of any shape or a pair of its name and it, has float64 numbers."""
    parameter: Tensor = item[1] if isinstance(item, tuple) else item
    return parameter.dtype == torch.float64


def import_library() -> Any:
    """The optimisers of bitsandbytes. Raises UsageError where it is not installed or cannot be imported."""
    install = "pip install 'zoo-transformers[eightbit]'"
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(f"model.optimizer: AdamW8bit needs the package bitsandbytes: {install}")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of 4-bit kernels, which steps do not use
    try:
        return importlib.import_module("bitsandbytes").optim
    except Exception as error:  # of a build for another torch or another driver
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UsageError(f"model.optimizer: bitsandbytes cannot be imported ({reason}). Try: {install}") from error
