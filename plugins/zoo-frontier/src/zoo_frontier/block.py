"""Blocks whose residual branches are scaled, left out at random, joined to several streams, or for few tokens."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, TokenMixer
from zoo.parts.block import Block, Context, PreNorm
from zoo.parts.cache import LayerCache, MemoryCache
from zoo.parts.ffn import leave_loss
from zoo.parts.norm import Norm
from zoo.value_checks import at_least
from zoo_frontier.cache import PlacedCache


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
        dim = attend.dim if isinstance(attend, TokenMixer) else attend.out.out_features
        for branch in (self.attend, self.cross, self.ffn):
            if branch is not None:
                branch.scale = Scale(dim, start)

    def join(self, x, branch, call, context):
        """x (B, T, dim) + scale * part(norm(x)), shaped like x."""
        return x + branch.dropout(branch.scale(call(context, branch.part, branch.norm(x))))


class MixerOnly(PreNorm):
    """A layer without a feed-forward, x + scale * mixer(norm(x)): that of Mamba (Gu and Dao, 2023)."""

    slots = frozenset({"attention"})


class OpenPreNorm(PreNorm):
    """PreNorm whose last layer gives its stream as it is: CLIP's image tower in front of a classifier."""

    closes = False


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
        self.residual_streams = streams
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


class MixtureOfDepths(Block):
    """x + r part(norm(x)) for the tokens that a router r = w' x selects, x alone for the others (Raposo et al., 2024).

    In training, and everywhere in encoders, the ``capacity`` share of a sequence's tokens with the largest r is
    computed; they alone are seen by attention. That looks ahead: in evaluation a causal stack computes the tokens with
    r > 0. A loss in training, the cross-entropy of sigmoid(r) and the selection, makes these the same tokens. A cache
    holds computed tokens alone. It is for attentions with keys and values, on Naive or SDPA.
    """

    sees_all = computes_all = False
    aux_loss: Tensor | None = None
    aux_calls = 0

    def __init__(
        self,
        attend: Attention,
        cross: Attention | None,
        ffn: nn.Module,
        norm: Callable[[], Norm],
        dropout: float,
        capacity: float = 0.125,
        aux_loss_weight: float = 0.01,
    ):
        """
        Args:
            capacity: share of a sequence's tokens that are computed in training, above 0, at most 1.
            aux_loss_weight: weight of the loss that makes r above 0 for the selected tokens.

        Raises UsageError for another capacity, and for attentions that do not take tokens at any places.
        """
        super().__init__(attend, cross, ffn, norm, dropout)
        if not 0 < capacity <= 1:
            raise UsageError(f"block MixtureOfDepths needs a capacity in (0, 1], got {capacity}.")
        own = type(attend)
        usual_projection = (
            own.project is Attention.project and own.cache is Attention.cache and not attend.reads_earlier_layers
        )
        if not usual_projection or "places" not in attend.supports & attend.backend.supports:
            raise UsageError(
                f"block MixtureOfDepths computes tokens at any places, which attention {own.__name__} on backend "
                f"{type(attend.backend).__name__} does not take. Use MultiHead on SDPA or Naive."
            )
        attend.shows_weights = False  # those of selected tokens are no map of the sequence
        at_least(0, aux_loss_weight=aux_loss_weight)
        self.capacity, self.aux_loss_weight = capacity, aux_loss_weight
        self.router = nn.Linear(attend.out.out_features, 1, bias=False)

    def cache(self, capacity: int, window: int | None = None) -> LayerCache:
        """Keys and values of the computed tokens alone, and the memory's."""
        return LayerCache(PlacedCache(capacity), MemoryCache())

    def forward(self, x, context):
        """x (B, T, dim) to the same shape."""
        weight = self.router(x)[..., 0]
        selected, width = self.select(weight, context)
        if not width:
            return x
        # selected tokens of each row in front, in their order
        index = selected.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
        real, wide = selected.gather(1, index), index.unsqueeze(-1).expand(-1, -1, x.size(-1))
        stream, inner = x.gather(1, wide), self.narrow(context, index, real)
        added = torch.zeros_like(stream)
        for branch, call in self.steps(inner):
            out = branch.dropout(call(inner, branch.part, branch.norm(stream)))
            stream, added = stream + out, added + out
        added = added * weight.gather(1, index).unsqueeze(-1)
        return x + torch.zeros_like(x).scatter(1, wide, torch.where(real.unsqueeze(-1), added, 0.0).to(x.dtype))

    def select(self, weight: Tensor, context: Context) -> tuple[Tensor, int]:
        """Which tokens are computed, (B, T) bool, of the router's numbers (B, T), and at most how many of a row."""
        length, tokens = weight.size(1), context.tokens
        if context.pattern.causal and not self.training:
            selected = weight > 0 if tokens is None else (weight > 0) & tokens
            fixed = torch.compiler.is_compiling() or weight.is_meta
            return selected, length if fixed or not weight.numel() else int(selected.sum(1).max())
        width = math.ceil(self.capacity * length)
        ranked = weight if tokens is None else weight.masked_fill(~tokens, float("-inf"))
        best = ranked.detach().topk(width, 1).indices
        count = width if tokens is None else (self.capacity * tokens.sum(1, keepdim=True).double()).ceil()
        within = (torch.arange(width, device=weight.device) < count).expand(best.shape)
        selected = torch.zeros_like(weight, dtype=torch.bool).scatter(1, best, within)
        if self.training and context.pattern.causal:
            wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
            loss = F.binary_cross_entropy_with_logits(wide, selected.to(wide.dtype), reduction="none")
            mean = loss.mean() if tokens is None else (loss * tokens).sum() / tokens.sum().clamp(min=1)
            leave_loss(self, self.aux_loss_weight * mean)
        return selected, width

    def narrow(self, context: Context, index: Tensor, real: Tensor) -> Context:
        """The context for the tokens number ``index`` (B, K) of a call, of which those not ``real`` (B, K) are none."""
        places = index + context.pattern.offset
        keys, valid, cache = places, real, context.cache
        if cache is not None:
            keys, valid = cast(PlacedCache, cache.own).reserve(places, real)
        pattern = replace(context.pattern, valid=valid, places=(places, keys), offset=0, start=0)
        return context._replace(pattern=pattern, tokens=real)
