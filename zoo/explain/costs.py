"""The costs of a model as rows: by part, by operation of a block, and the difference of two models."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from zoo import registry
from zoo.errors import ZooError
from zoo.explain.ceilings import Ceilings
from zoo.explain.subjects import Subject
from zoo.explain.trace import Operation, Trace, trace
from zoo.logging.run_record import tensors
from zoo.parts.block import Block
from zoo.parts.ffn import RealTokens
from zoo.training.memory_estimate import Estimate, estimate, training_batch
from zoo.training.model_cost import meta_copy

PART_KINDS = tuple(kind for kind in registry.STACK_KINDS if kind != "block")
ITSELF = "itself"  # what a module computes outside of the modules below it, such as a residual sum


@dataclass(frozen=True)
class Row:
    """The costs of a part over all layers that it stands in; ``seconds`` is the least time on this machine."""

    part: str  # its path in the model; a range of alike layers as 0–3
    name: str  # its class
    shape: tuple[int, ...]  # shape of the result
    parameters: int
    flops: int
    traffic: int  # bytes
    seconds: float
    bound: str  # compute, memory, or – for what computes nothing
    products: int  # matrix products in one layer
    count: int = 1  # layers


class Difference(NamedTuple):
    """A part in two models; None where one lacks it."""

    part: str
    before: Row | None
    after: Row | None

    def change(self, field: str) -> float:
        """How much more the second model has of parameters, flops, traffic or seconds."""
        return getattr(self.after, field, 0) - getattr(self.before, field, 0)


@dataclass
class Explanation:
    """A subject with the trace of one sample, the rows of its tables, and the memory of a training step."""

    subject: Subject
    traced: Trace
    net: nn.Module
    unit: str  # what the sample is counted in
    units: int
    ceilings: Ceilings
    parts: list[Row]
    blocks: list[tuple[str, list[Operation]]]  # the title and the operations of each kind of block
    memory: Estimate | None
    batch: str  # what the memory is of, in words

    @functools.cached_property
    def total_seconds(self) -> float:
        """The least time of a sample on this machine."""
        return sum(map(self.ceilings.seconds, self.traced.operations))

    @functools.cached_property
    def total(self) -> Row:
        """The costs of the whole model."""
        parameters = sum(p.numel() for p in self.net.parameters())
        shape = next((tuple(tensor.shape) for _, tensor in tensors(self.traced.output)), ())
        traffic = sum(operation.traffic for operation in self.traced.operations)
        products = sum(operation.products for operation in self.traced.operations)
        bound = bound_of(self.traced.operations, self.ceilings)
        return Row("total", "", shape, parameters, self.traced.flops, traffic, self.total_seconds, bound, products)


def explain(subject: Subject, ceilings: Ceilings) -> Explanation:
    """Trace one sample of a subject on the meta device, where nothing is computed, and count."""
    arguments, units = subject.task.example()
    net = meta_copy(subject.task.net)
    traced = trace(net, *arguments)
    rows = part_rows(net, traced, ceilings)
    memory, batch = step_memory(subject)
    blocks = [(title, list(inside)) for title, inside in block_operations(net, traced)]
    return Explanation(subject, traced, net, subject.task.unit, units, ceilings, rows, blocks, memory, batch)


def step_memory(subject: Subject) -> tuple[Estimate | None, str]:
    """The memory of a training step, and of which batch in words; None where no batch is known, or none can be traced.

    The batch is one of the data's own where those are here.
    """
    data = None
    if subject.data is not None:
        with suppress(ZooError, OSError):
            data = subject.data()
    if data is None and not subject.rows:
        return None, ""
    try:
        batch, description = training_batch(subject.task, subject.rows, data)
        return estimate(subject.task, batch), description
    except Exception as error:  # a part of a plugin may need numbers
        subject.notes.append(f"the memory of a step cannot be estimated: {' '.join(str(error).split())[:200]}")
        return None, ""


def bound_of(operations: Sequence[Operation], ceilings: Ceilings) -> str:
    """The resource that bounds the greater part of the least time of some operations; – for none."""
    if not operations:
        return "–"
    times = {"compute": 0.0, "memory": 0.0}
    for operation in operations:
        times[ceilings.bound(operation)] += ceilings.seconds(operation)
    return max(times, key=lambda name: times[name])


def part_rows(net: nn.Module, traced: Trace, ceilings: Ceilings) -> list[Row]:
    """A row per part in the order of the call, one for layers that are alike; the rows add up to the whole model."""
    counter = _Counter(traced, ceilings)
    rows = sorted(counter.walk("", "", net), key=lambda pair: pair[0])
    return [row for _, row in rows]


class _Counter:
    """Walks the modules of a traced model; each parameter counts where it is met first."""

    def __init__(self, traced: Trace, ceilings: Ceilings) -> None:
        self.traced, self.ceilings = traced, ceilings
        self.parameter_ids: set[int] = set()
        self.inside: dict[str, list[int]] = {}  # numbers of the operations below a path
        for number, operation in enumerate(traced.operations):
            path = operation.module
            self.inside.setdefault(path, []).append(number)
            while path:
                path = path.rpartition(".")[0]
                self.inside.setdefault(path, []).append(number)

    def walk(self, path: str, label: str, module: nn.Module) -> Iterator[tuple[int, Row]]:
        """The rows of a module with the number of the first operation of each."""
        children = [(name, child) for name, child in module.named_children() if self._counts(child, _join(path, name))]
        if path and (not children or _is_part(module)):
            yield self._row(path, label, module, self.inside.get(path, []), list(module.parameters()))
            return
        own = [number for number in self.inside.get(path, []) if self.traced.operations[number].module == path]
        parameters = list(module.parameters(recurse=False))
        if own or parameters:
            yield self._row(path, f"{label or 'model'}, {ITSELF}", module, own, parameters)
        if isinstance(module, nn.ModuleList):
            yield from self._layers(path, label, children)
            return
        for name, child in children:
            yield from self.walk(_join(path, name), _join(label, name), child)

    def _layers(self, path: str, label: str, layers: list[tuple[str, nn.Module]]) -> Iterator[tuple[int, Row]]:
        """Rows of layers, neighbours that are alike together."""
        start = 0
        while start < len(layers):
            end = start + 1
            alike = self.traced.signature(_join(path, layers[start][0]))
            while end < len(layers) and self.traced.signature(_join(path, layers[end][0])) == alike:
                end += 1
            group = layers[start:end]
            place = _range(group[0][0], group[-1][0], len(group))
            layer_rows = [list(self.walk(_join(path, name), _join(label, place), layer)) for name, layer in group]
            if any(len(rows) != len(layer_rows[0]) for rows in layer_rows):  # shared modules count in the first layer
                yield from (pair for rows in layer_rows for pair in rows)
            else:
                for same in zip(*layer_rows, strict=True):
                    yield same[0][0], _sum([row for _, row in same])
            start = end

    def _counts(self, module: nn.Module, path: str) -> bool:
        """Whether a module computes something or has parameters that are not counted yet."""
        return path in self.inside or any(id(parameter) not in self.parameter_ids for parameter in module.parameters())

    def _row(
        self, path: str, label: str, module: nn.Module, numbers: list[int], parameters: list[nn.Parameter]
    ) -> tuple[int, Row]:
        operations = [self.traced.operations[number] for number in numbers]
        new = {id(parameter): parameter.numel() for parameter in parameters if id(parameter) not in self.parameter_ids}
        self.parameter_ids |= new.keys()
        shape = self.traced.shapes.get(path) or (operations[-1].shape if operations else ())
        row = Row(
            label, class_name(module), shape, sum(new.values()), sum(operation.flops for operation in operations),
            sum(operation.traffic for operation in operations), sum(map(self.ceilings.seconds, operations)),
            bound_of(operations, self.ceilings), sum(operation.products for operation in operations),
        )  # fmt: skip
        return (numbers[0] if numbers else len(self.traced.operations)), row


def class_name(module: nn.Module) -> str:
    """The name of a part's class, without the wrapper that hides padding from it."""
    return type(module.ffn if isinstance(module, RealTokens) else module).__name__


def _is_part(module: nn.Module) -> bool:
    return getattr(module, "kind", None) in PART_KINDS or isinstance(module, RealTokens)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _range(start: str, end: str, count: int) -> str:
    return start if count == 1 else f"{start}–{end}"


def _sum(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    return replace(
        rows[0], parameters=sum(row.parameters for row in rows), flops=sum(row.flops for row in rows),
        traffic=sum(row.traffic for row in rows), seconds=sum(row.seconds for row in rows), count=len(rows),
    )  # fmt: skip


def block_operations(net: nn.Module, traced: Trace) -> Iterator[tuple[str, list[Operation]]]:
    """The operations of the first block of each kind, in order, with its path and class."""
    signatures = set()
    for name, module in net.named_modules():
        if not isinstance(module, Block):
            continue
        inside = [operation for operation in traced.operations if f"{operation.module}.".startswith(f"{name}.")]
        signature = traced.signature(name)
        if inside and signature not in signatures:
            signatures.add(signature)
            yield f"{name} ({type(module).__name__})", inside


def differences(before: Explanation, after: Explanation) -> list[Difference]:
    """The parts whose costs or classes differ, in the order of the second model, then those that it lacks."""
    rows_before, rows_after = (_by_place(explanation.parts) for explanation in (before, after))
    names = [*rows_after, *(name for name in rows_before if name not in rows_after)]
    pairs = [Difference(name, rows_before.get(name), rows_after.get(name)) for name in names]
    return [pair for pair in pairs if pair.before != pair.after]


def _by_place(rows: Sequence[Row]) -> dict[str, Row]:
    """The rows of the same part in all layers as one, by its path with * for the layer."""
    places: dict[str, list[Row]] = {}
    for row in rows:
        places.setdefault(re.sub(r"\.\d+(–\d+)?", ".*", row.part), []).append(row)
    result = {}
    for place, same in places.items():
        names = dict.fromkeys(row.name for row in same)
        count = sum(row.count for row in same)
        result[place] = replace(_sum(same), part=place, name=", ".join(names), count=count)
    return result


def option_differences(before: Subject, after: Subject) -> list[tuple[str, str, str, str, str]]:
    """Options that differ: key, both values, both origins; – where a model has no such option."""
    options_before, options_after = ({option.key: option for option in subject.options} for subject in (before, after))
    rows = []
    for key in [*options_before, *(key for key in options_after if key not in options_before)]:
        pair = options_before.get(key), options_after.get(key)
        values = [option.value if option else "–" for option in pair]
        if values[0] != values[1]:
            rows.append((key, *values, *(option.origin if option else "" for option in pair)))
    return rows  # type: ignore[return-value]
