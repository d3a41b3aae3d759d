"""A pattern in FlexAttention's words: a function of scores, and a mask that knows which blocks of keys are empty."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from zoo.parts.pattern import Pattern

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Lowered(NamedTuple):
    """What flex_attention is told about one call; None: nothing."""

    score: ScoreMod | None
    block: BlockMask | None


_lowered: WeakKeyDictionary[Pattern, dict[tuple[int, int, torch.device], Lowered]] = WeakKeyDictionary()


def lower(pattern: Pattern, T: int, S: int, device: torch.device) -> Lowered:
    """``pattern`` for T queries and S keys, made once for all layers of one forward."""
    if torch.compiler.is_compiling():  # inside a larger graph, which computes it once anyway
        return _lower(pattern, T, S, device)
    lowered, key = _lowered.setdefault(pattern, {}), (T, S, device)
    if key not in lowered:
        # a copy: what is remembered must not keep alive the pattern that it is remembered for
        lowered[key] = _lower(replace(pattern), T, S, device)
    return lowered[key]


def _lower(pattern: Pattern, T: int, S: int, device: torch.device) -> Lowered:
    # tensors, since each new number would be a new kernel
    first = torch.tensor(pattern.offset, device=device), torch.tensor(pattern.start, device=device)
    score = score_mod(pattern, *first) if pattern.needs & {"bias", "score_cap"} else None
    if pattern.needs <= {"bias", "score_cap"} or pattern.sees_all(T, S):
        return Lowered(score, None)
    rows = None if pattern.valid is None else pattern.valid.size(0)
    return Lowered(score, create_block_mask(mask_mod(pattern, *first), rows, None, T, S, device))


def mask_mod(pattern: Pattern, first_query: Tensor, first_key: Tensor) -> MaskMod:
    """May query number q of row b see key number k?"""
    valid = pattern.valid

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = pattern.allowed(q + first_query, k + first_key)
        return allowed if valid is None else allowed & valid[b, k]

    return visible


def score_mod(pattern: Pattern, first_query: Tensor, first_key: Tensor) -> ScoreMod:
    """The score under its cap, + bias(h, query, key); h counts the heads of queries, also where heads share keys."""
    bias = pattern.bias

    def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        score = pattern.cap(score)
        return score if bias is None else score + bias(h, q + first_query, k + first_key)

    return biased
