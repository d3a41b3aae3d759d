"""The losses of a task since the last line of the log."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Loss(NamedTuple):
    """A sum over the predictions of a batch, and how many there are; both ()."""

    total: Tensor
    size: Tensor


class LossLog:
    """Losses of this process that no line of the log holds yet."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []

    def add(self, total: Tensor, size: Tensor) -> None:
        """Note the loss of a batch: its sum and its number of predictions, both ()."""
        self.losses.append(Loss(total, size))

    def leave_out(self, count: int) -> None:
        """Count the newest ``count`` losses as none over no predictions: their optimiser step was left out."""
        for index, loss in list(enumerate(self.losses))[-count:] if count else ():
            self.losses[index] = Loss(torch.zeros_like(loss.total), torch.zeros_like(loss.size))

    def pop(self) -> Loss:
        """The sum in float64, and the number of predictions, of all losses since the last call; both ()."""
        total = torch.stack([loss.total for loss in self.losses]).double().sum()
        size = torch.stack([loss.size for loss in self.losses]).sum()
        self.losses.clear()
        return Loss(total, size)

    def state(self) -> list[Tensor]:
        """For a checkpoint: totals (N,) and sizes (N,) on the CPU, or nothing where there is no loss."""
        return [torch.stack(list(column)).cpu() for column in zip(*self.losses, strict=True)]

    def load(self, columns: list[Tensor], device: torch.device) -> None:
        """Take what ``state`` gave, totals (N,) and sizes (N,)."""
        self.losses = [Loss(*pair) for pair in zip(*(column.to(device) for column in columns), strict=True)]
