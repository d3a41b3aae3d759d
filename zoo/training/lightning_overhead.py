"""What a step of training pays for nothing: hooks that nobody has, drawings that nobody can see, a missing driver.

Lightning enters a context of its profiler, a generator, around each hook of each callback, those that do nothing
included: over 100 a step. Its bar is drawn up to 100 times a second, and a variable that it sets has torch's optimisers
look for a driver at each step.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.profilers import PassThroughProfiler

from zoo import console

STEP = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "on_train_batch_end",
)  # fmt: skip
NOTHING = contextlib.nullcontext()
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
RATE = 4  # how often a second the bar is drawn; a drawing takes as long as some steps


class Silent(PassThroughProfiler):
    """Measures nothing, in one context that is always the same."""

    def profile(self, action_name: str) -> Any:
        return NOTHING


class Bar(RichProgressBar):
    """Lightning's bar, which would ask for its figures at every step and draw them a hundred times a second."""

    _asked = 0.0

    def __init__(self, refresh_rate: int = RATE, **options: Any) -> None:
        super().__init__(refresh_rate, **options)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, last = time.monotonic(), trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if last or now - self._asked >= 1 / self.refresh_rate:
            self._asked = now
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def _init_progress(self, trainer: Trainer) -> None:
        super()._init_progress(trainer)
        console.cover()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Lightning's, by names that a terminal can show."""
        return {console.printable(name): value for name, value in super().get_metrics(trainer, pl_module).items()}

    def _get_train_description(self, current_epoch: int) -> str:
        """Lightning counts the epochs of a run that ends by its steps, too: "Epoch 0/-2"."""
        text = super()._get_train_description(current_epoch)
        return text.replace("/-2", "   ")


def install(trainer: Trainer, module: LightningModule | None = None) -> None:
    """Leave out what does nothing while ``module`` is trained, unless a profiler was asked for."""
    if type(trainer.profiler) is not PassThroughProfiler:  # type: ignore[attr-defined]
        return
    trainer.profiler.__class__ = Silent  # type: ignore[attr-defined]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        _leave_out(callback, Callback)
    if module is not None:
        _leave_out(module, LightningModule)
    if not torch.cuda.device_count():
        os.environ.pop(NVML, None)  # Lightning's; with it torch's optimisers look for a driver at each step, in vain


def unused_hooks(owner: Any, base: type, hook: str) -> bool:
    """Whether a callback or a module has no hook but its base's, or had that left out."""
    if hook in vars(owner):
        return vars(owner)[hook] is None
    return getattr(type(owner), hook) is getattr(base, hook)


def _leave_out(owner: Any, base: type) -> None:
    """Lightning calls those hooks that are callable: here, those that do something."""
    for hook in STEP:
        if unused_hooks(owner, base, hook):
            setattr(owner, hook, None)
