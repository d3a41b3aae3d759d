"""Attention within windows of a grid, which every other layer shifts (Liu et al., 2021)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError


def split(x: Tensor, window: int) -> Tensor:
    """A grid (B, R, C, ...) to its windows (B, n, window², ...), row by row."""
    rows, columns = x.size(1) // window, x.size(2) // window
    x = x.unflatten(1, (rows, window)).unflatten(3, (columns, window)).transpose(2, 3)
    return x.flatten(3, 4).flatten(1, 2)


def join(x: Tensor, rows: int, columns: int) -> Tensor:
    """Windows (B, n, window², ...) to the grid (B, rows, columns, ...) they were split from."""
    window = round(x.size(2) ** 0.5)
    x = x.unflatten(1, (rows // window, columns // window)).unflatten(3, (window, window)).transpose(2, 3)
    return x.flatten(1, 2).flatten(2, 3)


def visible_cells(rows: int, columns: int, window: int, shift: int) -> Tensor:
    """Which cell of a shifted window sees which: (n, window², window²) booleans.

    The grid is rolled by ``shift``, so that the windows at its ends hold cells from both ends, which do not see each
    other.
    """

    def part(size: int) -> Tensor:
        """Which window of the unrolled grid a cell of the rolled grid is in."""
        return (torch.arange(size).roll(-shift) - shift).div(window, rounding_mode="floor")

    number = part(rows)[:, None] * (columns + 1) + part(columns)
    regions = split(number[None], window)[0]
    return regions[:, :, None] == regions[:, None, :]


def offsets(window: int) -> Tensor:
    """The row of the table of biases for every two cells of a window: (window², window²), below (2 window - 1)²."""
    place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
    apart = place[:, :, None] - place[:, None, :] + window - 1
    return apart[0] * (2 * window - 1) + apart[1]


class WindowAttention(nn.Module):
    """softmax(q k / sqrt(d) + bias of the offset) v among the cells of a window, which may be shifted.

    A grid that is no larger than a window is one window, and is not shifted.
    """

    offsets: Tensor
    visible: Tensor | None

    def __init__(self, dim: int, heads: int, grid: int, window: int, shift: int, dropout: float = 0.0):
        super().__init__()
        if dim % heads:
            raise UsageError(f"dim={dim} is not divisible by heads={heads}.")
        if grid <= window:
            window, shift = grid, 0
        if grid % window:
            raise UsageError(f"a grid of {grid} x {grid} cells cannot be cut into windows of {window} x {window}.")
        self.heads, self.window, self.shift, self.dropout = heads, window, shift, dropout
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.biases = Biases((2 * window - 1) ** 2, heads)
        self.register_buffer("offsets", offsets(window), persistent=False)
        allowed = visible_cells(grid, grid, window, shift) if shift else None
        self.register_buffer("visible", allowed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """A grid (B, R, C, dim) to the same shape."""
        rows, columns = x.shape[1:3]
        x = x.roll((-self.shift, -self.shift), (1, 2)) if self.shift else x
        q, k, v = self.qkv(split(x, self.window)).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        bias = self.biases.weight[self.offsets].permute(2, 0, 1)  # (heads, window², window²)
        if self.visible is not None:
            bias = bias.masked_fill(~self.visible[:, None], float("-inf"))  # (n, heads, window², window²)
        heads = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), self.dropout if self.training else 0.0)
        x = join(self.out(heads.transpose(2, 3).flatten(3)), rows, columns)
        return x.roll((self.shift, self.shift), (1, 2)) if self.shift else x


class Biases(nn.Module):
    """A number for each offset and head."""

    parameter_roles: ClassVar = {"weight": "vector"}

    def __init__(self, offsets: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(offsets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the biases from N(0, 0.02), truncated."""
        nn.init.trunc_normal_(self.weight, std=0.02)
