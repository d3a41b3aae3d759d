"""Blocks whose residual branches are scaled, left out at random, or joined to several streams."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, TokenMixer
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


class Connection(nn.Module):
    """The matrices of one branch for the streams H (..., n, dim): A (..., n, 1 + n), and B (..., n) (Zhu et al., 2024).

    The first column of A, A_m, mixes the input of the branch from the streams, the others, A_r, mix the streams; B is
    what each stream gets of the output. Dynamic ones are A + s_a tanh(norm(H) W_a) and B + s_b tanh(norm(H) w_b).
    """

    parameter_roles: ClassVar = {"mixing": "vector"}  # as in the paper it does not decay
    fixed_start = ("mixing",)

    def __init__(self, dim: int, streams: int, number: int, norm: nn.Module | None):
        super().__init__()
        self.number, self.norm = number, norm
        self.mixing, self.output = nn.Parameter(torch.empty(streams, 1 + streams)), nn.Parameter(torch.empty(streams))
        if norm is not None:
            self.weight, self.output_weight = (
                nn.Parameter(torch.empty(1 + streams, dim)),
                nn.Parameter(torch.empty(dim)),
            )
            self.scales = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The plain residual: branch number k reads stream k mod n, all streams get its output."""
        streams = len(self.output)
        with torch.no_grad():
            first = torch.eye(streams)[:, [self.number % streams]]
            self.mixing.copy_(torch.cat([first, torch.eye(streams)], 1))
            self.output.fill_(1.0)
            if self.norm is not None:
                self.weight.zero_()
                self.output_weight.zero_()
                self.scales.fill_(0.01)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Streams x (..., n, dim) to A, (..., n, 1 + n), and B, (..., n)."""
        if self.norm is None:
            return self.mixing, self.output
        y = self.norm(x)
        a, b = (y @ self.weight.mT).tanh(), (y @ self.output_weight).tanh()
        return self.mixing + self.scales[0] * a, self.output + self.scales[1] * b


class HyperConnections(Block):
    """n residual streams H, which each branch mixes: H' = A_r' H + B' part(norm(A_m' H)) (Zhu et al., 2024).

    The matrices are learned, and follow the tokens where they are ``dynamic``. A stack begins with n copies of a token
    and ends with their mean; at the start of training it computes what PreNorm does.
    """

    packs = True

    def __init__(
        self,
        attend: Attention,
        cross: Attention | None,
        ffn: nn.Module,
        norm: Callable[[], Norm],
        dropout: float,
        streams: int = 4,
        dynamic: bool = True,
        layer: int = 0,
    ):
        """
        Args:
            streams: number n of residual streams, at least 2.
            dynamic: matrices follow the tokens; learned constants unless so.
            layer: number of the layer, from 0 on, given by the stack.

        Raises UsageError for fewer streams.
        """
        super().__init__(attend, cross, ffn, norm, dropout)
        if streams < 2:
            raise UsageError(f"block HyperConnections needs at least 2 streams, got {streams}.")
        self.streams = streams
        branches = [branch for branch in (self.attend, self.cross, self.ffn) if branch is not None]
        dim = attend.dim if isinstance(attend, TokenMixer) else attend.out.out_features
        for number, branch in enumerate(branches, layer * len(branches)):
            branch.connect = Connection(dim, streams, number, norm() if dynamic else None)

    def join(self, x, branch, call, context):
        """Streams x (B, T, n, dim) after one branch, shaped like x."""
        a, b = branch.connect(x)
        # streams stay as precise as they are; a meta tensor knows no autocast
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            mixed = a.to(x.dtype).mT @ x
        out = branch.dropout(call(context, branch.part, branch.norm(mixed[..., 0, :])))
        return mixed[..., 1:, :] + b.unsqueeze(-1) * out.unsqueeze(-2)
