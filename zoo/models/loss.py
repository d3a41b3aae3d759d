"""Cross-entropy over a vocabulary, without ever holding the logits of all tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.parts import training_products
from zoo.parts.derivatives import differentiable_gradients, transformed

IGNORED = -100
ROWS = 512  # tokens whose logits exist at the same time
CACHE = 2**20  # bytes of float32 weights that stay in a core's cache between the passes over them
FAKE_PARTS = 2  # parts of the rows of logits without numbers, whose memory is estimated


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
    The gradient is a multiple of what the loss needs anyway, so it is computed along with it, ``rows`` tokens at a
    time: the logits of a batch are never all in memory, and none is computed twice. Second derivatives and torch.func
    go by the plain formula, with all logits.
    """
    x, targets = states.flatten(0, -2), targets.flatten()
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    with torch.autocast(device, enabled=False):
        if transformed():
            return full_cross_entropy(x, weight, bias, targets, smoothing, dtype)
        if device == "cpu" and type(x) is Tensor and not torch.compiler.is_compiling():
            real = (targets != IGNORED).nonzero()[:, 0]
            if 2 * len(real) < len(x):  # logits of tokens without a target would be most of the work
                x, targets = x.index_select(0, real), targets[real]
        needed = tuple(torch.is_grad_enabled() and arg is not None and arg.requires_grad for arg in (x, weight, bias))
        return _Chunked.apply(x, weight, bias, targets, smoothing, rows, needed, dtype)


def full_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, dtype: torch.dtype | None
) -> Tensor:
    """The same from all logits at once, by functions with derivatives of every order; x (N, dim), targets (N,).

    Products are computed in ``dtype`` where one is given.
    """
    if dtype is not None:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    real = targets != IGNORED
    logits = F.linear(torch.where(real[:, None], x, 0.0), weight, bias)
    scores = F.log_softmax(logits, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    loss = -scores.gather(1, targets.masked_fill(~real, 0)[:, None])[:, 0] * (1.0 - smoothing)
    if smoothing:
        loss = loss - scores.mean(-1) * smoothing
    return torch.where(real, loss, 0.0).sum()


def rows_in_cache(logits: Tensor) -> int:
    """How many of the rows of logits (N, V) to take through softmax, loss and slope at a time: as many as stay in the
    cache of a core, at least one; all of them on other devices, and where a compiler fuses the passes anyway. Logits
    without numbers are taken in a few parts."""
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return len(logits)
    rows = max(1, CACHE // (4 * logits.size(1)))
    return rows if type(logits) is Tensor else max(rows, len(logits) // FAKE_PARTS)  # a subclass has no numbers


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states, output_weight, output_bias, targets, smoothing, rows, needed, dtype):
        tensors = states, output_weight, output_bias
        x, weight, bias = (tensor if tensor is None or dtype is None else tensor.to(dtype) for tensor in tensors)
        wide = torch.promote_types(x.dtype, torch.float32)
        total = x.new_zeros((), dtype=wide)
        mask = targets != IGNORED
        places = targets.masked_fill(~mask, 0)[:, None]
        dx = torch.empty_like(x) if needed[0] else None
        dw = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        db = torch.zeros_like(bias, dtype=wide) if needed[2] else None
        by_onednn = any(needed) and not torch.compiler.is_compiling() and training_products.serves(x[:rows], weight)
        linear = training_products.product if by_onednn else F.linear
        for row in range(0, x.size(0), rows):
            part = slice(row, row + rows)
            place, real = places[part], mask[part][:, None]
            inputs = torch.where(real, x[part], 0.0)  # a row of padding may hold anything, and inf * 0 is nan
            logits = linear(inputs, weight, bias)
            losses = x.new_empty((len(inputs), 1), dtype=wide)
            step = len(inputs) if db is not None else rows_in_cache(logits)
            for start in range(0, len(inputs), step):
                few = slice(start, start + step)
                scores, target = logits[few], place[few]
                slope = F.softmax(scores, -1, dtype=wide)
                # the largest weight is at least 1 / V: its logarithm, unlike that of the target's, is always finite
                lse = scores.amax(-1, keepdim=True).to(wide) - slope.amax(-1, keepdim=True).log()
                loss = (lse - scores.gather(1, target)) * (1.0 - smoothing)
                if smoothing:
                    loss = loss + (lse - scores.mean(-1, keepdim=True, dtype=wide)) * smoothing
                losses[few] = torch.where(real[few], loss, 0.0)
                if not any(needed):
                    continue
                if smoothing:
                    slope.sub_(smoothing / weight.size(0))
                slope.scatter_add_(1, target, slope.new_full(target.shape, smoothing - 1.0))
                if db is not None:
                    db += torch.where(real, slope, 0.0).sum(0)
                scores.copy_(slope)  # in the place of logits, which nothing reads any more
            total = total + losses.sum()
            if not any(needed):
                continue
            slope = logits
            if dx is not None:
                gradient = linear(slope, weight.t()) if by_onednn else slope @ weight
                dx[part] = torch.where(real, gradient, 0.0)
            if dw is None:
                continue
            if by_onednn:
                dw += linear(slope.t(), inputs.t())
            elif dw.dtype == x.dtype:
                dw.addmm_(slope.T, inputs)
            else:
                dw += slope.T @ inputs
        ctx.save_for_backward(*tensors, targets, dx, dw, db)
        ctx.smoothing, ctx.needed, ctx.dtype = smoothing, needed, dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad):
        *tensors, targets, dx, dw, db = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives, by autograd
            formula = partial(full_cross_entropy, targets=targets, smoothing=ctx.smoothing, dtype=ctx.dtype)
            return *differentiable_gradients(formula, tensors, ctx.needed, grad), None, None, None, None, None
        narrow = ctx.dtype or tensors[1].dtype  # as a product in that type would have given it
        gradients = [None if dx is None else dx * grad.to(dx.dtype)]
        gradients += [None if gradient is None else (gradient * grad).to(narrow) for gradient in (dw, db)]
        pairs = zip(gradients, tensors, strict=True)
        gradients = [None if gradient is None else gradient.to(tensor.dtype) for gradient, tensor in pairs]
        return *gradients, None, None, None, None, None
