"""Blocks whose residual branches are scaled, or left out at random."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention
from zoo.parts.block import Block
from zoo.parts.norm import Norm


class Scale(nn.Module):
    """x * weight, one learned number for each feature of x (..., dim)."""

    def __init__(self, dim: int, start: float):
        super().__init__()
        self.start, self.weight = start, nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The same number for all features."""
        nn.init.constant_(self.weight, self.start)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape."""
        return x * self.weight


class LayerScale(Block):
    """x + scale * part(norm(x)), a learned scale for each feature and branch (Touvron et al., 2021).

    As in the paper scales begin at 0.1 in stacks of up to 18 layers, at 1e-5 up to 24 and at 1e-6 beyond.
    """

    packs = True

    def __init__(
        self,
        attend: Attention,
        cross: Attention | None,
        ffn: nn.Module,
        norm: Callable[[], Norm],
        dropout: float,
        scale: float | None = None,
        depth: int = 1,
    ):
        """
        Args:
            scale: every feature's scale at the start of training; the paper's for the depth unless given.
            depth: number of layers, given by the stack.
        """
        super().__init__(attend, cross, ffn, norm, dropout)
        start = (0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6) if scale is None else scale
        for branch in (self.attend, self.cross, self.ffn):
            if branch is not None:
                branch.scale = Scale(attend.out.out_features, start)

    def join(self, x, branch, call, context):
        """x (B, T, dim) + scale * part(norm(x)), shaped like x."""
        return x + branch.dropout(branch.scale(call(context, branch.part, branch.norm(x))))


class DropPath(Block):
    """x + keep / (1 - p) * part(norm(x)), keep 0 with chance p for a whole sequence in training: stochastic depth
    (Huang et al., 2016). p grows linearly to ``drop_path`` in the last layer, drop_path * (layer + 1) / depth.
    """

    def __init__(
        self,
        attend: Attention,
        cross: Attention | None,
        ffn: nn.Module,
        norm: Callable[[], Norm],
        dropout: float,
        drop_path: float = 0.1,
        layer: int = 0,
        depth: int = 1,
    ):
        """
        Args:
            drop_path: chance that a branch of the last layer is left out for a sequence, in [0, 1).
            layer: number of the layer, from 0 on, given by the stack.
            depth: number of layers, given by the stack.

        Raises UsageError for another chance.
        """
        super().__init__(attend, cross, ffn, norm, dropout)
        if not 0 <= drop_path < 1:
            raise UsageError(f"block DropPath needs drop_path in [0, 1), got {drop_path}.")
        self.chance = drop_path * (layer + 1) / depth

    def join(self, x, branch, call, context):
        """x (B, T, dim) + the branch, or x alone for the sequences that leave it out; shaped like x."""
        out = branch.dropout(call(context, branch.part, branch.norm(x)))
        if self.training and self.chance:
            keep = torch.rand(x.size(0), 1, 1, device=x.device) >= self.chance
            out = out * keep / (1 - self.chance)
        return x + out
