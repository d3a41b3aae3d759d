"""Muon for the matrices of a network, AdamW for everything else."""

from __future__ import annotations

from typing import Any, Literal

from torch import optim
from torch.optim import Optimizer

from zoo.errors import UsageError
from zoo.tasks.optimizers import JoinedOptimizer, fuse, split_by_role
from zoo.value_checks import above_zero, at_least


class Muon(JoinedOptimizer):
    """Steps of orthogonal matrices (Jordan et al., 2024) for hidden matrices; AdamW for embeddings, heads and vectors.

    A matrix moves by lr * U V^T, where U S V^T is its momentum; with ``match_rms_adamw`` (Liu et al., 2025) times
    0.2 * sqrt(the longer side), as large as AdamW's steps, so that one lr serves both.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        adamw_rate: float = 1.0,
    ):
        """
        Args:
            momentum: of the gradients of matrices.
            nesterov: look one step ahead.
            ns_steps: Newton-Schulz iterations, which make a matrix orthogonal.
            adjust_lr: how the shape of a matrix scales its steps; ``original`` is sqrt(max(1, rows / columns)).
            weight_decay: of matrices and embeddings, times lr per step.
            betas: of AdamW.
            eps: of AdamW.
            adamw_rate: AdamW's learning rate as a multiple of Muon's.
        """
        if not 0 <= momentum < 1:
            raise UsageError(f"optimizer.momentum must be from 0 to below 1, got {momentum}.")
        above_zero(**{"optimizer.adamw_rate": adamw_rate})
        at_least(1, **{"optimizer.ns_steps": ns_steps})
        matrices: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for role, group in split_by_role(params):
            if role == "matrix":
                matrices.append(group)
            else:
                others.append({**group, "lr": group.get("lr", lr) * adamw_rate})
        members: list[Optimizer] = []
        if matrices:
            members.append(
                optim.Muon(
                    matrices, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                    ns_steps=ns_steps, adjust_lr_fn=adjust_lr,
                )
            )  # fmt: skip
        if others:
            members.append(fuse(optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)))
        super().__init__(members)
        # what a step of an orthogonal matrix adds to a feature grows with sqrt(width), or not at all
        self.width_exponents = {"matrix": 0.5 if adjust_lr == "match_rms_adamw" else 0.0}
