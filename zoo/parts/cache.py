"""What an attention remembers between the steps of decoding."""

from collections.abc import Callable

import torch
from torch import Tensor


class Cache:
    """Keys and values of one self-attention at positions 0..length-1, in memory allocated once."""

    def __init__(self, capacity: int):
        self.capacity, self.length = capacity, 0
        self.k = self.v = torch.empty(0)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, G, T, D) keys and values; all of them so far. Raises IndexError beyond the capacity."""
        if self.length == 0:
            self.k, self.v = (y.new_empty(*y.shape[:2], self.capacity, y.size(-1)) for y in (k, v))
        end = self.length + k.size(2)
        if end > self.capacity:
            raise IndexError(f"a cache for {self.capacity} positions was asked to hold {end}")
        self.k[:, :, self.length : end], self.v[:, :, self.length : end] = k, v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.length:
            self.k, self.v = self.k[rows], self.v[rows]


class MemoryCache:
    """Keys and values of one cross-attention: a memory is projected once."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, Tensor] | None = None

    def once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """What ``project`` gave the first time."""
        if self.kept is None:
            self.kept = project()
        return self.kept

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.kept is not None:
            self.kept = self.kept[0][rows], self.kept[1][rows]
