"""Lion: steps of one size, whose sign is that of a momentum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoo.tasks.optimizers import zeros_like_state
from zoo_optimizers import check


class Lion(Optimizer):
    """w - lr * (sign(b1 * m + (1 - b1) * g) + weight_decay * w), with m = b2 * m + (1 - b2) * g (Chen et al., 2023).

    Half of AdamW's state. Every number moves by lr at each step: take a third to a tenth of AdamW's lr, and as many
    times its decay.
    """

    width_exponents: ClassVar[dict[str, float]] = {}  # every number moves by lr, as with Adam

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.1
    ):
        """
        Args:
            betas: b1, of the step; b2, of the momentum.
            weight_decay: of matrices, times lr per step.
        """
        check(betas, weight_decay)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; the loss of ``closure``, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = zeros_like_state(self.state[parameter], "exp_avg", parameter)
                update = momentum.lerp(parameter.grad, 1 - beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                momentum.lerp_(parameter.grad, 1 - beta2)
        return loss

    def reference(self, w: Tensor, gradients: Sequence[Tensor], group: dict[str, Any]) -> Tensor:
        """A parameter, of any shape, after steps by these gradients from ``w`` with the options of its group."""
        momentum, (beta1, beta2), lr = torch.zeros_like(w), group["betas"], group["lr"]
        for g in gradients:
            w = w - lr * ((beta1 * momentum + (1 - beta1) * g).sign() + group["weight_decay"] * w)
            momentum = beta2 * momentum + (1 - beta2) * g
        return w
