"""The traced call as a graph: a tree of modules with their operations, and flow charts of its parts as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from torch import nn

from zoo.console import printable
from zoo.explain.costs import Explanation, class_name
from zoo.explain.trace import Operation, Trace
from zoo.parts.attention import Attention
from zoo.parts.block import Block
from zoo.parts.ffn import FFN, RealTokens
from zoo.parts.norm import Norm

COPIES = ("clone", "to_copy", "constant_pad_nd", "copy", "detach")  # left out of charts, as views are
NAMES = {
    "addmm": "linear", "mm": "linear", "linear_pointwise": "linear", "bmm": "product", "baddbmm": "product",
    "native_layer_norm": "layer norm", "safe_softmax": "softmax",
}  # fmt: skip
MOST_NODES = 48  # nodes of a chart; nobody would read a longer one
STEP, WIDTH, BOX = 44, 420, 190  # lengths in CSS pixels


@dataclass
class Module:
    """A module of the traced call with what it computes, in order; ``copies`` further layers are like it."""

    path: str
    name: str
    shape: tuple[int, ...]
    flops: int
    seconds: float
    children: list[Module | tuple[int, Operation]] = field(default_factory=list)
    copies: int = 0


@dataclass
class Chart:
    """A flow chart: labels of nodes in order, edges between their numbers, and its title."""

    title: str
    nodes: list[str]
    edges: list[tuple[int, int]]

    def svg(self) -> str:
        """The chart as inline SVG: neighbours are joined by arrows, others by arcs beside the boxes."""
        height = STEP * len(self.nodes) + 8
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(printable(self.title))}" '
            f'class="flow" style="max-width:{WIDTH}px">'
        ]
        parts += [_edge(a, b) for a, b in self.edges]
        for number, label in enumerate(self.nodes):
            y = STEP * number + 4
            parts.append(
                f'<rect x="20" y="{y}" width="{BOX}" height="{STEP - 16}" rx="6"/>'
                f'<text x="{20 + BOX // 2}" y="{y + 18}">{escape(printable(_shorten(label)))}</text>'
            )
        return "".join([*parts, "</svg>"])


def _shorten(label: str, most: int = 26) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _edge(a: int, b: int) -> str:
    """An arrow between the boxes of two nodes."""
    start, end = STEP * a + 4 + STEP - 16, STEP * b + 4
    middle = 20 + BOX // 2
    if b == a + 1:
        return _arrow(f"M{middle} {start}V{end}", middle, end)
    right, start, end = 20 + BOX, STEP * a + 18, STEP * b + 18
    reach = min(190, 14 + 13 * (b - a))
    path = f"M{right} {start}C{right + reach} {start} {right + reach} {end} {right} {end}"
    return f'<path d="{path}"/><path class="tip" d="M{right} {end}l7 -4v8z"/>'


def _arrow(path: str, x: int, y: int) -> str:
    return f'<path d="{path}"/><path class="tip" d="M{x} {y}l-4 -7h8z"/>'


def module_tree(explanation: Explanation) -> Module:
    """The modules of the call with their operations; of neighbours that are alike the first stands for all."""
    ceilings, traced = explanation.ceilings, explanation.traced
    inside: dict[str, list[int]] = {}
    for number, operation in enumerate(traced.operations):
        path = operation.module
        while True:
            inside.setdefault(path, []).append(number)
            if not path:
                break
            path = path.rpartition(".")[0]

    def build(path: str, module: nn.Module) -> Module:
        numbers = inside.get(path, [])
        operations = [traced.operations[number] for number in numbers]
        node = Module(
            path, class_name(module), traced.shapes.get(path, ()), sum(operation.flops for operation in operations),
            sum(map(ceilings.seconds, operations)),
        )  # fmt: skip
        items: list[tuple[int, Module | tuple[int, Operation]]] = []
        for name, child in module.named_children():
            below = f"{path}.{name}" if path else name
            if below in inside:
                items.append((inside[below][0], build(below, child)))
        items += [(pair[0], pair) for pair in zip(numbers, operations, strict=True) if pair[1].module == path]
        for _, item in sorted(items, key=lambda pair: pair[0]):
            before = node.children[-1] if node.children else None
            if isinstance(item, Module) and isinstance(before, Module) and _alike(before, item, traced):
                before.copies += 1
            else:
                node.children.append(item)
        return node

    return build("", explanation.net)


def _alike(before: Module, after: Module, traced: Trace) -> bool:
    """Whether two layers of a list compute the same."""
    return after.path.rpartition(".")[2].isdigit() and traced.signature(before.path) == traced.signature(after.path)


def operation_numbers(module: Module) -> Iterator[int]:
    """The numbers of the operations in a tree."""
    for child in module.children:
        if isinstance(child, Module):
            yield from operation_numbers(child)
        else:
            yield child[0]


def charts(explanation: Explanation) -> list[Chart]:
    """The model, a layer of each kind, its attentions and its feed-forward, as the call went through them."""
    net, traced = explanation.net, explanation.traced
    blocks = [(name, module) for name, module in net.named_modules() if isinstance(module, Block)]
    result = [flow_chart("The model", net, traced, "", (Block, Norm))]
    titles: dict[str, Chart] = {}
    for name, block in blocks:
        word = _layer_word(name, block)
        titles.setdefault(f"A layer{word}", flow_chart(f"A layer{word}", net, traced, name, (Attention, Norm, FFN)))
        for path, part in block.named_modules(prefix=name):
            if isinstance(part, Attention):
                kind = "Cross-attention" if ".cross." in path else "Self-attention"
            elif isinstance(part, FFN):
                kind = "Feed-forward"
            else:
                continue
            title = f"{kind}: {type(part).__name__}"
            if title not in titles:
                titles[title] = flow_chart(title, net, traced, path, ())
    return [chart for chart in (*result, *titles.values()) if len(chart.nodes) > 1]


def _layer_word(name: str, block: Block) -> str:
    side = name.partition(".")[0]
    return f" of the {side}: {type(block).__name__}" if side in ("encoder", "decoder") else f": {type(block).__name__}"


def flow_chart(title: str, net: nn.Module, traced: Trace, path: str, whole: tuple[type, ...]) -> Chart:
    """The flow through the module at a path; what is of a class in ``whole`` is one node with its name.

    Nothing is in it that no input reaches, such as masks and angles.
    """
    modules = dict(net.named_modules())
    collapsed = {
        name: type(module.ffn if isinstance(module, RealTokens) else module).__name__
        for name, module in modules.items()
        if name != path and isinstance(module.ffn if isinstance(module, RealTokens) else module, whole)
    }
    node_of: dict[Any, int] = {}
    where: dict[int, tuple[int, ...]] = {}  # the nodes that an operation, or an input of the model, is seen as
    chart = Chart(title, [], [])

    def node(key: Any, label: str) -> int:
        if key not in node_of:
            node_of[key] = len(chart.nodes)
            chart.nodes.append(label)
        return node_of[key]

    for number, operation in enumerate(traced.operations):
        if path and operation.module != path and not operation.module.startswith(f"{path}."):
            continue
        before: list[int] = []
        for source in operation.inputs:
            if source in where:
                before += where[source]
            elif source < 0:
                before.append(node(source, traced.inputs[-1 - source] if -source <= len(traced.inputs) else "input"))
            elif not traced.reached[source]:
                continue
            elif path and not f"{traced.operations[source].module}.".startswith(f"{path}."):
                before.append(node(source, _source_name(traced.operations[source], path)))
        if not before:
            continue
        group = _group(operation.module, collapsed)
        if group is None and operation.name in COPIES:
            where[number] = tuple(dict.fromkeys(before))
            continue
        at = node(group or ("operation", number), collapsed[group] if group else _label(operation, path))
        where[number] = (at,)
        chart.edges += [(a, at) for a in dict.fromkeys(before) if a != at and (a, at) not in chart.edges]
    return _merge_runs(chart)


def _source_name(operation: Operation, path: str) -> str:
    """What comes from outside of a module: the stream x, or the memory of the other side."""
    side = operation.module.partition(".")[0]
    return "memory" if side == "encoder" and path.startswith("decoder") else "x"


def _group(module: str, collapsed: dict[str, str]) -> str | None:
    path = module
    outermost = None
    while path:
        if path in collapsed:
            outermost = path
        path = path.rpartition(".")[0]
    return outermost


def _label(operation: Operation, path: str) -> str:
    label = NAMES.get(operation.name, operation.name)
    module = operation.module.rpartition(".")[2]
    return f"{label} {module}" if label == "linear" and module and operation.module != path else label


def _merge_runs(chart: Chart) -> Chart:
    """The chart with each run of nodes of one name as one node, where it would be too long."""
    if len(chart.nodes) <= MOST_NODES:
        return chart
    place: list[int] = []
    nodes: list[str] = []
    counts: list[int] = []
    for label in chart.nodes:
        if nodes and nodes[-1] == label:
            counts[-1] += 1
        else:
            nodes.append(label)
            counts.append(1)
        place.append(len(nodes) - 1)
    edges = dict.fromkeys((place[a], place[b]) for a, b in chart.edges if place[a] != place[b])
    labels = [label if count == 1 else f"{label} × {count}" for label, count in zip(nodes, counts, strict=True)]
    return Chart(chart.title, labels[: 2 * MOST_NODES], [(a, b) for a, b in edges if max(a, b) < 2 * MOST_NODES])
