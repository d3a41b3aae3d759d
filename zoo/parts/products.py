"""Attention as five matrix products, for numbers whose fused kernel is slow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.parts.pattern import Pattern

LARGEST = 2**28  # bytes of float32 scores of one call: the weights are kept for the backward pass


def pay(q: Tensor, k: Tensor) -> bool:
    """Whether a call is faster so than by torch's fused kernel: bfloat16 on a CPU, scores that fit into memory."""
    if q.dtype != torch.bfloat16 or q.device.type != "cpu" or torch.compiler.is_exporting():
        return False  # an export is of any number of rows, and may run elsewhere
    return q.size(2) > 1 and 4 * q.shape[:-1].numel() * k.size(2) <= LARGEST


def attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, dropout: float = 0.0, scale: float | None = None
) -> Tensor:
    """softmax(q k' scale + bias) v, (B, H, T, D): scores and softmax in at least float32, all else in the type of q.

    k and v may have fewer heads. A query that may see no key gets zeros. Once differentiable.
    """
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    mask, bias = pattern.dense(q.size(1), q.size(2), k.size(2), q.device)
    wide = torch.promote_types(q.dtype, torch.float32)
    bias = None if bias is None else bias.to(wide)
    dead = None
    if mask is not None:
        # the lowest number, not -inf: softmax over nothing but -inf is nan
        lowest = torch.full((), torch.finfo(wide).min, dtype=wide, device=q.device)
        bias = torch.where(mask, lowest.new_zeros(()) if bias is None else bias, lowest)
        dead = ~mask.any(-1, keepdim=True)
        if not torch.compiler.is_compiling() and not dead.any():
            dead = None
    with torch.autocast(q.device.type, enabled=False):
        return _Products.apply(q, k, v, bias, dead, dropout, q.size(-1) ** -0.5 if scale is None else scale)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, bias, dead, dropout, scale):
        rows, keys, values = (x.flatten(0, 1) for x in (q, k, v))
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = torch.bmm(rows.to(wide) * scale, keys.to(wide).mT).unflatten(0, q.shape[:2])
        if bias is not None:
            scores += bias
        weights = scores.softmax(-1).to(q.dtype)
        if dead is not None:
            weights = weights.masked_fill(dead, 0.0)
        weights = weights.flatten(0, 1)
        kept, dropped = weights, None
        if dropout:
            kept, dropped = torch.native_dropout(weights, dropout, True)
        ctx.save_for_backward(rows, keys, values, weights, dropped)
        ctx.dropout, ctx.scale, ctx.heads = dropout, scale, q.shape[:2]
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        return torch.bmm(kept, values).unflatten(0, ctx.heads)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        q, k, v, weights, dropped = ctx.saved_tensors
        grad = grad.flatten(0, 1)
        slope, kept = torch.bmm(grad, v.mT), weights
        if dropped is not None:
            share = 1.0 / (1.0 - ctx.dropout)
            kept, slope = (torch.ops.aten.native_dropout_backward(x, dropped, share) for x in (weights, slope))
        dv = torch.bmm(kept.mT, grad)
        slope = torch.ops.aten._softmax_backward_data(slope, weights, -1, weights.dtype)
        dbias = None
        if ctx.needs_input_grad[3]:
            shape, dtype = ctx.bias
            dbias = slope.unflatten(0, ctx.heads).to(dtype).sum_to_size(shape)
        dq, dk = (torch.bmm(s, x).mul_(ctx.scale) for s, x in ((slope, k), (slope.mT, q)))
        dq, dk, dv = (x.unflatten(0, ctx.heads) for x in (dq, dk, dv))
        return dq, dk, dv, dbias, None, None, None
