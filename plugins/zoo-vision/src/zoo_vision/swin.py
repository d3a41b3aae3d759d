"""Swin: a pyramid of stages, each with half the cells a side and twice the width of the one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.parts.ffn import FFN, MLP
from zoo.parts.norm import LayerNorm, Norm
from zoo.tasks.classification import Classification
from zoo_vision.windows import WindowAttention


class SwinBlock(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)), of a grid (B, R, C, dim).

    In training each image goes around a branch with probability ``skip``, and the branch counts 1 / (1 - skip) for the
    others (Huang et al., 2016).
    """

    def __init__(
        self, attention: WindowAttention, ffn: FFN, norms: tuple[Norm, Norm], dropout: float = 0.0, skip: float = 0.0
    ):
        super().__init__()
        self.attention, self.ffn = attention, ffn
        self.attention_norm, self.ffn_norm = norms
        self.dropout = nn.Dropout(dropout)
        self.skip = StochasticDepth(skip, "row")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, R, C, dim) to the same shape."""
        x = x + self.skip(self.dropout(self.attention(self.attention_norm(x))))
        return x + self.skip(self.dropout(self.ffn(self.ffn_norm(x))))


class Merge(nn.Module):
    """Four neighbouring cells become one of twice the width: W norm([x_00; x_10; x_01; x_11])."""

    def __init__(self, dim: int, norm: Callable[[int], Norm]):
        super().__init__()
        self.norm, self.reduce = norm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, R, C, dim) to (B, R / 2, C / 2, 2 dim)."""
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """Logits of an image's class, from patches that attend within windows, shifted in every second layer."""

    def __init__(
        self,
        num_classes: int,
        image_size: int,
        channels: int,
        patch_size: int = 4,
        window: int = 7,
        dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (3, 6, 12, 24),
        seed: int = 0,
        **parts,
    ):
        """
        Args:
            num_classes: number of classes.
            image_size: height and width of an image in pixels.
            channels: 1 for grey, 3 for colour.
            patch_size: height and width of a patch in pixels.
            window: height and width of a window in cells.
            dim: width of a cell in the first stage; each later stage has twice that of the one before.
            depths: blocks of each stage.
            heads: attention heads of each stage.
            seed: of the initial weights.
        """
        super().__init__()
        slots = Slots(**parts)
        if len(depths) != len(heads) or not depths:
            raise UsageError(f"depths={list(depths)} and heads={list(heads)} must name as many stages, at least one.")
        cells = patch_size * 2 ** (len(depths) - 1)
        if image_size % cells:
            raise UsageError(
                f"image_size={image_size} must be a multiple of {cells}: patch_size={patch_size}, {len(depths)} stages."
            )
        self.image_size, self.channels, self.patch_size = image_size, channels, patch_size
        with preserve_rng():
            self.embedding = nn.Conv2d(channels, dim, patch_size, patch_size)
            self.embedding_norm = slots.norm(dim)
            stages = []
            skips = iter(slots.skips(sum(depths)))
            for number, (depth, count) in enumerate(zip(depths, heads, strict=True)):
                grid, width = image_size // patch_size >> number, dim << number
                before = [Merge(width // 2, slots.norm)] if number else []
                modules = [
                    WindowAttention(width, count, grid, window, n % 2 * (window // 2), slots.attention_dropout)
                    for n in range(depth)
                ]
                stages.append(nn.Sequential(*before, *(slots.block(width, one, next(skips)) for one in modules)))
            self.stages = nn.ModuleList(stages)
            width = dim << len(depths) - 1
            self.norm, self.head = slots.norm(width), nn.Linear(width, num_classes)
            initialize(self, seed)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to logits (B, num_classes)."""
        x = self.embedding_norm(self.embedding(images).permute(0, 2, 3, 1))
        for stage in self.stages:
            x = stage(x)
        return self.head(self.norm(x).mean((1, 2)))


class Slots:
    """Which parts the blocks of a Swin are made of."""

    def __init__(
        self,
        norm: Callable[[int], Norm] = LayerNorm,
        ffn: Callable[[int, int], FFN] = MLP,
        hidden: int = 4,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
    ):
        """
        Args:
            norm: the normalisation.
            ffn: the feed-forward.
            hidden: width of the feed-forward as a budget, in widths of its stage.
            dropout: rate on residual branches.
            attention_dropout: rate on attention weights.
            stochastic_depth: how often an image goes around the branches of the last block in training; less often in
                the blocks before, in equal steps from 0 at the first one.
        """
        if not 0 <= stochastic_depth < 1:
            raise UsageError(f"stochastic_depth must be at least 0 and below 1, got {stochastic_depth}.")
        self.norm, self.ffn, self.hidden = norm, ffn, hidden
        self.dropout, self.attention_dropout, self.stochastic_depth = dropout, attention_dropout, stochastic_depth

    def skips(self, blocks: int) -> list[float]:
        """How often an image goes around the branches of each of so many blocks."""
        return [self.stochastic_depth * number / max(1, blocks - 1) for number in range(blocks)]

    def block(self, dim: int, attention: WindowAttention, skip: float) -> SwinBlock:
        """One block of a stage."""
        norms = self.norm(dim), self.norm(dim)
        return SwinBlock(attention, self.ffn(dim, self.hidden * dim), norms, self.dropout, skip)


class SwinClassification(Classification):
    """Name the class of an image by a pyramid of shifted windows (Liu et al., 2021): time grows with the pixels alone.

    Reports loss (nats per image), top-1 and top-5 accuracy.
    """

    pictures = ""

    @staticmethod
    def network(**options: Any) -> Any:
        """A Swin."""
        return Swin(**options)

    @classmethod
    def small_sizes(cls, options: Mapping[str, Any]) -> dict[str, int]:
        """The smallest images that every stage can cut into windows."""
        stages = len(options.get("depths") or (2, 2, 6, 2))
        cells = int(options.get("window") or 7) * 2 ** (stages - 1)  # each stage can be cut into windows
        return {**cls.data_sizes, "image_size": int(options.get("patch_size") or 4) * cells}
