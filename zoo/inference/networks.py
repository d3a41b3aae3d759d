"""The network of a task: what generates, translates and classifies, without what training needs.

A task is a LightningModule with a loss, metrics and an optimiser: importing those costs more time than a token. Its
network is a torch module, whose options are those of the task without those of training. Tasks that do not declare
``training_options`` are rebuilt whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TaskNetwork(nn.Module):
    """What a checkpoint or an export of a task holds: its network, and the number of tokens that it was trained with.

    ``trained`` is the "module:Class" that uses it, ``allow`` are the modules that the configuration may import besides
    zoo and its plugins.
    """

    tokens_seen: Tensor

    def __init__(self, net: nn.Module, trained: str, allow: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.net: Any = net
        self.trained, self.allow = trained, allow
        self.register_buffer("tokens_seen", torch.zeros((), dtype=torch.long))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.tokens_seen.device
