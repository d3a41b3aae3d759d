"""What the models of this package read from a batch of text, and how they write."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NOTHING = -1


def rows(batch: dict[str, Tensor]) -> Tensor:
    """The tokens (B, T + 1) that a batch was cut from; -1 behind the end of the text."""
    targets = batch["targets"]
    return torch.cat([batch["inputs"][:, :1], targets.masked_fill(targets < 0, NOTHING)], 1)


class WindowState:
    """A model that looks at its last ``width`` tokens only, while it writes."""

    def __init__(self, model: nn.Module, width: int):
        self.model, self.width = model, width
        self.past: Tensor | None = None

    def step(self, tokens: Tensor) -> Tensor:
        """The next tokens (B, T) to the logits (B, V) of the one after them."""
        past = tokens if self.past is None else torch.cat([self.past, tokens], 1)
        self.past = past[:, -self.width :]
        return self.model(self.past)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, (rows,), in this order."""
        self.past = None if self.past is None else self.past[rows]
