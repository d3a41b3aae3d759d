"""Cross-entropy over a vocabulary, without ever holding the logits of all tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
ROWS = 512  # tokens whose logits exist at the same time


def cross_entropy(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    rows: int = ROWS,
) -> Tensor:
    """The sum over tokens of -log softmax(W x + b)[target], float32, from states x (..., dim) and W (V, dim).

    Targets (...) that are -100 count nothing. ``smoothing`` spreads that share of a target evenly over the vocabulary.
    The gradient is a multiple of what is known once the loss is, so it is computed along with it, ``rows`` tokens at a
    time: the logits of a batch are never all in memory, and none is computed twice. Once differentiable.
    """
    x, targets = states.flatten(0, -2), targets.flatten()
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    wanted = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    with torch.autocast(x.device.type, enabled=False):
        return _Chunked.apply(x, weight, bias, targets, smoothing, rows, wanted)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, targets, smoothing, rows, wanted):
        wide = torch.promote_types(x.dtype, torch.float32)
        total = x.new_zeros((), dtype=wide)
        kept = targets != IGNORED
        places = targets.masked_fill(~kept, 0)[:, None]
        dx = torch.empty_like(x) if wanted else None
        dw = torch.zeros_like(weight, dtype=wide) if wanted else None
        db = torch.zeros_like(bias, dtype=wide) if wanted and bias is not None else None
        spread = smoothing / weight.size(0)
        for first in range(0, x.size(0), rows):
            part = slice(first, first + rows)
            place, real = places[part], kept[part][:, None]
            # a row of padding may hold anything, and inf * 0 is nan
            seen = torch.where(real, x[part], 0.0)
            logits = F.linear(seen, weight, bias)
            slope = F.softmax(logits, -1, dtype=wide)
            # the largest weight is at least 1 / V: its logarithm, unlike that of the target's, is always finite
            lse = logits.amax(-1, keepdim=True).to(wide) - slope.amax(-1, keepdim=True).log()
            loss = (lse - logits.gather(1, place)) * (1.0 - smoothing)
            if smoothing:
                loss = loss + (lse - logits.mean(-1, keepdim=True, dtype=wide)) * smoothing
            total = total + torch.where(real, loss, 0.0).sum()
            if dx is None or dw is None:
                continue
            if smoothing:
                slope.sub_(spread)
            slope.scatter_add_(1, place, slope.new_full(place.shape, smoothing - 1.0))
            if db is not None:
                db += torch.where(real, slope, 0.0).sum(0)
            slope = slope.to(x.dtype)
            dx[part] = torch.where(real, slope @ weight, 0.0)
            if dw.dtype == x.dtype:
                dw.addmm_(slope.T, seen)
            else:
                dw += slope.T @ seen
        ctx.grads = dx, dw, db
        ctx.types = weight.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        dx, dw, db = ctx.grads
        narrow = ctx.types
        return (
            dx * grad.to(dx.dtype),
            (dw * grad).to(narrow),
            None if db is None else (db * grad).to(narrow),
            None, None, None, None,
        )  # fmt: skip
