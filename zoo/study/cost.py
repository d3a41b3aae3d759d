"""What a model costs: parameters and floating-point operations, counted without running it."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from zoo.tasks.task import Task


class Cost(NamedTuple):
    """Trainable parameters, and forward FLOPs (two for a multiply-add) per token or image."""

    parameters: int
    flops: float


def cost(task: Task) -> Cost:
    """Count on the meta device: nothing is computed, and no memory is taken for any size of model."""
    arguments, tokens = task.example()
    state = {**dict(task.net.named_parameters()), **dict(task.net.named_buffers())}
    ghosts: dict[str, Tensor] = {name: tensor.detach().to("meta") for name, tensor in state.items()}
    training = task.net.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.func.functional_call(task.net.eval(), ghosts, arguments)
    task.net.train(training)
    parameters = sum(p.numel() for p in task.net.parameters() if p.requires_grad)
    return Cost(parameters, counter.get_total_flops() / tokens)
