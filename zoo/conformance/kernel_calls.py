"""Test calls for attention kernels: queries, keys and values for every feature of a pattern, and a slow reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.conformance.check import require
from zoo.conformance.subject import HEADS
from zoo.conformance.token_checks import difference
from zoo.parts.backend import Backend, Naive
from zoo.parts.pattern import Pattern

Attend = Callable[[Tensor, Tensor, Tensor, Pattern], Tensor]  # as a backend, or an attention's heads
FEATURES = ("causal", "window", "valid", "bias", "content", "sparse", "score_cap")
CAP = 0.7  # scores of the calls here reach 3
# queries, keys, positions of the first query and of the first key
SHAPES = {
    "a whole sequence": (7, 7, 0, 0), "one new token": (1, 9, 8, 0), "a chunk after a prefix": (3, 9, 6, 0),
    "one token": (1, 1, 0, 0), "a cache that forgot": (2, 5, 9, 6), "many tokens": (33, 33, 0, 0),
}  # fmt: skip


class Call(NamedTuple):
    """One call of a kernel, q (B, H, T, D), k and v (B, G, S, D), with the pattern's options and a description."""

    q: Tensor
    k: Tensor
    v: Tensor
    pattern: dict[str, Any]
    description: str

    def make_pattern(self) -> Pattern:
        """The pattern of the call."""
        return Pattern(**self.pattern)


def features(words: frozenset[str], keys: int, heads: int) -> dict[str, Any]:
    """The options of a pattern with these features; some queries see no key where padding allows it."""
    fields: dict[str, Any] = {}
    if "causal" in words:
        fields["causal"] = True
    if "window" in words:
        fields["window"] = 3
    if "valid" in words:
        fields["valid"] = torch.stack([torch.arange(keys) % 3 != 0, torch.arange(keys) < max(1, keys - 2)])
    if "bias" in words:
        slopes = torch.linspace(0.1, 0.4, heads, dtype=torch.float64)
        fields["bias"] = lambda head, query, key: slopes[head] * (query - 2 * key)
    if "content" in words:  # a mask by content has two rows
        shares = torch.linspace(0.1, 0.4, 2 * heads, dtype=torch.float64).view(2, heads, 1, 1)
        fields["content"] = lambda query, key: (shares * (key[None] - 2 * query[:, None])).sin()
    if "sparse" in words:
        fields["sparse"] = every_second
    if "score_cap" in words:
        fields["score_cap"] = CAP
    return fields


def every_second(query: Tensor, key: Tensor) -> Tensor:
    """Whether a key stands at an even distance; elementwise."""
    return (query - key) % 2 == 0


def subsets(supports: frozenset[str]) -> Iterator[frozenset[str]]:
    """Every combination of the features that are claimed; what changes scores of tokens, alone and with all others."""
    scoring = ("content", "score_cap")
    claimed = [feature for feature in FEATURES if feature in supports and feature not in scoring]
    for size in range(len(claimed) + 1):
        yield from map(frozenset, itertools.combinations(claimed, size))
    for feature in (feature for feature in scoring if feature in supports):
        yield from (frozenset({feature}), frozenset({*claimed, feature}))


def calls(
    supports: frozenset[str], dtype: torch.dtype = torch.float64, heads: int = 4, width: int = 12
) -> Iterator[Call]:
    """Every combination of claimed features for whole sequences, and all of them at once for every other shape."""
    make = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

    everything = frozenset(supports) & frozenset(FEATURES)
    rows = [("a whole sequence", words) for words in subsets(supports)]
    rows += [
        (shape, words) for shape in list(SHAPES)[1:] for words in {everything, everything & {"causal"}, frozenset()}
    ]
    for shape, words in rows:
        T, S, offset, start = SHAPES[shape]
        for groups in (
            (heads, heads // 2, 1)
            if shape == "a whole sequence" and len(words) in (0, 1, len(everything))
            else (heads,)
        ):
            q, k, v = draw(2, heads, T, width), draw(2, groups, S, width), draw(2, groups, S, width)
            pattern = features(words, S, heads) | {"offset": offset, "start": start}
            shared = "" if groups == heads else f", {heads} heads sharing {groups}"
            yield Call(q, k, v, pattern, f"{shape} with {', '.join(sorted(words)) or 'no feature'}{shared}")


def check_rows_without_keys(attend: Attend, groups: int, width: int, causal: bool = False) -> None:
    """Raise Broken unless a query that sees no key gets zeros, and gradients stay finite, with ``groups`` of keys."""
    q, k, v = (torch.randn(2, heads, 6, width).requires_grad_() for heads in (HEADS, groups, groups))
    valid = torch.stack([torch.zeros(6, dtype=torch.bool), torch.arange(6) >= 3])
    out = attend(q, k, v, Pattern(valid=valid, causal=causal))
    require(bool(out.isfinite().all()), "a query without keys gives numbers that are not finite.")
    require(not out[0].any(), "queries without keys must give zeros, not an average.")
    grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    fine = all(bool(grad.isfinite().all()) for grad in grads)
    require(fine, "queries without keys give gradients that are not finite: mask with a finite number, then zero.")


def check_hidden_keys(attend: Attend, words: Iterable[str], groups: int, width: int) -> None:
    """Raise Broken where a key changes a result that one of these features hides, with ``groups`` of keys."""
    for feature in sorted(words):
        q, k, v = (torch.randn(2, heads, 8, width) for heads in (HEADS, groups, groups))
        fields = features(frozenset({feature}), 8, HEADS)
        mask = Pattern(**fields).mask(torch.arange(8), torch.arange(8))
        assert mask is not None
        hidden = ~mask.expand(2, 1, 8, 8)[:, :, 4, :, None]
        whole, fitting = attend(q, k, v, Pattern(**fields))[:, :, 4], q[:, :: HEADS // groups, 4:5]
        for loud in (torch.tensor(1e3), 1e5 * fitting, -1e5 * fitting):
            loud_k, loud_v = torch.where(hidden, loud, k), torch.where(hidden, torch.tensor(1e6), v)
            gap = difference(attend(q, loud_k, loud_v, Pattern(**fields))[:, :, 4], whole)
            require(
                gap <= 1e-5,
                f"a key hidden by {feature} changes the result by {gap:.1e}: hide with -inf or the lowest number "
                "before the softmax, not with -1e4 and not behind it.",
            )


LONG = {
    "hundreds of tokens": (300, 300, 0, 0),
    "a chunk of hundreds": (150, 300, 150, 0),
    "a token after hundreds": (1, 300, 299, 0),
}


def long_calls(supports: frozenset[str]) -> Iterator[Call]:
    """Calls over more keys than most kernels take at once, with no feature, with causality, and with all of them."""
    make = torch.Generator().manual_seed(0)
    everything = frozenset(supports) & frozenset(FEATURES)
    for shape, (T, S, offset, start) in LONG.items():
        for words in sorted({frozenset(), everything & {"causal"}, everything - {"window"}, everything}, key=sorted):
            q, k, v = (torch.randn(2, 4, length, 12, generator=make) for length in (T, S, S))
            pattern = features(words, S, 4) | {"offset": offset, "start": start}
            yield Call(q, k, v, pattern, f"{shape} with {', '.join(sorted(words)) or 'no feature'}")


def compared_queries(backend: Backend, call: Call) -> Tensor:
    """1 at the queries (B, 1, T, 1) whose results count, 0 at padding where the backend skips it."""
    pattern, (B, _, T, _), S = call.make_pattern(), call.q.shape, call.k.size(2)
    counts = torch.ones(B, 1, T, 1, dtype=torch.bool)
    if pattern.valid is not None and backend.skips_padding:
        own = torch.arange(T) + pattern.offset - pattern.start
        among = (own >= 0) & (own < S)
        counts[:, 0, :, 0] = pattern.valid[:, own.clamp(0, S - 1)] | ~among
    return counts


def reference_lse(call: Call, q: Tensor, k: Tensor) -> Tensor:
    """ln sum_s e^(score_s) in float64 for q (B, H, T, D) and k (B, G, S, D) with the call's pattern, (B, H, T); -inf
    for queries that see no key.
    """
    pattern, groups = call.make_pattern(), q.size(1) // k.size(1)
    query = torch.arange(pattern.offset, pattern.offset + q.size(2))
    key = torch.arange(pattern.start, pattern.start + k.size(2))
    scores = pattern.cap(q.double() @ k.double().repeat_interleave(groups, 1).mT * q.size(-1) ** -0.5)
    cost, mask = pattern.cost(q.size(1), query, key), pattern.mask(query, key)
    scores = scores if cost is None else scores + cost
    mask = torch.ones(1, 1, dtype=torch.bool) if mask is None else mask
    scores = scores.masked_fill(~mask, float("-inf"))
    most = scores.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    total = (scores - most).exp().sum(-1)
    dead = total == 0
    return (total.masked_fill(dead, 1).log() + most[..., 0]).masked_fill(dead, float("-inf"))


def reference_result(call: Call, scale: float | None = None) -> Tensor:
    """The result (B, H, T, D) of Naive in float64."""
    return Naive()(call.q.double(), call.k.double(), call.v.double(), call.make_pattern(), scale=scale)
