"""Optimizers that other libraries compute, with zoo's names of options and its errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch.optim import Optimizer

from zoo.errors import UsageError
from zoo.tasks.optimizers import JoinedOptimizer
from zoo.value_checks import at_least


class SOAP(JoinedOptimizer):
    """AdamW in the eigenbasis of Shampoo's factors, which is renewed now and then (Vyas et al., 2024).

    Computed by the library pytorch-optimizer. Steps have the size of AdamW's, so that its rates are a good start; the
    first step only measures.
    """

    width_exponents: ClassVar[dict[str, float]] = {}  # steps as large as Adam's
    whole_tensors = "keeps factors of whole matrices"  # why no strategy may divide them
    known_failures: ClassVar = {"weight_decay_by_group": "the first step only measures: nothing decays in it"}

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
        max_precondition_dim: int = 10000,
    ):
        """
        Args:
            betas: of the mean gradient, and of its square and the factors.
            eps: added to the root of the squares.
            weight_decay: of matrices, times lr per step.
            precondition_frequency: steps between two eigenbases.
            max_precondition_dim: a side of a matrix that is longer has no basis of its own.
        """
        check(betas, weight_decay)
        if precondition_frequency < 1:
            raise UsageError(f"optimizer.precondition_frequency counts steps, got {precondition_frequency}.")
        soap = find_class("pytorch_optimizer", "SOAP")
        super().__init__([
            soap(
                params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay,
                precondition_frequency=precondition_frequency, max_precondition_dim=max_precondition_dim,
            )
        ])  # fmt: skip


class ScheduleFreeAdamW(JoinedOptimizer):
    """AdamW whose weights are averaged in place of a falling rate (Defazio et al., 2024).

    Computed by the library schedulefree. Take it with ``model.schedule: Constant``. Gradients are those of a point
    between the newest weights and their average; validations and checkpoints behind them have the average.
    """

    width_exponents: ClassVar[dict[str, float]] = {}
    known_failures: ClassVar = {
        "rate_of_group": "weights are averages with earlier ones: at a rate of 0 they still move towards the newest"
    }

    def __init__(
        self,
        params: Any,
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
    ):
        """
        Args:
            betas: of the interpolation, and of the squared gradient.
            eps: added to the root of the squares.
            weight_decay: of matrices, times lr per step.
            warmup_steps: in which the rate rises and the average does not count; beside the schedule's.
        """
        check(betas, weight_decay)
        if not betas[0] > 0:
            raise UsageError("optimizer.betas of ScheduleFreeAdamW begin above 0: it divides by the first.")
        adamw = find_class("schedulefree", "AdamWScheduleFree")
        options = {"betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "warmup_steps": warmup_steps}
        super().__init__([adamw(params, lr=lr, **options)])

    def train(self) -> None:
        """Put the point where gradients are taken into the place of the average."""
        self._switch("train")

    def eval(self) -> None:
        """Put the average into the place of the point where gradients are taken."""
        self._switch("eval")

    def _switch(self, mode: Literal["train", "eval"]) -> None:
        for member in self.members:  # a copy has copies of its members
            getattr(member, mode)()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; the loss of ``closure``, if any."""
        self.train()
        return super().step(closure)


def find_class(module: str, name: str) -> Callable[..., Optimizer]:
    """A class of a library that zoo does without. Raises UsageError where the library is not installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = module.replace("_", "-")
        raise UsageError(f"{name} is computed by {package}, which is not installed: pip install {package}") from error


def check(betas: tuple[float, float], weight_decay: float) -> None:
    """Raise UsageError for factors outside of [0, 1), and for a negative decay."""
    if not all(0 <= beta < 1 for beta in betas):
        raise UsageError(f"optimizer.betas must be from 0 to below 1, got {tuple(betas)}.")
    at_least(0, **{"optimizer.weight_decay": weight_decay})
