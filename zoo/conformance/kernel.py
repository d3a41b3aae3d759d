"""Calls that try a kernel: queries, keys and values with every feature of a pattern, and a slow truth beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern

FEATURES = ("causal", "window", "valid", "bias", "sparse")
# queries, keys, positions of the first query and of the first key
SHAPES = {
    "a whole sequence": (7, 7, 0, 0), "one new token": (1, 9, 8, 0), "a chunk after a prefix": (3, 9, 6, 0),
    "one token": (1, 1, 0, 0), "a cache that forgot": (2, 5, 9, 6), "many tokens": (33, 33, 0, 0),
}  # fmt: skip


class Call(NamedTuple):
    """One call of a kernel, and how it is called in a sentence."""

    q: Tensor
    k: Tensor
    v: Tensor
    pattern: dict[str, Any]
    told: str

    def asked(self) -> Pattern:
        return Pattern(**self.pattern)


def features(words: frozenset[str], keys: int, heads: int, table: Tensor | None = None) -> dict[str, Any]:
    """The options of a pattern with these features; some queries see no key where padding allows it."""
    asked: dict[str, Any] = {}
    if "causal" in words:
        asked["causal"] = True
    if "window" in words:
        asked["window"] = 3
    if "valid" in words:
        asked["valid"] = torch.stack([torch.arange(keys) % 3 != 0, torch.arange(keys) < max(1, keys - 2)])
    if "bias" in words:
        slopes = torch.linspace(0.1, 0.4, heads, dtype=torch.float64) if table is None else table
        asked["bias"] = lambda head, query, key: slopes[head] * (query - 2 * key)
    if "sparse" in words:
        asked["sparse"] = every_second
    return asked


def every_second(query: Tensor, key: Tensor) -> Tensor:
    """Keys at an even distance."""
    return (query - key) % 2 == 0


def subsets(lowers: frozenset[str]) -> Iterator[frozenset[str]]:
    """Every combination of the features that are claimed."""
    claimed = [feature for feature in FEATURES if feature in lowers]
    for size in range(len(claimed) + 1):
        yield from map(frozenset, itertools.combinations(claimed, size))


def calls(
    lowers: frozenset[str], dtype: torch.dtype = torch.float64, heads: int = 4, width: int = 12
) -> Iterator[Call]:
    """Every combination of claimed features for whole sequences, and all of them at once for every other shape."""
    make = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

    everything = frozenset(lowers) & frozenset(FEATURES)
    wanted = [("a whole sequence", words) for words in subsets(lowers)]
    wanted += [
        (shape, words) for shape in list(SHAPES)[1:] for words in {everything, everything & {"causal"}, frozenset()}
    ]
    for shape, words in wanted:
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


def truth(call: Call, scale: float | None = None) -> Tensor:
    """The textbook's result in float64."""
    return Naive()(call.q.double(), call.k.double(), call.v.double(), call.asked(), scale=scale)
