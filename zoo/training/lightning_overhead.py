"""What a step of training pays for nothing: hooks that nobody has, and a missing driver.

Lightning enters a context of its profiler, a generator, around each hook of each callback, those that do nothing
included: over 100 a step. A variable that it sets has torch's optimisers look for a driver at each step.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler

STEP = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "on_train_batch_end",
)  # fmt: skip
NOTHING = contextlib.nullcontext()
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


class Silent(PassThroughProfiler):
    """Measures nothing, in one context that is always the same."""

    def profile(self, action_name: str) -> Any:
        return NOTHING


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
