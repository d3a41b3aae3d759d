"""Products of many rows with a matrix in float32 training, by oneDNN where that was measured to be faster.

torch multiplies float32 by MKL, which on an AMD EPYC with AVX-512 does half of what oneDNN does there, forward and
backward; on processors of Intel both are alike. `zoo.system.kernel_choice` measures it, once for all sizes, so that
the sizes of batches change nothing. Nothing but training uses it: evaluation gives torch's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.parts.derivatives import differentiable_gradients, transformed
from zoo.system import kernel_choice, torch_internals

CALL = kernel_choice.TRAINING_PRODUCTS
TYPE = torch.float32  # oneDNN has bfloat16 too, as torch has by itself
LEAST = 2**22  # multiply-adds of a product, below which calling takes as long as multiplying


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, (..., out), for x (..., in), W (out, in) and b (out,), with its gradients, as ``F.linear`` to within
    rounding.
    """
    if not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad) and serves(x, weight)):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether products of x (..., in) and W (out, in) in a training step are those of this module."""
    return (
        x.dtype is weight.dtype is TYPE
        and x.numel() * weight.size(0) >= LEAST
        and x.device.type == weight.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)
        and type(weight) in (Tensor, nn.Parameter)
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and not torch_internals.operations_are_observed()  # such as those whose FLOPs are counted
        and not transformed()
        and _is_faster()
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, (N, out), for x (N, in) and W (out, in), either of them perhaps a transpose; without gradients."""
    return torch_internals.dense_linear(_dense(x), _dense(weight), bias)


def _dense(x: Tensor) -> Tensor:
    """The matrix (N, M) with rows or columns that are contiguous, and that do not share numbers."""
    rows, columns = x.stride()
    is_dense = (columns == 1 and rows >= x.size(1)) or (rows == 1 and columns >= x.size(0))
    return x if is_dense else x.contiguous()


def _is_faster() -> bool:
    if not torch_internals.can_reorder_weights():
        return False
    return kernel_choice.choose(CALL, ("linear", "onednn"), _examples) == "onednn"


def _examples() -> dict[str, Callable[[], object]]:
    """A product and its gradients by both kernels."""
    _, rows, width, out = CALL
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=numbers, dtype=torch.float32).requires_grad_()
    weight = torch.randn(out, width, generator=numbers, dtype=torch.float32).requires_grad_()
    grad = torch.randn(rows, out, generator=numbers, dtype=torch.float32)

    def call(function: Callable[..., Tensor]) -> None:
        torch.autograd.grad(function(x, weight, None), (x, weight), grad)

    return {"linear": lambda: call(F.linear), "onednn": lambda: call(_Linear.apply)}


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return product(x.reshape(-1, x.size(-1)), weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives, by autograd
            return tuple(differentiable_gradients(F.linear, (x, weight, bias), ctx.needs_input_grad, grad))
        rows = grad.reshape(-1, grad.size(-1))
        dx, dw, db = ctx.needs_input_grad
        return (
            product(rows, weight.t()).view(x.shape) if dx else None,
            product(rows.t(), x.reshape(-1, x.size(-1)).t()) if dw else None,
            rows.sum(0) if db else None,
        )
