"""How a task's parameters become an optimiser: groups that learn alike, and one kernel for all tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

OptimizerFactory = Callable[[list, float], Optimizer]
FUSED = ("cpu", "cuda", "mps", "xpu")  # devices that torch has fused optimisers for


def parameter_groups(
    parameters: Iterable[tuple[str, nn.Parameter]], lr: float, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Parameters by name in groups that are optimised alike; the first group learns fastest.

    ``rates`` are factors on ``lr`` by a parameter's name. Only matrices decay: gains and biases have no redundancy
    that decay could remove.
    """
    by_options: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        if parameter.requires_grad:
            options = rates.get(name.removeprefix("net."), 1.0), parameter.dim() > 1
            by_options.setdefault(options, []).append(parameter)
    return [
        {
            "params": by_options[rate, matrices],
            **({} if rate == 1 else {"lr": lr * rate}),
            **({} if matrices else {"weight_decay": 0.0}),
        }
        for rate, matrices in sorted(by_options, reverse=True)
    ]


def fuse(optimizer: Optimizer) -> Optimizer:
    """The optimiser, which updates all tensors in one kernel where torch has one and no option selects another loop."""
    loops = ("fused", "foreach", "capturable", "differentiable")
    is_set = any(group.get(name) for group in optimizer.param_groups for name in loops)
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    supported = all(p.device.type in FUSED and p.is_floating_point() for p in tensors)
    if optimizer.defaults.get("fused", False) is None and not is_set and supported:
        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings["fused"] = True
    return optimizer
