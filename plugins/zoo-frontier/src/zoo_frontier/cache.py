"""What attention to some tokens of each text remembers."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.parts.cache import Cache


class PlacedCache(Cache):
    """Keys and values of tokens that need not be contiguous, other ones in each row of the batch, with their positions.

    ``reserve`` says which tokens the next ``extend`` brings. Buffers grow to twice their size when a row is full.
    """

    def __init__(self, capacity: int):
        super().__init__(capacity)
        self._counts = self._places = self._columns = torch.empty(0, dtype=torch.long)

    def reserve(self, places: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, S) of the keys after these tokens at ``places`` (B, T), of which those that are not ``real``
        (B, T) are left out; and which of the S are keys of their row, (B, S) bool.

        Raises IndexError beyond the capacity.
        """
        if not self._counts.numel():
            self._counts = places.new_zeros(len(places))
            self._places = places.new_zeros(len(places), 1)  # the last column is for tokens that are left out
        total = self._counts + real.sum(1)
        most = int(total.max())
        if most > self.capacity:
            raise IndexError(f"a cache for {self.capacity} positions cannot hold {most}")
        self.length = most
        self._places = widen(self._places, self.length, self.capacity, 1)
        self._columns = torch.where(real, self._counts[:, None] + real.cumsum(1) - 1, self._places.size(1) - 1)
        self._places.scatter_(1, self._columns, places)
        self._counts = total
        return self._places[:, : self.length], torch.arange(self.length, device=places.device) < total[:, None]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put (B, G, T, D) keys and values where ``reserve`` says; those of all S keys, (B, G, S, D)."""
        if self._k.dim() < 4:
            self._k, self._v = (y.new_zeros(*y.shape[:2], 1, y.size(-1)) for y in (k, v))
        self._k, self._v = (widen(old, self.length, self.capacity, 2) for old in (self._k, self._v))
        for buffer, new in ((self._k, k), (self._v, v)):
            buffer.scatter_(2, self._columns[:, None, :, None].expand(-1, new.size(1), -1, new.size(-1)), new)
        return self._k[:, :, : self.length], self._v[:, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, (rows,), in this order; a row may occur more than once."""
        if self._counts.numel():
            self._counts, self._places = self._counts[rows], self._places[rows]
            self._k, self._v = self._k[rows], self._v[rows]


def widen(buffer: Tensor, count: int, most: int, axis: int) -> Tensor:
    """A buffer (B, G, S + 1, D) or (B, S + 1) with room for ``count`` columns and one more along an axis: itself, or a
    copy, with zeros behind its content, of twice the columns, at most ``most`` and one.
    """
    size = buffer.size(axis) - 1
    if count <= size:
        return buffer
    shape = list(buffer.shape)
    shape[axis] = max(count, min(2 * size, most)) + 1
    wider = buffer.new_zeros(shape)
    wider.narrow(axis, 0, size).copy_(buffer.narrow(axis, 0, size))
    return wider
