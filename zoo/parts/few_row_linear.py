"""Products with few rows, as in a step of decoding, by the kernels that are fast at them.

A CPU's matrix library is made for many rows. With one, it reads the matrix by dot products, at half of what memory
gives (oneMKL on an AMD EPYC); the same product as W x^T with two columns runs at twice the speed. From three rows on
oneDNN is twice as fast, if it may reorder the matrix once: ``packs`` does that for generation.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.parts.derivatives import transformed
from zoo.system import torch_internals

FEW = 32  # rows; with more the ordinary kernels are as good
COLUMNS = 2  # rows up to which W x^T is the fastest
SAMPLE = 200  # numbers of a matrix that are compared to notice changes that torch does not count
LARGEST = 2**30  # bytes of matrices up to which a reordered copy is made


class Linear(nn.Linear):
    """x W^T + b, whatever the number of rows."""

    packs = True

    def forward(self, input: Tensor) -> Tensor:
        """x (..., in) to (..., out)."""
        return linear(input, self.weight, self.bias)


class Packed:
    """A matrix (out, in) in oneDNN's layout; ``linear`` uses it while it is referenced and the matrix is unchanged.

    A change through ``.data`` of a few numbers only, which torch does not count, goes unnoticed.
    """

    rows = FEW  # up to which its product is used

    def __init__(self, weight: Tensor):
        self.weight, self.version = weight, torch_internals.change_count(weight)
        self.place = weight.data_ptr()
        # torch counts no changes through .data, by which callbacks swap weights: a sample of the numbers is compared
        flat = weight.detach().view(-1).numpy() if weight.is_contiguous() else None
        self.sample = None if flat is None else flat[:: max(1, len(flat) // SAMPLE) | 1]
        self.before = None if self.sample is None else self.sample.tobytes()
        self.matrix = self.lay(weight.detach())

    @staticmethod
    def lay(weight: Tensor) -> Any:
        """The matrix in the layout of ``product``."""
        return torch_internals.reorder_weight(weight)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., in) to x W^T + b, (..., out)."""
        return torch_internals.reordered_linear(x, self.matrix, bias)

    @property
    def current(self) -> bool:
        """Whether the matrix is still the one that was packed."""
        version = torch_internals.change_count(self.weight)
        if version != self.version or self.weight.data_ptr() != self.place:
            return False
        return self.sample is None or self.sample.tobytes() == self.before


_packed: weakref.WeakValueDictionary[int, Packed] = weakref.WeakValueDictionary()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for x (..., in) and W (out, in), as ``F.linear`` to within rounding."""
    if torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    rows = x.numel() // x.size(-1) if x.size(-1) else 0
    if not rows or (rows > FEW and not _packed) or not is_float32_inference(x, weight):
        return F.linear(x, weight, bias)
    packed = _packed.get(id(weight))
    if packed is not None and rows <= packed.rows and packed.current:
        return packed.product(x, bias)
    if rows <= COLUMNS:
        flat = x.reshape(rows, -1)
        if rows == 1:
            out = torch.mm(weight, torch.cat([flat] * COLUMNS).t())[:, 0]  # repeat takes seven times as long
            out = out.contiguous() if bias is None else out + bias
        else:
            out = torch.mm(weight, flat.t()).t().contiguous()
            out = out if bias is None else out.add_(bias)
        return out.view(*x.shape[:-1], -1)
    return F.linear(x, weight, bias)


def is_float32_inference(x: Tensor, weight: Tensor) -> bool:
    """Whether the product is of float32 on a CPU and needs no gradient."""
    return (
        x.dtype is weight.dtype is torch.float32
        and not torch.is_grad_enabled()
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and type(x) is Tensor
        and not transformed()
    )


def packs(weights: Iterable[Tensor], rows: int) -> list[Packed]:
    """Reorder matrices for products with ``rows`` rows; used while the result is referenced. Doubles their memory.

    Nothing is done where it would not help: few or many rows, other devices and types, more than ``LARGEST`` bytes.
    """
    if not COLUMNS < rows <= FEW or not torch_internals.can_reorder_weights():
        return []
    served = [weight for weight in weights if can_serve(weight)]
    return [] if sum(weight.nbytes for weight in served) > LARGEST else [pack_once(weight, Packed) for weight in served]


def can_serve(weight: Tensor) -> bool:
    """Whether a matrix can be reordered, and changes of it noticed."""
    return weight.dim() == 2 and is_float32_inference(weight.detach(), weight) and not weight.is_inference()


def pack_once(weight: Tensor, kind: type[Packed]) -> Packed:
    """The matrix in the layout of ``kind``: the existing one if it is current, otherwise a new one."""
    packed = _packed.get(id(weight))
    if not isinstance(packed, kind) or not packed.current:
        packed = _packed[id(weight)] = kind(weight)
    return packed
