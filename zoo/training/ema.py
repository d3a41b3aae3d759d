"""An exponential moving average of the weights, which validation, checkpoints and the finished run use."""

from __future__ import annotations

from typing import ClassVar

from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from zoo.errors import UsageError


class EMA(WeightAveraging):
    """Average weights: a = d * a + (1 - d) * w after each step, with d = min(decay, (1 + n) / (10 + n)) at update n.

    Training itself is unchanged. Validations, checkpoints and the end of the run have the average; checkpoints keep the
    weights of training too, and a stopped run goes on with both.
    """

    changes_results: ClassVar = True

    def __init__(self, decay: float = 0.999, start: int = 0, every: int = 1):
        """
        Args:
            decay: the share of the average that stays at an update, once there were enough of them.
            start: steps before which the average is the newest weights.
            every: steps between updates.
        """
        if not 0 <= decay < 1:
            raise UsageError(f"EMA's decay must be from 0 to below 1, got {decay}.")
        if start < 0 or every < 1:
            raise UsageError(f"EMA counts steps: start from 0 and every from 1 on, got {start} and {every}.")
        super().__init__(avg_fn=self.average)
        self.decay, self.start, self.every = decay, start, every

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether the step of number ``step_idx``, from 0 on, updates the average."""
        return step_idx is not None and (step_idx + 1) % self.every == 0

    def average(self, averaged: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
        """The next average of a tensor of any shape after so many updates."""
        count = int(updates) - self.start // self.every
        if count < 0:
            return current
        return averaged.lerp(current, 1 - min(self.decay, (1 + count) / (10 + count)))
