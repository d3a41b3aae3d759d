"""Computing again in the backward pass, without a graph in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zoo.parts.derivatives import differentiable_gradients, transformed
from zoo.parts.ffn import losses_apart


def recomputed(function: Callable[..., Tensor], *tensors: Tensor, chance: bool = False) -> Tensor:
    """function(*tensors), of which the tensors alone are kept until the backward pass, which computes it again.

    Unlike torch's checkpoint no graph of the first computation stays either: its nodes take memory for each operation.
    The result has the shape that the function gives. Gradients reach nothing but ``tensors``. ``chance``: the function
    draws random numbers, and must draw the same ones again. Under torch.func, which takes no autograd functions, it is
    computed once and its graph stays.
    """
    if transformed():
        return function(*tensors)
    return _Recomputed.apply(function, chance, *tensors)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function, chance, *tensors):
        ctx.function, device = function, tensors[0].device
        ctx.autocast = _autocast(device.type)
        ctx.states = _states(device) if chance else None
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, grad):
        needs_grad = ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors
        device = saved[0].device

        def again(*tensors: Tensor) -> Tensor:
            with (
                torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=ctx.states is not None),
                torch.enable_grad(),
                ctx.autocast(),
            ):
                if ctx.states is not None:
                    _restore(ctx.states, device)
                return ctx.function(*tensors)

        if torch.is_grad_enabled():  # second derivatives, by autograd
            return None, None, *differentiable_gradients(again, saved, needs_grad, grad)
        inputs = [x.detach().requires_grad_(want) for x, want in zip(saved, needs_grad, strict=True)]
        out = again(*inputs)
        if not out.requires_grad:  # the result depends on none of them
            return None, None, *(None for _ in needs_grad)
        leaves = [x for x in inputs if x.requires_grad]
        grads = iter(torch.autograd.grad(out, leaves, grad, allow_unused=True))
        return None, None, *(next(grads) if want else None for want in needs_grad)


@contextmanager
def without_traces(module: nn.Module) -> Iterator[None]:
    """Within, ``module`` runs again for its gradient: buffers, such as counters, and losses of its own stay."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with losses_apart(module):
            yield
    finally:
        for buffer, before in buffers:
            buffer.data.copy_(before)  # not to autograd, which may have saved a buffer that is as it was


def _autocast(place: str) -> Callable[[], AbstractContextManager]:
    """A context in which autocast is what it is now; devices without numbers have none."""
    if not torch.amp.is_autocast_available(place):
        return nullcontext
    return partial(torch.autocast, place, torch.get_autocast_dtype(place), torch.is_autocast_enabled(place))


def _states(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _restore(states: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1], device)
