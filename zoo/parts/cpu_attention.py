"""Attention as five matrix products, for numbers whose fused kernel may be slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.parts.derivatives import differentiable_gradients, transformed
from zoo.parts.pattern import Pattern
from zoo.system import kernel_choice
from zoo.system.torch_internals import assume_constant_result, softmax_backward

LARGEST = 2**28  # bytes of float32 scores of one call: the weights are kept for the backward pass
CACHE = 2**21  # bytes of float32 scores that stay in a core's caches between the passes over them
EXAMPLE, HEADS = 2**18, 64  # scores and heads of a measurement, at most


def worthwhile(q: Tensor, k: Tensor, pattern: Pattern, dropout: float = 0.0) -> bool:
    """Whether a call is faster so than by torch's fused kernel: bfloat16 on a CPU, scores that fit into memory, and
    queries (B, H, T, D) and keys (B, G, S, D) of a class for which that was measured.
    """
    if q.dtype != torch.bfloat16 or q.device.type != "cpu" or torch.compiler.is_exporting():
        return False  # an export is of any number of rows, and may run elsewhere
    if q.size(2) == 1 or 4 * q.shape[:-1].numel() * k.size(2) > LARGEST:
        return False
    if transformed():  # the fused kernel has first derivatives only
        return True
    training = dropout > 0 or (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad))
    masked = bool(pattern.needs - {"causal"})
    sizes = upper_power_of_two(q.size(2)), upper_power_of_two(k.size(2))
    return fastest_kernel(*sizes, q.size(3), training, masked, dropout > 0) == "products"


def upper_power_of_two(size: int) -> int:
    """The least power of two that is not below a size; by comparisons, which a compiler need not know the size for."""
    power = 1
    while power < size:
        power *= 2
    return power


@assume_constant_result  # what is compiled holds the kernel that was measured
def fastest_kernel(queries: int, keys: int, width: int, training: bool, masked: bool, dropout: bool) -> str:
    """The kernel for calls in bfloat16 of so many queries and keys: "fused", which is torch's own, or "products"."""
    words = ["bf16 attention", "training" if training else "evaluation", *["masked"] * masked, *["dropout"] * dropout]
    return kernel_choice.choose(
        (" ".join(words), queries, keys, width), ("fused", "products"),
        lambda: _examples(queries, keys, width, training, masked, 0.1 * dropout),
    )  # fmt: skip


def _examples(
    queries: int, keys: int, width: int, training: bool, masked: bool, dropout: float
) -> dict[str, Callable[[], object]]:
    """An example of the class by both kernels, gradients included in training, with as many heads as fill a moment."""
    heads = max(1, min(HEADS, EXAMPLE // (queries * keys)))
    numbers = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, size, width, generator=numbers).bfloat16().requires_grad_(training)
        for size in (queries, keys, keys)
    )
    mask = (torch.arange(keys) < keys - 1).expand(queries, keys) if masked else None
    pattern = Pattern(valid=None if mask is None else mask[:1], causal=mask is None and queries == keys)

    def fused() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, pattern.causal)

    def run(kernel: Callable[[], Tensor]) -> None:
        with torch.set_grad_enabled(training):
            out = kernel()
            if training:
                torch.autograd.grad(out, (q, k, v), out.detach())

    return {
        "fused": lambda: run(fused),
        "products": lambda: run(lambda: attention(q, k, v, pattern, dropout)),
    }


def attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, dropout: float = 0.0, scale: float | None = None
) -> Tensor:
    """softmax(q k' scale + bias) v, (B, H, T, D): scores and softmax in at least float32, all else in the type of q.

    k and v may have fewer heads. A query that may see no key gets zeros.
    """
    k, v = (x if x.size(1) == q.size(1) else x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    mask, bias = pattern.dense(q.size(1), q.size(2), k.size(2), q.device)
    wide = torch.promote_types(q.dtype, torch.float32)
    bias = None if bias is None else bias.to(wide)
    dead = None
    if mask is not None:
        dead = ~mask.any(-1, keepdim=True)
        if not torch.compiler.is_compiling() and not transformed() and not dead.any():
            dead = None
    scale = q.size(-1) ** -0.5 if scale is None else scale
    rows, keys, values = (x.flatten(0, 1) for x in (q, k, v))
    with torch.autocast(q.device.type, enabled=False):
        if transformed():
            weights = F.dropout(weights_of(rows, keys, additive(bias, mask, wide), dead, q.shape[:2], scale), dropout)
            return torch.bmm(weights, values).unflatten(0, q.shape[:2])
        return _Products.apply(rows, keys, values, bias, mask, dead, q.shape[:2], dropout, scale)


def additive(bias: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A bias and a mask (True where a query may look) as one term of the scores, all broadcast to (B, H, T, S)."""
    if mask is None:
        return bias
    # the lowest number, not -inf: softmax over nothing but -inf is nan
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(mask, lowest.new_zeros(()) if bias is None else bias, lowest)


def weights_of(
    q: Tensor, k: Tensor, term: Tensor | None, dead: Tensor | None, heads: Sequence[int], scale: float
) -> Tensor:
    """softmax(q k' scale + term), (B H, T, S), from q (B H, T, D) and k (B H, S, D), in the type of q."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.bmm(q.to(wide) * scale, k.to(wide).mT).unflatten(0, heads)
    if term is not None:
        scores = scores + term if torch.is_grad_enabled() or transformed() else scores.add_(term)
    weights = scores.softmax(-1).to(q.dtype)
    if dead is not None:
        weights = weights.masked_fill(dead, 0.0)
    return weights.flatten(0, 1)


class Group(NamedTuple):
    """Some heads of some texts: their rows among all B H, and their places in (B, H)."""

    rows: slice
    texts: slice
    heads: slice
    shape: tuple[int, int]

    def of(self, term: Tensor | None) -> Tensor | None:
        """What belongs to them of a term that broadcasts to (B, H, T, S); a view."""
        if term is None:
            return None
        term = term[(None,) * (4 - term.dim())]
        return term[self.texts if term.size(0) > 1 else slice(None), self.heads if term.size(1) > 1 else slice(None)]


def groups_in_cache(heads: Sequence[int], queries: int, keys: int) -> list[Group]:
    """All B x H heads in groups whose scores stay in the cache of a core: whole texts, or some heads of one text."""
    texts, count = heads
    fit = max(1, CACHE // (4 * max(1, queries * keys)))
    if torch.compiler.is_compiling() or fit >= texts * count:
        return [Group(slice(0, texts * count), slice(0, texts), slice(0, count), (texts, count))]
    groups = []
    more, some = max(1, fit // count), min(count, fit)
    for text in range(0, texts, more):
        last = min(text + more, texts)
        for head in range(0, count, some):
            end = min(head + some, count)
            rows = slice(text * count + head, (last - 1) * count + end)
            groups.append(Group(rows, slice(text, last), slice(head, end), (last - text, end - head)))
    return groups


def multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a b, (N, T, D), written to ``out`` of that shape; N x T x S by N x S x D."""
    if torch.compiler.is_compiling():
        return out.copy_(torch.bmm(a, b))
    return torch.bmm(a, b, out=out)


def share_of(dropout: float) -> float:
    """What the weights that are not dropped are multiplied by; none is left at rate 1."""
    return 0.0 if dropout == 1 else 1.0 / (1.0 - dropout)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, bias, mask, dead, heads, dropout, scale):
        term = additive(bias, mask, torch.promote_types(q.dtype, torch.float32))
        weights, out = q.new_empty((*q.shape[:2], k.size(1))), q.new_empty((*q.shape[:2], v.size(2)))
        dropped = torch.empty_like(weights, dtype=torch.bool) if dropout else None
        for group in groups_in_cache(heads, q.size(1), k.size(1)):
            rows = group.rows
            shares = weights[rows] = weights_of(q[rows], k[rows], group.of(term), group.of(dead), group.shape, scale)
            if dropped is not None:
                shares, dropped[rows] = torch.native_dropout(shares, dropout, True)
            multiply(shares, v[rows], out[rows])
        ctx.save_for_backward(q, k, v, bias, mask, dead, weights, dropped)
        ctx.dropout, ctx.scale, ctx.heads = dropout, scale, heads
        return out.unflatten(0, heads)

    @staticmethod
    def backward(ctx: Any, grad):
        with torch.autocast(grad.device.type, enabled=False):
            return _Products.gradients(ctx, grad)

    @staticmethod
    def gradients(ctx: Any, grad):
        """The gradients of q, k, v and the bias, each shaped like its tensor, or None where it is not needed."""
        q, k, v, bias, mask, dead, weights, dropped = ctx.saved_tensors
        need = ctx.needs_input_grad
        if torch.is_grad_enabled():  # second derivatives, by autograd

            def formula(q, k, v, bias):
                term = additive(bias, mask, torch.promote_types(q.dtype, torch.float32))
                shares = weights_of(q, k, term, dead, ctx.heads, ctx.scale)
                shares = shares if dropped is None else shares * dropped * share_of(ctx.dropout)
                return torch.bmm(shares, v).unflatten(0, ctx.heads)

            return *differentiable_gradients(formula, (q, k, v, bias), need[:4], grad), None, None, None, None, None
        grad = grad.flatten(0, 1)
        dq, dk, dv = (torch.empty_like(x) if needed else None for x, needed in zip((q, k, v), need, strict=False))
        dbias = torch.zeros_like(bias) if need[3] else None
        for group in groups_in_cache(ctx.heads, q.size(1), k.size(1)):
            rows, share = group.rows, share_of(ctx.dropout)
            shares = weights[rows]
            if dv is not None:
                if dropped is not None:
                    shares = torch.ops.aten.native_dropout_backward(shares, dropped[rows], share)
                multiply(shares.mT, grad[rows], dv[rows])
            if dq is None and dk is None and dbias is None:
                continue
            slope = torch.bmm(grad[rows], v[rows].mT)
            if dropped is not None:
                slope = torch.ops.aten.native_dropout_backward(slope, dropped[rows], share)
            slope = softmax_backward(slope, weights[rows])
            if dbias is not None:
                part = group.of(dbias)
                assert part is not None
                part += slope.unflatten(0, group.shape).to(bias.dtype).sum_to_size(part.shape)
            if dq is not None:
                multiply(slope, k[rows], dq[rows]).mul_(ctx.scale)
            if dk is not None:
                multiply(slope.mT, q[rows], dk[rows]).mul_(ctx.scale)
        return dq, dk, dv, dbias, None, None, None, None, None
