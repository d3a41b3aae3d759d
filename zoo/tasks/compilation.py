"""torch.compile for the loss of a task."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from zoo.tasks.task import Loss, Task

log = logging.getLogger(__name__)


def compile_loss(task: Task) -> None:
    """Have torch.compile make one program of a task's loss and its gradients; where it cannot, warn and go on."""
    eager, compiled = task.loss, torch.compile(task.loss)

    def loss(batch: Any) -> Loss:
        try:
            return compiled(batch)
        except Exception as error:  # whatever the compiler raises: the loss raises an error of its own again below
            task.loss = eager  # type: ignore[method-assign]
            result = eager(batch)
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            log.warning("not compiled, going on without: %s", reason)
            return result

    task.loss = loss  # type: ignore[method-assign]
