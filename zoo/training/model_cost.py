"""What a model costs: parameters and floating-point operations, counted without running it."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from zoo.tasks.task import Task


class Cost(NamedTuple):
    """Trainable parameters, forward FLOPs (two for a multiply-add) per token or image, and the bytes that a language
    model remembers of one longest text while it writes: keys and values, or a state. None for other models.
    """

    parameters: int
    flops: float
    state_bytes: int | None = None


def cost(task: Task) -> Cost:
    """Count on the meta device: nothing is computed, and no memory is taken for any size of model."""
    arguments, tokens = task.example()
    net = meta_copy(task.net)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(*arguments)
    parameters = sum(p.numel() for p in task.net.parameters() if p.requires_grad)
    return Cost(parameters, counter.get_total_flops() / tokens, state_bytes(net, *arguments))


@torch.no_grad()
def state_bytes(net: nn.Module, text: Tensor, *others: Tensor) -> int | None:
    """Bytes that a language model on the meta device remembers of a text (1, T) which it has read; None for others."""
    begin = getattr(net, "begin", None)
    if others or text.is_floating_point() or begin is None:
        return None
    state = begin(text.size(1))
    try:
        state.step(text)
    except (NotImplementedError, RuntimeError):  # it looks at the numbers, of which the meta device has none
        return None
    return bytes_held(state)


def bytes_held(value: object) -> int:
    """Bytes of the tensors in the attributes and items of a decoding state, without those of the model."""
    if isinstance(value, nn.Module | nn.Parameter | str):
        return 0
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    items = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ()
    return sum(map(bytes_held, [*items, *getattr(value, "__dict__", {}).values()]))


def meta_copy(net: nn.Module) -> nn.Module:
    """A copy of a model in evaluation mode, whose tensors of any shape are on the meta device; tied ones stay one."""
    # deepcopy takes the tensors of its memo, tied ones once: those on the meta device hold no numbers. They need no
    # gradient: the counter follows the gradient function of what a module returns, and a learned token has none
    copies: dict[int, object] = {id(b): b.to("meta") for b in net.buffers()}
    copies |= {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False) for p in net.parameters()}
    return copy.deepcopy(net, copies).eval()
