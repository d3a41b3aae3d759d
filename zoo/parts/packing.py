"""Padding removed: the real tokens of a padded batch in one row, so that no layer computes padding.

Only what declares it (``packs``) is shown such a row, in which the sentences of a batch stand side by side; everything
else gets the padded batch, one sentence a row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MULTIPLE = 32  # rows are filled up to it: kernels that keep something per shape meet few shapes
WORTH = 0.95  # packing costs a few copies: a batch with fewer than 5 % of padding is left as it is


def declares_packs(cls: type[nn.Module]) -> bool:
    """Whether a class may be shown packed rows."""
    return bool(declared(cls, "packs"))


def declared(cls: type[nn.Module], name: str) -> Any:
    """What a class declares about its computation under a name; None where it declares nothing.

    It is believed of the class in whose body it stands. A subclass with code of its own, which may compute something
    else, such as mix the tokens of a row, has to declare it again.
    """
    for base in cls.__mro__:
        own = vars(base)
        if name in own:
            return own[name]
        if any(_is_code(value) for value in own.values()):
            return None
    return None


def _is_code(value: object) -> bool:
    descriptor = isinstance(value, (property, classmethod, staticmethod))
    return descriptor or (callable(value) and not isinstance(value, type))


class Packing:
    """Where the tokens of a batch (B, T) stand: they are packed row by row to (1, N), filled up with zeros."""

    def __init__(self, valid: Tensor) -> None:
        """``valid`` (B, T) is False at padding."""
        self.valid, self.shape = valid, valid.shape
        self.index = valid.flatten().nonzero()[:, 0]
        self.count = len(self.index)
        self.fill = -self.count % MULTIPLE

    @classmethod
    def of(cls, valid: Tensor | None) -> Packing | None:
        """A packing where it saves work; None for a batch without much padding, and in a compiled graph, whose shapes
        should not depend on what is in a batch.
        """
        if valid is None or torch.compiler.is_compiling() or not valid.numel():
            return None
        packing = cls(valid)
        return packing if 0 < packing.count <= WORTH * valid.numel() else None

    @property
    def real(self) -> Tensor:
        """(1, N) bool, False where a packed row is filled up."""
        return (torch.arange(self.count + self.fill, device=self.index.device) < self.count)[None]

    def pack(self, x: Tensor, fill: float = 0) -> Tensor:
        """(B, T, ...) to (1, N, ...)."""
        rows = x.flatten(0, 1).index_select(0, self.index)
        return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, self.fill), value=fill)[None]

    def spread(self, x: Tensor) -> Tensor:
        """(1, N, ...) to (B, T, ...), zeros at padding."""
        whole = x.new_zeros((self.shape[0] * self.shape[1], *x.shape[2:]))
        return whole.index_copy(0, self.index, x[0, : self.count]).unflatten(0, self.shape)
