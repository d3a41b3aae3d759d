"""How a task's parameters become an optimiser: named groups that learn alike, and one kernel for all tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.errors import UsageError
from zoo.models.parameter_roles import Role, roles_by_name

OptimizerFactory = Callable[[list, float], Optimizer]
FUSED = ("cpu", "cuda", "mps", "xpu")  # devices that torch has fused optimisers for


class NamedGroups(list):
    """Groups for an optimiser: dictionaries whose ``params`` are pairs of a name and a tensor of any shape.

    ``roles`` says of each name what the parameter is for; torch's optimisers need not know.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], roles: Mapping[str, Role]):
        super().__init__(groups)
        self.roles = dict(roles)


def name_groups(
    groups: Iterable[dict[str, Any]], parameters: Iterable[tuple[str, nn.Parameter]], roles: Mapping[str, Role]
) -> NamedGroups:
    """The same groups with the parameters' names, as ``Optimizer.param_groups`` then has them in ``param_names``."""
    names = {parameter: name for name, parameter in parameters}
    with_names = [{**group, "params": [(names[p], p) for p in group["params"]]} for group in groups]
    return NamedGroups(with_names, roles)


def split_by_role(params: Iterable[Any]) -> list[tuple[Role, dict[str, Any]]]:
    """Groups as an optimiser is given them, split so that each holds parameters of one role; matrices first.

    Raises UsageError where parameters have no names.
    """
    groups = [dict(group) for group in as_groups(params)]
    pairs = [pair for group in groups for pair in group["params"]]
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise UsageError("this optimizer needs names: pass net.named_parameters() instead of net.parameters().")
    roles = getattr(params, "roles", None) or roles_by_name(pairs)
    split: list[tuple[Role, dict[str, Any]]] = []
    for role in ("matrix", "embedding", "head", "vector"):
        for group in groups:
            if selection := [pair for pair in group["params"] if roles[pair[0]] == role]:
                split.append((role, {**group, "params": selection}))
    return split


def as_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Groups of an argument ``params`` of an optimiser, which may be groups, tensors of any shape, or named ones."""
    items = params if isinstance(params, NamedGroups) else list(params)
    grouped = all(isinstance(item, dict) for item in items)
    return [{**group, "params": list(group["params"])} for group in items] if grouped else [{"params": items}]


def parameter_groups(
    parameters: Iterable[tuple[str, nn.Parameter]], lr: float, rates: Mapping[str, float], roles: Mapping[str, Role]
) -> list[dict[str, Any]]:
    """Parameters by name in groups that are optimised alike; the first group learns fastest.

    ``rates`` are factors on ``lr`` by a parameter's name. Vectors by ``roles``, of any shape, do not decay: gains and
    biases have no redundancy that decay could remove.
    """
    by_options: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        if parameter.requires_grad:
            options = rates.get(name.removeprefix("net."), 1.0), roles[name] != "vector"
            by_options.setdefault(options, []).append(parameter)
    return [
        {
            "params": by_options[rate, matrices],
            **({} if rate == 1 else {"lr": lr * rate}),
            **({} if matrices else {"weight_decay": 0.0}),
        }
        for rate, matrices in sorted(by_options, reverse=True)
    ]


def build_optimizer(factory: OptimizerFactory, groups: NamedGroups, lr: float) -> Optimizer:
    """The optimiser, with a fused kernel where torch has one.

    Raises UsageError where it refuses the parameters, or cannot make a step as zoo does: from the gradients of one
    backward pass, without a closure that computes the loss again.
    """
    advice = "See: zoo list optimizer"
    try:
        optimizer = factory(groups, lr)
    except UsageError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        name = getattr(factory, "__name__", "the optimizer")
        raise UsageError(f"model.optimizer: {name} refuses the model's parameters: {error}\n{advice}") from error
    name = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UsageError(f"model.optimizer: {name} needs the loss computed again within a step, unlike zoo. {advice}")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UsageError(f"model.optimizer: SparseAdam takes sparse gradients alone, and zoo's are dense. {advice}")
    return fuse(optimizer)


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


class JoinedOptimizer(Optimizer):
    """Several optimisers, each for parameters of its own, as one: their groups and their state are its own.

    ``state_dict`` is that of one optimiser, and training goes on from it exactly.
    """

    def __init__(self, members: Iterable[Optimizer]):
        """
        Args:
            members: optimisers that share no parameter. Each has at least one.
        """
        self.members = list(members)
        self.sizes = [len(member.param_groups) for member in self.members]
        super().__init__([group for member in self.members for group in member.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the members work on the groups and the state of this optimiser."""
        start = 0
        for member, size in zip(self.members, self.sizes, strict=True):
            member.param_groups, member.state = self.param_groups[start : start + size], self.state
            start += size

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Compute the loss by ``closure``, if any, and make one step with every member."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self.members:
            member.step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "members": self.members, "sizes": self.sizes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take groups and state, as copying and ``load_state_dict`` give them."""
        super().__setstate__(state)
        self._share()


def zeros_like_state(state: dict[str, Any], name: str, parameter: Tensor) -> Tensor:
    """The tensor ``name`` of a parameter's state, of the parameter's shape; zeros at its first step."""
    if name not in state:
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state[name]
