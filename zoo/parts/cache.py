"""What parts remember between the steps of decoding: keys and values, or a state of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from zoo.errors import UsageError


class PartState:
    """What a part remembers between the steps of decoding: the base of every state, of whatever shape.

    Attributes that are tensors have a row per sequence of the batch, (B, ...). A state whose tensors keep their shapes
    makes decoding's memory constant in length.
    """

    start: int = 0  # the position of the first key that the next step's pattern has to speak of

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, (rows,), in this order; a row may occur more than once."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])
            elif isinstance(value, PartState):
                value.select(rows)

    def snapshot(self) -> Self:
        """A copy that later steps leave unchanged.

        Raises UsageError for a subclass with attributes that it would share: that defines a ``snapshot`` of its own.
        """
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(twin, name, value.clone())
            elif isinstance(value, PartState):
                setattr(twin, name, value.snapshot())
            elif not isinstance(value, SHARED):
                raise UsageError(
                    f"the state {type(self).__name__} holds {name}, a {type(value).__name__}, and has no snapshot() "
                    "that copies it: its part cannot be decoded speculatively."
                )
        return twin


class Cache(PartState):
    """Keys and values of one causal self-attention at positions start..length-1, in memory allocated once.

    With a ``window`` only the keys that a later query can still see are kept, in a buffer of twice the window.
    """

    def __init__(self, capacity: int, window: int | None = None):
        self.capacity, self.window = capacity, window
        self.size = capacity if window is None else min(capacity, 2 * window)
        self.start = self.length = 0
        self._at = 0  # where in the buffers the key of position ``start`` lies
        self._k = self._v = torch.empty(0)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, G, T, D) keys and values; all that are stored, from ``start`` on, with the new ones.

        Raises IndexError beyond the capacity.
        """
        stored, new = self.length - self.start, k.size(2)
        if self.length + new > self.capacity:
            raise IndexError(f"a cache for {self.capacity} positions cannot hold {self.length + new}")
        if self.length == 0:
            self._k, self._v = (y.new_empty(*y.shape[:2], self.size, y.size(-1)) for y in (k, v))
        if stored + new > self.size:  # a prompt longer than the buffer: all of it is visible now, its end is stored
            k, v = (torch.cat([old, y], 2) for old, y in zip(self._stored(stored), (k, v), strict=True))
            self._forget(new)
            stored = self.length - self.start
            self._at = 0
            self._k[:, :, :stored], self._v[:, :, :stored] = (y[:, :, y.size(2) - stored :] for y in (k, v))
            return k, v
        if self._at + stored + new > self.size:
            self._k[:, :, :stored], self._v[:, :, :stored] = (old.clone() for old in self._stored(stored))
            self._at = 0
        place = slice(self._at + stored, self._at + stored + new)
        self._k[:, :, place], self._v[:, :, place] = k, v
        visible = self._stored(stored + new)
        self._forget(new)
        return visible

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.length:
            self._k, self._v = self._k[rows], self._v[rows]

    def _stored(self, count: int) -> tuple[Tensor, Tensor]:
        place = slice(self._at, self._at + count)
        return self._k[:, :, place], self._v[:, :, place]

    def _forget(self, new: int) -> None:
        """Count the new keys, and drop those outside the next query's window."""
        self.length += new
        if self.window is not None:
            excess = max(0, self.length - self.window + 1 - self.start)
            self.start, self._at = self.start + excess, self._at + excess


class MemoryCache(PartState):
    """Keys and values of one cross-attention: a memory is projected once."""

    def __init__(self) -> None:
        self.projected: tuple[Tensor, Tensor] | None = None

    def once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values (B, kv_heads, S, D) that ``project`` gave the first time."""
        if self.projected is None:
            self.projected = project()
        return self.projected

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.projected is not None:
            self.projected = self.projected[0][rows], self.projected[1][rows]

    def snapshot(self) -> Self:
        """A copy; the projections are never changed, so that it shares them."""
        return copy.copy(self)


SHARED = (bool, int, float, str, torch.dtype, torch.device, torch.Size, type(None), nn.Module)  # never changed in place


class LayerCache(NamedTuple):
    """What one block remembers between the steps of decoding."""

    own: PartState  # state of the self-attention
    memory: MemoryCache  # memory of the cross-attention
    block: PartState | None = None  # state of the block itself

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, (rows,), in this order."""
        for state in self:
            if state is not None:
                state.select(rows)

    def snapshot(self) -> LayerCache:
        """A copy that later steps leave unchanged."""
        block = None if self.block is None else self.block.snapshot()
        return LayerCache(self.own.snapshot(), self.memory.snapshot(), block)


class Caches(list[LayerCache]):
    """What all blocks of a stack remember, and the number of tokens that they were shown."""

    length: int = 0

    def __init__(self, layers: Iterable[LayerCache] = ()) -> None:
        super().__init__(layers)
        self.steps: dict[Any, Callable[[Tensor, Caches], Tensor] | None] = {}  # filled by zoo.models.decoding_step

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, (rows,), in this order."""
        for layer in self:
            layer.select(rows)

    def snapshot(self) -> Caches:
        """A copy that later steps leave unchanged."""
        twin = Caches(layer.snapshot() for layer in self)
        twin.length, twin.steps = self.length, self.steps
        return twin
