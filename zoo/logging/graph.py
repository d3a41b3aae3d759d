"""A chart of the operations of a model, traced from a call of the model itself.

    trace_flow(stack, {"x": torch.randn(1, 5, 64)}, whole=(Attention, Norm, FFN)).mermaid()

Nothing is drawn that the call did not compute, so another block or attention gives another chart.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.logging.run_record import tensors
from zoo.system.torch_internals import TorchDispatchMode, is_view

COPIES = ("_unsafe_view", "clone", "_to_copy", "constant_pad_nd")  # left out, as views are
NAMES = {
    "addmm": "linear", "mm": "linear", "bmm": "product", "baddbmm": "product", "_softmax": "softmax", "mul": "scale",
    "div": "scale", "masked_fill": "mask", "native_layer_norm": "layer norm", "embedding": "embedding",
}  # fmt: skip


class Flow(NamedTuple):
    """Nodes by what they are called, and edges between their numbers, each in the order of the call."""

    nodes: list[str]
    edges: list[tuple[int, int]]

    def edge_names(self) -> list[tuple[str, str]]:
        """Edges by names; a number distinguishes nodes of one name: add, add 2."""
        counts: dict[str, int] = {}
        names = []
        for node in self.nodes:
            counts[node] = counts.get(node, 0) + 1
            names.append(node if counts[node] == 1 else f"{node} {counts[node]}")
        return [(names[a], names[b]) for a, b in self.edges]

    def mermaid(self) -> str:
        """A flow chart as Mermaid and the pages that render it understand it."""
        nodes = [f'    n{number}["{name}"]' for number, name in enumerate(self.nodes)]
        return "\n".join(["flowchart TD", *nodes, *(f"    n{a} --> n{b}" for a, b in self.edges)])


class Tracer(TorchDispatchMode):
    """Follows tensors from the inputs on; what no input reaches, masks and angles among it, is left out."""

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.flow = Flow(list(inputs), [])
        self.references: list[Tensor] = [*inputs.values()]  # an id is only a tensor's while the tensor lives
        self.node = {id(tensor): number for number, tensor in enumerate(inputs.values())}
        self.inside: list[int | str] = []  # numbers of nodes that are drawn as one, and names of modules that are not

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = [tensor for _, tensor in tensors((args, kwargs or {}))]
        before = list(dict.fromkeys(self.node[id(tensor)] for tensor in inputs if id(tensor) in self.node))
        if before:
            at = self._node(func, before)
            for _, tensor in tensors(out):
                self.node[id(tensor)] = at
                self.references.append(tensor)
        return out

    def _node(self, func: Any, before: list[int]) -> int:
        name = func.overloadpacket.__name__
        node = next((entry for entry in self.inside if isinstance(entry, int)), None)
        if node is None and (name in COPIES or is_view(func)):
            return before[0]
        at = self._new(name) if node is None else node
        self.flow.edges.extend((a, at) for a in before if a != at and (a, at) not in self.flow.edges)
        return at

    def _new(self, name: str) -> int:
        label = NAMES.get(name, name.strip("_"))
        module = str(self.inside[-1]).rpartition(".")[2] if self.inside else ""
        self.flow.nodes.append(f"{label} {module}" if label == "linear" and module else label)
        return len(self.flow.nodes) - 1

    def enter(self, name: str, label: str | None) -> None:
        """A module begins: one node where it has a label."""
        if label is None or any(isinstance(entry, int) for entry in self.inside):
            self.inside.append(name)
            return
        self.flow.nodes.append(label)
        self.inside.append(len(self.flow.nodes) - 1)

    def leave(self, *_: object) -> None:
        """The innermost module ends."""
        self.inside.pop()


def trace_flow(net: nn.Module, inputs: Mapping[str, Tensor], whole: tuple[type, ...] = (), **more: Any) -> Flow:
    """The flow of ``net(*inputs.values(), **more)``; what is of a class in ``whole`` is one node with its name."""
    with Tracer(inputs) as tracer, ExitStack() as hooks, torch.no_grad():
        for name, module in net.named_modules():
            label = type(module).__name__ if isinstance(module, whole) else None
            enter = module.register_forward_pre_hook(
                lambda *_, name=name, label=label: tracer.enter(name, label), prepend=True
            )
            leave = module.register_forward_hook(tracer.leave)
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        net(*inputs.values(), **more)
    return tracer.flow
