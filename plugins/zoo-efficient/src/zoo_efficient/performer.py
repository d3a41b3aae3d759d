"""Attention through random features, in time and memory linear in the number of tokens."""

import math
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.errors import UsageError
from zoo.parts.attention import Attention
from zoo.parts.backend import Backend, Naive, masked_softmax
from zoo.parts.cache import Cache, PartState
from zoo.parts.pattern import Pattern
from zoo_efficient.directions import orthonormal
from zoo_efficient.places import turned
from zoo_efficient.precision import unshortened, widened

CHUNK = 64  # keys that a causal query weighs one by one before they are summed up; a power of two


class Performer(Attention):
    """FAVOR+: sum_s K(q, k_s) v_s / sum_s K(q, k_s) with K(q, k) = sum_j phi_j(q) phi_j(k) (Choromanski et al., 2021).

    phi_j(x) = exp(w_j x - |x|^2 / 2) for x = q / D^(1/4) or k / D^(1/4): K / m estimates exp(q k' / sqrt(D)) without
    bias. The m rows w_j are normal and orthogonal in blocks of D (Yu et al., 2016), drawn once for each key/value head.

    No exponent is above 0 and the largest of a query is 0: it is taken relative to the largest that this query has,
    over its features and the keys that it sees, so that neither a later key nor padding can move anything.
    """

    own_backend = Naive
    supports = frozenset({"causal", "valid", "rotate", "cross"})
    dot_product = False
    exact = False
    memory = "linear"
    decoding_memory = "constant"
    known_failures: ClassVar[dict[str, str]] = {
        "queries_are_turned": "an estimate from turned vectors moves, within its error, with where a sequence begins",
    }
    rows: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        backend: Backend | None = None,
        dropout: float = 0.0,
        features: int | None = None,
        kv_heads: int | None = None,
        bias: bool = True,
    ):
        """
        Args:
            dim: width of a token.
            heads: number of attention heads.
            backend: none; there is no dot product to compute.
            dropout: must be zero, there are no weights to drop.
            features: number m of random features per head; D ln D, rounded up to whole blocks of D, unless given.
            kv_heads: number of key/value heads.
            bias: whether the projections of queries, keys, values and output have biases.
        """
        super().__init__(dim, heads, backend, dropout, kv_heads, bias=bias)
        if features is not None and features < 1:
            raise UsageError(f"attention Performer needs features of at least 1, got {features}.")
        features = features or self.head_dim * max(1, math.ceil(math.log(self.head_dim)))
        self.register_buffer("rows", torch.empty(self.kv_heads, features, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the random features."""
        if not self.rows.is_meta:
            lengths = torch.randn(self.rows.shape, dtype=torch.float64).norm(dim=-1, keepdim=True)
            self.rows.copy_(torch.stack([orthonormal(*self.rows.shape[1:]) for _ in self.rows]) * lengths)

    def project(self, x, memory, pattern, position, cache):
        """Queries (B, H, T, D), keys and values (B, G, S, D), turned and cached."""
        if memory is not None or position is None or not position.rotates:
            return super().project(x, memory, pattern, position, cache)
        q, k, v = super().project(x, None, pattern, None, None)
        q, k = turned(q, pattern, position), turned(k, pattern, position, keys=True)
        if isinstance(cache, Cache):
            k, v = cache.extend(k, v)
        return q, k, v

    def cache(self, capacity, window=None):
        """Empty sums, which hold any number of tokens."""
        return Sums()

    def attend_after(self, state, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, G, T, D) of new tokens to what the heads give, (B, H, T, D)."""
        query, key = self._exponents(q, k, replace(pattern, valid=pattern.real_tokens(q.size(2))))
        query, key = query.unflatten(1, (self.kv_heads, -1)), key.unsqueeze(2)
        value = F.pad(v.to(key.dtype), (0, 1), value=1.0).unsqueeze(2)
        with unshortened(q):
            if state.top is None:
                state.top = key.new_full((*key.shape[:3], 1, key.size(-1)), lowest(key))
                state.total = key.new_zeros(*key.shape[:3], key.size(-1), value.size(-1))
            out = causal(query, key, value, state.top, state.total)
            state.add(key, value)
        return share(out).flatten(1, 2).to(v.dtype)

    def attend(self, q, k, v, pattern):
        """Queries (B, H, T, D), keys and values (B, G, S, D) to what the heads give, (B, H, T, D)."""
        return checkpoint(self._attend, q, k, v, pattern, use_reentrant=False, preserve_rng_state=False)

    def weigh(self, q, k, pattern):
        """K(q_t, k_s) / sum_s K(q_t, k_s), (B, H, T, S)."""
        query, key = self._exponents(q, k, pattern)
        key = key.repeat_interleave(self.heads // self.kv_heads, 1)
        scores = query.new_full((*query.shape[:3], key.size(2)), -math.inf)
        for feature in range(query.size(-1)):
            scores = torch.logaddexp(scores, query[..., feature, None] + key[..., None, :, feature])
        return masked_softmax(scores, pattern)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
        query, key = self._exponents(q, k, pattern)
        # heads that share keys become one more dimension: (B, G, H/G, T, m) against (B, G, 1, S, m)
        query, key = query.unflatten(1, (self.kv_heads, -1)), key.unsqueeze(2)
        value = F.pad(v.to(key.dtype), (0, 1), value=1.0).unsqueeze(2)  # the last column counts keys
        with unshortened(q):
            if pattern.causal:
                out = causal(*split_keys(query, key, value, pattern.offset - pattern.start))
            else:
                top = key.amax(-2, keepdim=True).detach()
                out = (query + top - peak(query, top)).exp() @ summed(key, value, top)
        return share(out).flatten(1, 2).to(v.dtype)

    def _exponents(self, q: Tensor, k: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
        """Logarithms of the features, (B, H, T, m) and (B, G, S, m), in at least float32.

        |q|^2 is the same for all features of a query and cancels; a padded key has the lowest numbers.
        """
        with unshortened(q):
            rows, q, k = widened(self.rows).mT * self.head_dim**-0.25, widened(q), widened(k)
            query = (q.unflatten(1, (self.kv_heads, -1)) @ rows[:, None]).flatten(1, 2)
            key = k @ rows - k.square().sum(-1, keepdim=True) / (2 * self.head_dim**0.5)
        if pattern.valid is not None:
            key = key.masked_fill(~pattern.valid[:, None, :, None], lowest(key))
        return query, key


def lowest(exponents: Tensor) -> float:
    """The exponent of what nobody sees: far below all others, and finite, since infinities differ by nan."""
    return torch.finfo(exponents.dtype).min / 4


def peak(query: Tensor, top: Tensor) -> Tensor:
    """The largest exponent of each query, (..., T, 1), over features whose largest key exponent is ``top``.

    A query that sees no key keeps its own, so that all its products become zero.
    """
    return (query + top.masked_fill(top <= lowest(top), 0.0)).amax(-1, keepdim=True).detach()


def summed(key: Tensor, value: Tensor, top: Tensor) -> Tensor:
    """sum_s exp(key_s - top) value_s' for each feature: (..., S, m), (..., S, D) to (..., m, D)."""
    return (key - top).exp().mT @ value


def share(out: Tensor) -> Tensor:
    """Sums of values and, last, of their weights, (..., D + 1), to means (..., D); zeros where there is no weight."""
    total = out[..., -1:]
    return out[..., :-1] / total.masked_fill(total == 0, 1.0)


class Sums(PartState):
    """Sums over the keys of all earlier tokens: their size does not grow with the text."""

    def __init__(self) -> None:
        self.top: Tensor | None = None  # (B, G, 1, 1, m), the largest exponent of each feature
        self.total: Tensor | None = None  # (B, G, 1, m, D + 1), relative to it

    def add(self, key: Tensor, value: Tensor) -> None:
        """Take up exponents (B, G, 1, T, m) and values (B, G, 1, T, D + 1)."""
        assert self.top is not None
        assert self.total is not None
        top = torch.maximum(self.top, key.amax(-2, keepdim=True))
        self.total = self.total * (self.top - top).exp().mT + summed(key, value, top)
        self.top = top


def split_keys(query: Tensor, key: Tensor, value: Tensor, lead: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The arguments of ``causal``, where ``lead`` keys (..., S, m) stand in front of the first query (..., T, m), or
    behind it if negative.
    """
    T, S = query.size(-2), key.size(-2)
    ends = (0, 0, max(0, -lead), lead + T - S)
    key, value, lead = F.pad(key, ends, value=lowest(key)), F.pad(value, ends), max(0, lead)
    old = F.pad(key[..., :lead, :], (0, 0, 0, 1), value=lowest(key))  # so that there is at least one
    top = old.amax(-2, keepdim=True).detach()
    total = summed(old, F.pad(value[..., :lead, :], (0, 0, 0, 1)), top)
    return query, key[..., lead:, :], value[..., lead:, :], top, total


def causal(query: Tensor, key: Tensor, value: Tensor, top: Tensor, total: Tensor) -> Tensor:
    """sum of exp(query_t + key_s - peak_t) value_s over features and keys, s <= t and all before: (..., T, D).

    Keys before come as sums ``total`` (..., m, D) relative to their largest exponents ``top`` (..., 1, m). Keys in
    front of a chunk of queries reach it as sums, too; those in the chunk one by one.
    """
    T = query.size(-2)
    chunk = min(CHUNK, 1 << (T - 1).bit_length())
    fill = -T % chunk
    query = query - peak(query, torch.cat([top, key.detach()], -2).cummax(-2).values[..., 1:, :])
    key = F.pad(key, (0, 0, 0, fill), value=lowest(key))
    query, late, values = (
        y.unflatten(-2, (-1, chunk)) for y in (F.pad(query, (0, 0, 0, fill)), key, F.pad(value, (0, 0, 0, fill)))
    )
    tops, totals = before(late, values, top, total)
    return (within(query, late, values) + (query + tops).exp() @ totals).flatten(-3, -2)[..., :T, :]


def before(key: Tensor, value: Tensor, top: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """What is in front of each of n chunks (..., n, C, m), behind sums ``total`` relative to ``top``: largest exponents
    (..., n, 1, m), sums (..., n, m, D).
    """
    tops = torch.cat([top, key.amax(-2)], -2).detach().cummax(-2).values.unsqueeze(-2)
    ahead, behind = tops[..., :-1, :, :], tops[..., 1:, :, :]
    local, shrink = summed(key, value, behind), (ahead - behind).exp().mT
    totals = [total]
    for n in range(key.size(-3) - 1):
        totals.append(totals[-1] * shrink[..., n, :, :] + local[..., n, :, :])
    return ahead, torch.stack(totals, -3)


def within(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The keys that stand in a query's own chunk, (..., C, m) to (..., C, D): the later half of each 2, 4, ... C
    queries sees the earlier half, relative to that half's largest exponents, which none of them is too early to see.
    """
    out = (query + key).exp().sum(-1, keepdim=True) * value
    half = 1
    while half < query.size(-2):
        (_, late), (early, _), (early_value, _) = (
            y.unflatten(-2, (-1, 2, half)).unbind(-3) for y in (query, key, value)
        )
        top = early.amax(-2, keepdim=True).detach()
        added = ((late + top).exp() @ (early - top).exp().mT) @ early_value
        out = out + F.pad(added.unsqueeze(-3), (0, 0, 0, 0, 1, 0)).flatten(-4, -2)
        half *= 2
    return out
