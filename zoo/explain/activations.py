"""Hooks by name on every module of a net: record activations, change them, and patch those of one input into another.

with record(model.net, "stack.blocks.*.attend.part") as activations:
    model.net(tokens)
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.logging.attention_maps import evaluation

Side = Literal["output", "input"]
Change = Callable[[str, Tensor], Tensor | None]
Places = slice | Sequence[int]


class Patch(NamedTuple):
    """The outputs of a net, of any shape, for the source, for the target, and for the target with the source's
    activations.
    """

    source: Tensor
    target: Tensor
    patched: Tensor

    def restored(self, metric: Callable[[Tensor], Tensor]) -> float:
        """How much of the difference of a metric between target (0) and source (1) the patch makes; ``metric`` takes an
        output and gives a number. Raises UsageError where both have the same.
        """
        source, target, patched = (float(metric(output)) for output in self)
        if source == target:
            raise UsageError(
                f"the metric is {source:g} for the source and for the target: there is nothing to restore."
            )
        return (patched - target) / (source - target)


def module_names(net: nn.Module, *patterns: str) -> list[str]:
    """The modules of a net that patterns such as ``stack.blocks.*.ffn.part`` match, in the order of the net.

    Raises UsageError for a pattern without a module.
    """
    names = [name for name, _ in net.named_modules() if name]
    result: set[str] = set()
    for pattern in patterns or ("*",):
        matches = fnmatch.filter(names, pattern)
        if not matches:
            close = difflib.get_close_matches(pattern, names, 3, 0.4)
            hint = f" Similar: {', '.join(close)}" if close else ""
            raise UsageError(f"no module {pattern!r} in {type(net).__name__}.{hint}")
        result.update(matches)
    return [name for name in names if name in result]


@contextmanager
def change(net: nn.Module, changes: Mapping[str, Change], side: Side = "output") -> Iterator[None]:
    """Within the block, each module that a pattern of ``changes`` matches calls its function with its name and its
    first floating-point output (or, with side ``input``, argument), and goes on with what that returns; None changes
    nothing.

    Raises UsageError for a pattern without a module, for a result of another shape, and at the end of the block for a
    pattern whose modules were all not called: a net may compute what they hold without calling them.
    """
    called: set[str] = set()

    def after(name: str, function: Change) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            called.add(name)
            return _change_first(name, function, output)

        return hook

    def before(name: str, function: Change) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            called.add(name)
            changed = _change_first(name, function, arguments)
            return None if changed is None else (changed, keywords)

        return hook

    modules = dict(net.named_modules())
    matches = {pattern: module_names(net, pattern) for pattern in changes}
    handles = []
    for pattern, names in matches.items():
        for name in names:
            if side == "output":
                handles.append(modules[name].register_forward_hook(after(name, changes[pattern])))
            else:
                handles.append(
                    modules[name].register_forward_pre_hook(before(name, changes[pattern]), with_kwargs=True)
                )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for pattern, names in matches.items():
        if not called.intersection(names):
            raise UsageError(
                f"{pattern} was not called: name a module inside or around it, such as {_around(names[0])}."
            )


def _change_first(name: str, function: Change, value: Any) -> Any:
    """A value whose first floating-point tensor is that of the function; None where it changes nothing."""
    several = isinstance(value, (tuple, list))
    values = list(value) if several else [value]
    for number, item in enumerate(values):
        if isinstance(item, Tensor) and item.is_floating_point():
            result = function(name, item)
            if result is None:
                return None
            if result.shape != item.shape:
                raise UsageError(
                    f"{name}: the activation is {tuple(item.shape)}, and its change is {tuple(result.shape)}."
                )
            values[number] = result.to(item.dtype)
            if not several:
                return values[0]
            return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
    return None


def _around(name: str) -> str:
    return name.rpartition(".")[0] or "the whole net"


@contextmanager
def record(net: nn.Module, *patterns: str, side: Side = "output") -> Iterator[dict[str, Tensor]]:
    """Within the block, a forward leaves the first floating-point output (or argument) of each module that a pattern
    matches, of any shape, by the module's name; of a module that is called several times the last one.

    Gradients reach the tensors. Raises UsageError as ``change`` does.
    """
    activations: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor) -> None:
        activations[name] = value

    with change(net, dict.fromkeys(patterns or ("*",), keep), side):
        yield activations


def patch(
    net: nn.Module,
    source: Sequence[Tensor],
    target: Sequence[Tensor],
    names: Sequence[str],
    *,
    positions: Places | None = None,
    features: slice | None = None,
    side: Side = "output",
) -> Patch:
    """A forward of the target's arguments in which modules give what they gave for those of the source: activation
    patching. ``positions`` are tokens, the second dimension of an activation, and ``features`` numbers of its last one.

    One head: side ``input`` of the attention's output matrix, ``stack.blocks.0.attend.part.out``, with the features
    ``slice(head * head_dim, (head + 1) * head_dim)``.

    Raises UsageError where the patch has no effect: the module is not called, its activations are equal for both
    inputs, or the output does not depend on them. Otherwise a wrong name would look like a part without influence.

    Paper: Locating and Editing Factual Associations in GPT, Meng et al., 2022.
    """
    modules = module_names(net, *names)
    differences: dict[str, float] = {}
    with evaluation(net):
        with record(net, *modules, side=side) as activations:
            of_source = net(*source)
        of_target = net(*target)

        def take_from_source(name: str, value: Tensor) -> Tensor:
            stored = activations.get(name)
            if stored is None or stored.shape != value.shape:
                shape = "nothing" if stored is None else tuple(stored.shape)
                raise UsageError(
                    f"{name} is {shape} for the source and {tuple(value.shape)} for the target: "
                    "take inputs of one length."
                )
            place: list[Any] = [slice(None)] * value.dim()
            if positions is not None:
                place[1] = positions if isinstance(positions, slice) else list(positions)
            if features is not None:
                place[-1] = features
            result = value.clone()
            result[tuple(place)] = stored[tuple(place)]
            differences[name] = float((result - value).abs().max())
            return result

        with change(net, dict.fromkeys(modules, take_from_source), side):
            patched = net(*target)
    where = ", ".join(modules[:3]) + (" …" if len(modules) > 3 else "")
    if not any(differences.values()):
        raise UsageError(f"{where}: equal for the source and the target at these places, so the patch changes nothing.")
    if torch.equal(patched, of_target):
        raise UsageError(f"{where}: the output does not depend on it at these places, so the patch changes nothing.")
    return Patch(of_source, of_target, patched)
