"""A Vision Transformer."""

from typing import Literal

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.stack import Stack
from zoo.parts.attention import nearest
from zoo.parts.position import Extent
from zoo.value_checks import at_least


class ViT(nn.Module):
    """Logits of an image's class, from its patches as tokens (Dosovitskiy et al., 2021)."""

    def __init__(
        self,
        num_classes: int,
        image_size: int = 224,
        channels: int = 3,
        patch_size: int = 16,
        pool: Literal["mean", "cls", "both"] = "mean",
        registers: int = 0,
        patch_bias: bool = True,
        seed: int = 0,
        **stack,
    ):
        """
        Args:
            num_classes: number of classes.
            image_size: height and width of an image in pixels.
            channels: 1 for grey, 3 for colour.
            patch_size: height and width of a patch in pixels.
            pool: what the classifier reads, the mean of all patches, an extra class token, or both side by side.
            registers: learned tokens in front of the patches, after the class token, that no output reads
                (Darcet et al., 2024), or the token that DeiT learned from a teacher.
            patch_bias: give the matrix that embeds patches a bias.
            seed: of the initial weights.
        """
        super().__init__()
        at_least(1, num_classes=num_classes, image_size=image_size, channels=channels, patch_size=patch_size)
        at_least(0, registers=registers)
        if image_size % patch_size:
            raise UsageError(
                f"image_size={image_size} is not divisible by patch_size={patch_size}. "
                f"Try {nearest(image_size, patch_size, 'patch_size')}."
            )
        with preserve_rng():
            side = image_size // patch_size
            self.image_size, self.channels, self.patch_size = image_size, channels, patch_size
            special = registers + (pool != "mean")
            self.special = special
            extent = Extent(self.grid(side), special, registers=registers)
            self.stack = Stack(extent, cross=False, padded=False, **stack)
            self.dim: int = self.stack.dim
            self.embedding = nn.Linear(channels * patch_size * patch_size, self.dim, bias=patch_bias)
            self.cls = LearnedTokens(1, self.dim) if pool != "mean" else None
            self.pool = pool
            self.registers = LearnedTokens(registers, self.dim) if registers else None
            self.head = nn.Linear(self.dim * (2 if pool == "both" else 1), num_classes)
            initialize(self, seed)

    def grid(self, side: int) -> tuple[int, ...]:
        """How many patches an input has along each of its axes; an image has ``side`` in height and width."""
        return side, side

    def patches(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, patches, C * patch_size * patch_size), row by row."""
        size = self.patch_size
        grid = images.unfold(2, size, size).unfold(3, size, size)  # (B, C, rows, columns, patch_size, patch_size)
        return grid.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to logits (B, num_classes)."""
        x = self.embedding(self.patches(images))
        x = torch.cat([*(extra(x.size(0)) for extra in (self.cls, self.registers) if extra is not None), x], 1)
        x = self.stack(x)
        states = [x[:, 0]] if self.pool != "mean" else []
        states += [x[:, self.special :].mean(1)] if self.pool != "cls" else []
        return self.head(torch.cat(states, -1))


class LearnedTokens(nn.Module):
    """Learned tokens that are put in front of the patches."""

    def __init__(self, count: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, count, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, batch: int) -> Tensor:
        """(batch, count, dim)."""
        return self.weight.expand(batch, -1, -1)
