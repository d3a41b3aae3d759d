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
    # a copy whose tensors, tied ones once, are ghosts: deepcopy takes what its memo already holds
    # not to be trained: the counter follows gradients of what a module returns, and a learned token has no function
    ghosts: dict[int, object] = {id(b): b.to("meta") for b in task.net.buffers()}
    ghosts |= {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False) for p in task.net.parameters()}
    net = copy.deepcopy(task.net, ghosts).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(*arguments)
    parameters = sum(p.numel() for p in task.net.parameters() if p.requires_grad)
    return Cost(parameters, counter.get_total_flops() / tokens)
