"""The norm of all gradients, computed once where a check and the clipping both want it."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.optim import Optimizer

from zoo.tasks.task import Task
from zoo.training.lightning_overhead import unused_hooks

HOOK = "on_before_optimizer_step"


class GradientNorm:
    """Found by ``owner`` in its hook before the optimiser's step; the clipping takes it if nobody comes in between.

    Other callbacks, a task with a hook of its own, and a strategy that clips in its own way each find their own norm.
    """

    def __init__(self, trainer: Trainer, task: Any, owner: Callback) -> None:
        self.task = task
        self._found: Tensor | None = None
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        plugin: Any = trainer.precision_plugin
        self._shared = (
            all(unused_hooks(item, Callback, HOOK) for item in callbacks[callbacks.index(owner) + 1 :])
            and getattr(type(task), HOOK) is getattr(Task, HOOK)
            and unused_hooks(task, LightningModule, "configure_gradient_clipping")
            and type(plugin).clip_grad_by_norm is Precision.clip_grad_by_norm
        )
        if self._shared:
            self._plain, plugin.clip_grad_by_norm = plugin.clip_grad_by_norm, self._clip

    def find(self, grads: list[Tensor]) -> Tensor:
        """The norm of gradients before the task's own hook."""
        norm = torch.nn.utils.get_total_norm(grads)
        self._found = norm if self._shared and not self.task.adjusts else None
        return norm

    def _clip(self, optimizer: Optimizer, clip_val: float) -> None:
        norm, self._found = self._found, None
        if norm is None:
            self._plain(optimizer, clip_val)
        else:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grads_with_norm_(parameters, clip_val, norm)
