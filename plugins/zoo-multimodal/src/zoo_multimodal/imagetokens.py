"""A learned image tokenizer: an image as a small grid of codes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from zoo.errors import UsageError


class Quantiser(nn.Module):
    """Round each of a few bounded numbers to an odd count of levels: a code is their combination (FSQ, Mentzer et al.,
    2023). There is no codebook to learn, so no code of it can die; gradients pass the rounding as if it were not there.
    """

    grid: Tensor

    def __init__(self, levels: Sequence[int]):
        super().__init__()
        if not levels or any(level < 3 or level % 2 == 0 for level in levels):
            raise UsageError(f"levels are odd numbers from 3 on, got {list(levels)}.")
        self.levels, self.count, self.width = tuple(levels), prod(levels), len(levels)
        self.register_buffer("grid", torch.empty(2, self.width), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The constants of the levels."""
        places = [prod(self.levels[:number]) for number in range(self.width)]
        halves = [(level - 1) / 2 for level in self.levels]
        with torch.no_grad():
            self.grid.copy_(torch.tensor([halves, places], dtype=self.grid.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) to rounded numbers in [-1, 1], as many levels each as it has."""
        half = self.grid[0]
        bounded = x.tanh() * half
        return (bounded.round().detach() + (bounded - bounded.detach())) / half  # the second sum is zero, exactly

    def number(self, rounded: Tensor) -> Tensor:
        """Rounded numbers (..., width) to codes (...), long."""
        half, place = self.grid
        return ((rounded * half + half).round() * place).sum(-1).long()

    def values(self, codes: Tensor) -> Tensor:
        """Codes (...) to the rounded numbers (..., width) that they stand for."""
        half, place = self.grid
        level = 2 * half + 1
        return (torch.div(codes[..., None].to(half), place, rounding_mode="floor") % level - half) / half


class ImageTokenizer(nn.Module):
    """Images (B, C, H, W) to (H / stride) × (W / stride) codes, row by row, and codes to images."""

    def __init__(
        self,
        image_size: int,
        channels: int = 3,
        width: int = 32,
        stride: int = 4,
        levels: Sequence[int] = (5, 5, 5),
    ):
        super().__init__()
        halvings = stride.bit_length() - 1
        if stride != 2**halvings or not halvings:
            raise UsageError(f"stride must be 2, 4, 8, …, got {stride}.")
        if image_size % stride:
            raise UsageError(f"image_size={image_size} is not divisible by stride={stride}, the side of a code.")
        self.image_size, self.channels, self.side = image_size, channels, image_size // stride
        self.quantiser = Quantiser(levels)
        wide = 2 * width
        widths = [channels, width, *[wide] * (halvings - 1)]
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for before, after in pairwise(widths):
            down += [nn.Conv2d(before, after, 4, 2, 1), nn.GELU()]
            up[:0] = [nn.GELU(), nn.ConvTranspose2d(after, before, 4, 2, 1)]
        deep = widths[-1]
        self.encoder = nn.Sequential(
            *down, nn.Conv2d(deep, wide, 3, 1, 1), nn.GELU(), nn.GroupNorm(1, wide), nn.Conv2d(wide, len(levels), 1)
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(len(levels), wide, 3, 1, 1), nn.GELU(), nn.Conv2d(wide, deep, 3, 1, 1), *up
        )  # fmt: skip

    @property
    def count(self) -> int:
        """How many codes there are."""
        return self.quantiser.count

    @property
    def length(self) -> int:
        """Codes of an image."""
        return self.side**2

    def rounded(self, images: Tensor) -> Tensor:
        """Images to rounded numbers (B, side, side, width)."""
        return self.quantiser(self.encoder(images).movedim(1, -1))

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to their reconstructions, the same shape."""
        return self.decoder(self.rounded(images).movedim(-1, 1))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Images to codes (B, length)."""
        return self.quantiser.number(self.rounded(images)).flatten(1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (B, length) to images."""
        return self.decoder(self.quantiser.values(codes.unflatten(1, (self.side, self.side))).movedim(-1, 1))
