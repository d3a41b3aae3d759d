"""What a model costs: parameters and floating-point operations, counted without running it."""

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from zoo.tasks.task import Task


class Cost(NamedTuple):
    """Trainable parameters, and forward FLOPs (two for a multiply-add) per token or image."""

    parameters: int
    flops: float


def cost(task: Task) -> Cost:
    """Count on the meta device: nothing is computed, and no memory is taken for any size of model."""
    arguments, tokens = task.example()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        meta_copy(task.net)(*arguments)
    parameters = sum(p.numel() for p in task.net.parameters() if p.requires_grad)
    return Cost(parameters, counter.get_total_flops() / tokens)


def meta_copy(net: nn.Module) -> nn.Module:
    """A copy of a model in evaluation mode, whose tensors of any shape are on the meta device; tied ones stay one."""
    # deepcopy takes the tensors of its memo, tied ones once: those on the meta device hold no numbers. They need no
    # gradient: the counter follows the gradient function of what a module returns, and a learned token has none
    copies: dict[int, object] = {id(b): b.to("meta") for b in net.buffers()}
    copies |= {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False) for p in net.parameters()}
    return copy.deepcopy(net, copies).eval()
