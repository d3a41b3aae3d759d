"""A training step that every entrant takes alike: the same start, batches, optimiser and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
RATE = 1e-3


def same_start(net: nn.Module) -> None:
    """Matrices N(0, 0.02), vectors called bias zero and all other vectors one: one start for any code base.

    Layers draw first and in their order, everything else after them by size: where a code base lays out its matrices as
    another one does, both start from the same numbers.
    """
    generator = torch.Generator().manual_seed(0)

    def turn(pair: tuple[str, nn.Parameter]) -> int:
        return 0 if any(word.isdigit() for word in pair[0].split(".")) else pair[1].numel()

    with torch.no_grad():
        for name, parameter in sorted(net.named_parameters(), key=turn):
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(0.0 if "bias" in name.rpartition(".")[2] else 1.0)


class Step:
    """One optimiser step per call on the batches in turn; gives the mean loss of the batch."""

    def __init__(
        self,
        net: nn.Module,
        loss: Callable[[Any], Tensor],
        batches: list[Any],
        precision: str = "fp32",
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    ) -> None:
        same_start(net)
        net.train()
        self.net, self.loss, self.batches, self.dtype = net, loss, batches, PRECISIONS[precision]
        make = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=RATE))
        self.optimizer = make(net.parameters())
        self.parameters = sum(parameter.numel() for parameter in net.parameters())
        self.device = "cpu"

    def to(self, device: str) -> Step:
        """The same step with its model and batches on another device type."""
        self.device = device
        self.net.to(device)
        self.batches = [_to_device(batch, device) for batch in self.batches]
        return self

    def __call__(self, number: int) -> float:
        return self.run(number).item()

    def run(self, number: int) -> Tensor:
        """A step, and its loss as a tensor, for which a GPU need not be waited for."""
        loss = self.gradients(number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def gradients(self, number: int) -> Tensor:
        """The loss of a batch, after its gradients were added to those of the parameters."""
        batch = self.batches[number % len(self.batches)]
        with torch.autocast(self.device, dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            loss = self.loss(batch)
        loss.backward()
        return loss.detach()


def _to_device(batch: Any, device: str) -> Any:
    if isinstance(batch, dict):
        return {name: _to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch.to(device) if isinstance(batch, Tensor) else batch


def ours(task: Any) -> Callable[[Any], Tensor]:
    """The mean loss of a batch, as `zoo fit` trains on it."""

    def loss(batch: Any) -> Tensor:
        total, size = task.loss(batch)
        return total / size

    return loss


def our_optimizer(task: Any) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """The optimiser that the task makes for itself, at this benchmark's rate and without its schedule."""
    return lambda parameters: task.make_optimizer()
