"""Where tokens stand, for attentions that are moved by more than distances."""

import torch
from torch import Tensor

from zoo.parts.pattern import Pattern
from zoo.parts.position import Position


def turned(x: Tensor, pattern: Pattern, position: Position, keys: bool = False) -> Tensor:
    """Queries or keys (B, H, T, D) at pattern.offset, turned by their places among the real tokens.

    Dot products of turned vectors know only distances; hashes and random features of them do not, and the first real
    token must be the first however much padding is in front of it.
    """
    T = x.size(2)
    if pattern.valid is None:
        place = torch.arange(pattern.offset, pattern.offset + T, device=x.device)
    else:
        first = pattern.offset - pattern.start
        place = (pattern.valid.cumsum(1) - 1).clamp(min=0)[:, None, first : first + T]
    return (position.rotate_keys if keys else position.rotate)(x, place - position.extent.special)
