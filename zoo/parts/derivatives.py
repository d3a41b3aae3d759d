"""Second derivatives and torch.func for the autograd functions with hand-written gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.system.torch_internals import function_transforms_active


def transformed() -> bool:
    """Whether torch.func (grad, vmap, jvp) or forward mode is active, which do not support autograd functions."""
    if torch.compiler.is_compiling():
        return False
    return function_transforms_active()


def differentiable_gradients(
    formula: Callable[..., Tensor], inputs: Sequence[Tensor | None], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of ``formula(*inputs)`` where ``needed``, None elsewhere, as a graph that has derivatives again.

    ``inputs`` are those of the autograd function, with their graph; ``grad`` is that of its result. Each gradient has
    the shape of its input.
    """
    with torch.enable_grad():
        # views: the gradient is of this use of an input alone, and one tensor may be two of the inputs
        views = [None if x is None else x.view_as(x) for x in inputs]
        ends = [x for x, need in zip(views, needed, strict=True) if need and x is not None]
        out = formula(*views)
        if not out.requires_grad:  # the result depends on none of them
            return [None for _ in views]
        gradients = iter(torch.autograd.grad(out, ends, grad, create_graph=True, allow_unused=True))
    return [next(gradients) if need and x is not None else None for x, need in zip(views, needed, strict=True)]


def first_derivatives_only(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Has the ``backward`` of an autograd function raise UsageError where its result is to be differentiated again.

    torch's once_differentiable lets through gradients of a linear end, and takes them for constants.
    """

    def wrap(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def checked(ctx: Any, *grads: Any) -> Any:
            if torch.is_grad_enabled():
                raise UsageError(f"{name} has no second derivatives: leave out create_graph=True, or choose another.")
            return backward(ctx, *grads)

        return checked

    return wrap
