"""Attentions around a softmax: a compressed cache, gates, caps, sinks, differences, values of the first layer."""

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, MultiHead
from zoo.parts.backend import Backend, Naive
from zoo.parts.cache import MemoryCache
from zoo.parts.few_row_linear import Linear
from zoo.parts.norm import RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Position
from zoo.value_checks import above_zero, at_least


def turn(x: Tensor, pattern: Pattern, position: Position | None, keys: bool = False) -> Tensor:
    """Queries or keys x (B, H, T, D) turned by places from pattern.offset on, where a position scheme turns."""
    if position is None or not position.rotates:
        return x
    place = torch.arange(pattern.offset, pattern.offset + x.size(2), device=x.device)
    return (position.rotate_keys if keys else position.rotate)(x, place - position.extent.special)


class MLA(Attention):
    """Keys and values from one small latent per token, c = norm(W_down x): DeepSeek-V2's MLA (2024).

    k_h = [W_k,h c, r], v_h = W_v,h c and q_h = [W_q,h x, turned W_r,h x] with r = turned W_r x, one for all heads; the
    scores are q_h k_h' / sqrt(head_dim + rope_dim). A cache holds c and r alone, latent_dim + rope_dim numbers for a
    token. A step of decoding multiplies queries by W_k and outputs by W_v instead of expanding what is cached. With a
    ``query_latent_dim``, norm(W x) of that width stands for x in queries.
    """

    packs = False

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        latent_dim: int | None = None,
        rope_dim: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        query_latent_dim: int | None = None,
        scale: float | None = None,
    ):
        """
        Args:
            latent_dim: width d_c of c; 4 head_dim unless given, as in DeepSeek-V2.
            rope_dim: width d_r of what is turned, a multiple of 4; head_dim / 2, rounded up to one, unless given.
            head_dim: width of a key without what is turned; dim / heads unless given.
            value_dim: width of a value; head_dim unless given.
            query_latent_dim: width of the latent that queries are made from; x itself unless given.
            scale: factor on the dot products; 1 / sqrt(head_dim + rope_dim) unless given.

        Raises UsageError for another rope_dim.
        """
        super().__init__(dim, heads, backend, dropout, head_dim=head_dim, bias=False)
        self.latent_dim = latent_dim or 4 * self.head_dim
        self.rope_dim = rope_dim or -(-self.head_dim // 8) * 4
        if self.rope_dim % 4 or self.rope_dim < 0 or self.latent_dim < 1:
            raise UsageError(f"attention MLA needs a rope_dim that is a multiple of 4, got {rope_dim}.")
        self.value_dim = value_dim or self.head_dim
        self.scale = (self.head_dim + self.rope_dim) ** -0.5 if scale is None else scale
        above_zero(scale=self.scale)
        at_least(1, value_dim=value_dim, query_latent_dim=query_latent_dim)
        del self.qkv
        few = query_latent_dim
        self.query_down = nn.Identity() if few is None else Linear(dim, few, bias=False)
        self.query_latent_norm = nn.Identity() if few is None else RMSNorm(few)
        self.query = Linear(query_latent_dim or dim, heads * (self.head_dim + self.rope_dim), bias=False)
        self.down = Linear(dim, self.latent_dim + self.rope_dim, bias=False)
        self.norm = RMSNorm(self.latent_dim)
        self.up = Linear(self.latent_dim, heads * (self.head_dim + self.value_dim), bias=False)
        self.out = Linear(heads * self.value_dim, dim, bias=False)

    @property
    def turned_dim(self) -> int:
        """Width of what a position scheme turns of a head's query and key."""
        return self.rope_dim

    def compress(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, S, dim) to c (B, 1, S, latent_dim) and r (B, 1, S, rope_dim), not turned."""
        c, r = self.down(x).unsqueeze(1).split([self.latent_dim, self.rope_dim], -1)
        return self.norm(c), r

    def queries(self, x: Tensor, pattern: Pattern, position: Position | None) -> tuple[Tensor, Tensor]:
        """x (B, T, dim) to queries of c (B, H, T, head_dim) and of r (B, H, T, rope_dim), turned."""
        x = self.query_latent_norm(self.query_down(x))
        heads = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        near, turned = heads.split([self.head_dim, self.rope_dim], -1)
        return near, turn(turned, pattern, position)

    def project(self, x, memory, pattern, position, cache):
        """Queries and keys (B, H, T or S, head_dim + rope_dim) and values (B, H, S, value_dim), without a cache."""
        q = torch.cat(self.queries(x, pattern, None if memory is not None else position), -1)
        c, r = self.compress(x if memory is None else memory)
        r = turn(r, pattern, position, keys=True) if memory is None else r
        both = self.up(c[:, 0]).split([self.heads * self.head_dim, self.heads * self.value_dim], -1)
        k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in both)
        return q, torch.cat([k, r.expand(-1, self.heads, -1, -1)], -1), v

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys (B, G, S, D), values (B, G, S, D') to (B, H, T, D')."""
        return self.backend(q, k, v, pattern, self.dropout if self.training else 0.0, self.scale)

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, G, S, D) to weights (B, H, T, S), in at least float32."""
        return Naive().weights(q, k, pattern, self.scale)

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        """x (B, T, dim) looks at itself, or at memory (B, S, dim); the result is shaped like x."""
        if cache is None:
            return super().forward(x, memory, pattern=pattern, position=position)
        q, turned = self.queries(x, pattern, None if memory is not None else position)
        if isinstance(cache, MemoryCache):
            c, r = cache.once(lambda: self.compress(cast(Tensor, memory)))
        else:
            c, r = self.compress(x)
            c, r = cache.extend(c, turn(r, pattern, position, keys=True))
        both = self.up.weight.split([self.heads * self.head_dim, self.heads * self.value_dim])
        w_k, w_v = (w.unflatten(0, (self.heads, -1)) for w in both)  # (H, head_dim or value_dim, latent_dim)
        mixed = self.attend(torch.cat([q @ w_k, turned], -1), torch.cat([c, r], -1), c, pattern) @ w_v.mT
        return self.out(mixed.transpose(1, 2).flatten(2))


class GatedAttention(MultiHead):
    """sigmoid(W_g x) times what the heads give, number by number, in front of W_O (Qiu et al., 2025)."""

    packs = False

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        **options,
    ):
        super().__init__(dim, heads, backend, dropout, kv_heads, head_dim, bias, **options)
        self.gate = Linear(dim, heads * self.head_dim, bias=bias)

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        """x (B, T, dim) looks at itself, or at memory (B, S, dim); the result is shaped like x."""
        mixed = self.attend(*self.project(x, memory, pattern, position, cache), pattern).transpose(1, 2).flatten(2)
        return self.out(mixed * self.gate(x).sigmoid())


class ValueResidual(MultiHead):
    """Values with a share of the first layer's: v' = l1 v_first + l2 v, in front of the softmax (Zhou et al., 2024).

    l1 and l2 begin at ``share`` and 1 - ``share``, and are learned; layer 0 has none and keeps its values. The first
    layer is the first one with this attention and as many key/value heads; if that is not layer 0, v_first is its v.
    Each layer reads values of the same tokens and its cache holds v', so that decoding needs no other state.
    """

    packs = False
    reads_earlier_layers = True

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        share: float = 0.5,
        learned: bool = True,
        layer: int = 0,
    ):
        """
        Args:
            share: l1 at the start of training, in [0, 1].
            learned: train l1 and l2 of each layer; they stay what they are unless so.
            layer: number of the layer, from 0 on, given by the stack.

        Raises UsageError for another share.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, head_dim, bias)
        if not 0 <= share <= 1:
            raise UsageError(f"attention ValueResidual needs a share in [0, 1], got {share}.")
        self.share, self.shares = share, nn.Parameter(torch.empty(2)) if learned and layer else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set l1 and l2 to ``share`` and 1 - ``share``."""
        if self.shares is not None:
            with torch.no_grad():
                self.shares.copy_(self.shares.new_tensor([self.share, 1 - self.share]))

    def across(self) -> Attention:
        """MultiHead of the same sizes: a memory has values of one layer alone."""
        bias = self.qkv.bias is not None
        return MultiHead(
            self.out.out_features, self.heads, self.backend, self.dropout, self.kv_heads, self.head_dim, bias
        )

    def forward(self, x, memory=None, *, pattern, position=None, cache=None, earlier_layers=None):
        """x (B, T, dim) looks at itself; the result is shaped like x. ``earlier_layers`` holds the first one's values,
        (B, kv_heads, T, head_dim), or gets them.
        """
        q, k, v = self.project(x, memory, pattern, position, None)
        key = f"values of {self.kv_heads} heads of {self.head_dim}"
        first = v if earlier_layers is None else earlier_layers.setdefault(key, v)
        if first is not v or self.shares is not None:
            first_share, own_share = (self.share, 1 - self.share) if self.shares is None else self.shares.to(v.dtype)
            v = first_share * first + own_share * v
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.out(self.attend(q, k, v, pattern).transpose(1, 2).flatten(2))


class Softcap(MultiHead):
    """Scores within (-cap, cap): softmax(cap tanh(q k' / (sqrt(D) cap)) + bias) v, as in Gemma 2 (2024)."""

    own_backend = Naive
    requires = frozenset({"score_cap"})
    supports = MultiHead.supports | requires
    tensor_parallel = MultiHead.tensor_parallel

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        cap: float = 50.0,
        **options,
    ):
        """
        Args:
            cap: no score is larger than it.

        Raises UsageError for a cap that is not above 0.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, head_dim, bias, **options)
        if not cap > 0:
            raise UsageError(f"attention Softcap needs a cap above 0, got {cap}.")
        self.cap = cap

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        return super().attend(q, k, v, pattern.capped(self.cap))

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, kv_heads, S, D) to weights (B, H, T, S), in at least float32."""
        return super().weigh(q, k, pattern.capped(self.cap))


class Sinks(MultiHead):
    """One more score b_h in each softmax, learned, to which no value belongs (gpt-oss, 2025; Miller, 2023).

    The weight of key s is e^(score_s) / (e^(b_h) + sum_j e^(score_j)), which is the softmax without a sink times
    sigmoid(ln sum_j e^(score_j) - b_h): a head may look at nothing, so that weights sum to less than one.
    """

    own_backend = Naive
    requires = frozenset({"lse"})
    supports = MultiHead.supports | requires
    sums_to_one = False

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
    ):
        super().__init__(dim, heads, backend, dropout, kv_heads, head_dim, bias)
        self.sink = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sinks of zero: each weighs as much as a key whose score is 0."""
        nn.init.zeros_(self.sink)

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        heads, lse = self.backend.with_lse(q, k, v, pattern, self.dropout if self.training else 0.0)
        return heads * self.share(lse).to(heads.dtype)

    def weigh(self, q, k, pattern):
        """Queries (B, H, T, D) and keys (B, kv_heads, S, D) to weights (B, H, T, S), in at least float32."""
        weights, lse = Naive().weights_with_lse(q, k, pattern)
        return weights * self.share(lse)

    def share(self, lse: Tensor) -> Tensor:
        """What the sink leaves to the keys, (B, H, T, 1), of their log-sum-exp (B, H, T)."""
        return (lse - self.sink.to(lse.dtype)[:, None]).sigmoid().unsqueeze(-1)


class Differential(Attention):
    """Two softmaxes, one less a share of the other: (softmax(q1 k1') - lambda softmax(q2 k2')) v (Ye et al., 2024).

    q1, q2, k1 and k2 are half as wide as v, and scores are divided by sqrt(D / 2). lambda = exp(l_q1 l_k1) -
    exp(l_q2 l_k2) + lambda_init for learned vectors l; what a head gives has its RMS norm, times 1 - lambda_init.
    lambda_init is 0.8 - 0.6 e^(-0.3 layer) for layer 0, 1, ... It has no dropout of weights. Of the pairs of features
    that a position scheme turns, q1 and k1 have the first, third, ... and q2 and k2 the others.
    """

    supports = Attention.supports - {"dropout"} | {"places"}
    parameter_roles: ClassVar = {"vectors": "vector"}

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        lambda_init: float | None = None,
        layer: int = 0,
    ):
        """
        Args:
            head_dim: width of a head's values, a multiple of 4; dim / heads unless given.
            lambda_init: lambda at the start of training, below 1; the layer's unless given.
            layer: number of the layer, from 0 on, given by the stack.

        Raises UsageError where a head has no two halves, or lambda_init is not in [0, 1).
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, head_dim, bias)
        if self.head_dim % 4:
            raise UsageError(f"attention Differential needs heads of a multiple of 4, got dim={dim}, heads={heads}.")
        lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer) if lambda_init is None else lambda_init
        if not 0 <= lambda_init < 1:
            raise UsageError(f"attention Differential needs lambda_init in [0, 1), got {lambda_init}.")
        self.lambda_init = lambda_init
        self.vectors = nn.Parameter(torch.empty(4, self.head_dim // 2))  # l_q1, l_k1, l_q2, l_k2
        self.head_norm = RMSNorm(self.head_dim, eps=1e-5)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors l with standard deviation 0.1."""
        nn.init.normal_(self.vectors, std=0.1)

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, kv_heads, S, D) to what the heads give, (B, H, T, D)."""
        (q1, q2), (k1, k2) = halves(q), halves(k)
        l_q1, l_k1, l_q2, l_k2 = self.vectors.to(torch.promote_types(self.vectors.dtype, torch.float32))
        share = (l_q1 @ l_k1).exp() - (l_q2 @ l_k2).exp() + self.lambda_init
        first, second = (self.backend(*pair, v, pattern) for pair in ((q1, k1), (q2, k2)))
        return (1 - self.lambda_init) * self.head_norm(first - share.to(v.dtype) * second)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Heads (B, H, T, D) as two of (B, H, T, D / 2), every second pair of features (i, i + D / 2) in each."""
    first, second = x.unflatten(-1, (2, -1, 2)).unbind(-1)
    return first.flatten(-2), second.flatten(-2)
