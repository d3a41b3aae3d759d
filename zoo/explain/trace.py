"""Every operation of one call of a model, in order: its module, shape, FLOPs, bytes and where its inputs come from.

FLOPs are those of torch's `FlopCounterMode`: two for a multiply-add of a matrix product or a convolution, none for
anything else. Every operand is counted as read once and every result as written once, as without fusion and caches.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from zoo.logging.run_record import tensors
from zoo.system.torch_internals import TorchDispatchMode, is_view, written_arguments

FREE = ("_unsafe_view", "empty", "arange")  # no work and no traffic, though their schemas do not say so
GATHERS = (
    "embedding",
    "index",
    "index_select",
    "gather",
)  # they read as many numbers of their first operand as they write
# operations that are one matrix product; a fused attention is two
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear_pointwise")


class Operation(NamedTuple):
    """An operation of a call: the path of its module, its name, the shape of its result, and what it costs."""

    module: str  # "" is the model itself
    name: str
    shape: tuple[int, ...]
    flops: int
    read: int  # bytes
    write: int  # bytes
    elements: int  # numbers of its largest operand or result
    inputs: tuple[int, ...] = ()  # numbers of the operations whose results it reads; -1, -2, … are the model's inputs

    @property
    def traffic(self) -> int:
        """Bytes that are read or written."""
        return self.read + self.write

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.traffic if self.traffic else 0.0

    @property
    def products(self) -> int:
        """How many matrix products it is."""
        if self.name.startswith("scaled_dot_product"):
            return 2
        return int(self.name in PRODUCTS)


@dataclass(frozen=True)
class Trace:
    """The operations of a call, the names of its inputs, what it returned, and the shape that each module returned."""

    operations: list[Operation]
    inputs: list[str]
    output: Any
    shapes: dict[str, tuple[int, ...]]

    @functools.cached_property
    def reached(self) -> list[bool]:
        """For each operation whether an input of the model reaches it, as none reaches masks and angles."""
        result: list[bool] = []
        for operation in self.operations:
            result.append(any(number < 0 or result[number] for number in operation.inputs))
        return result

    def signature(self, path: str) -> tuple[Any, ...]:
        """What a module computes of its inputs: equal for layers that are alike."""
        operations = (operation for operation, reached in zip(self.operations, self.reached, strict=True) if reached)
        inside = (operation for operation in operations if f"{operation.module}.".startswith(f"{path}."))
        return tuple((operation.module.removeprefix(path), operation.name, operation.shape) for operation in inside)

    @property
    def flops(self) -> int:
        """FLOPs of all operations."""
        return sum(operation.flops for operation in self.operations)


class Recorder(TorchDispatchMode):
    """Records every operation that computes something or moves it: views do neither."""

    supports_higher_order_operators = True  # such as flex_attention

    def __init__(self, inputs: Sequence[Any] = ()) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.path = [""]  # names of the modules that are running, the innermost last
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.references: list[Tensor] = []  # an id is only a tensor's while the tensor lives
        self.sources: dict[int, tuple[int, ...]] = {}
        for number, value in enumerate(inputs):
            for _, tensor in tensors(value):
                self._remember(tensor, (-1 - number,))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", func)  # a higher-order operator has no overloads
        count = flop_registry.get(packet)
        if count is None and packet is not func:
            with self:  # as FlopCounterMode does, whose counts these are
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        results = [tensor for _, tensor in tensors(out)]
        results = results or [tensor for _, tensor in tensors(written_arguments(func, args, kwargs))]  # optimizer steps
        operands = [tensor for _, tensor in tensors((args, kwargs))]
        source = tuple(dict.fromkeys(number for operand in operands for number in self.sources.get(id(operand), ())))
        if results and (packet is func or not is_view(func)) and packet.__name__ not in FREE:
            flops = int(count(*args, **kwargs, out_val=out)) if count else 0
            self._add(packet.__name__, results, operands, flops, source)
            source = (len(self.operations) - 1,)
        for result in results:
            self._remember(result, source)
        return out

    def _add(self, name: str, results: list[Tensor], operands: list[Tensor], flops: int, inputs: Any) -> None:
        name, write = name.strip("_"), sum(map(_bytes, results))
        read = write + sum(map(_bytes, operands[1:])) if name in GATHERS else sum(map(_bytes, operands))
        elements = max(tensor.numel() for tensor in (*operands, *results))
        operation = Operation(self.path[-1], name, tuple(results[0].shape), flops, read, write, elements, inputs)
        self.operations.append(operation)

    def _remember(self, tensor: Tensor, source: tuple[int, ...]) -> None:
        self.references.append(tensor)
        self.sources[id(tensor)] = source

    def enter(self, name: str) -> None:
        """A module begins."""
        self.path.append(name)

    def leave(self, name: str, output: Any) -> None:
        """The innermost module ends."""
        self.path.pop()
        for _, tensor in tensors(output):
            self.shapes.setdefault(name, tuple(tensor.shape))
            break


def _bytes(tensor: Tensor) -> int:
    """Bytes of the different numbers of a tensor: those that are repeated by ``expand`` count once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return prod(sizes) * tensor.element_size() if tensor.numel() else 0


@contextmanager
def _follow_modules(net: nn.Module, recorder: Recorder) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, module in net.named_modules():
            if not name:
                continue
            enter = module.register_forward_pre_hook(lambda *_, name=name: recorder.enter(name), prepend=True)
            leave = module.register_forward_hook(lambda *args, name=name: recorder.leave(name, args[-1]))
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        yield


def trace(net: nn.Module, *arguments: Any, call: Callable[[], Any] | None = None) -> Trace:
    """The operations of ``net(*arguments)``, or of ``call``, which calls ``net``, without gradients.

    Arguments on the meta device cost no time and no memory. What the call returns is what it returns untraced.
    """
    recorder = Recorder(arguments)
    with torch.no_grad(), _follow_modules(net, recorder), recorder:
        output = call() if call else net(*arguments)
    names = list(inspect.signature(net.forward).parameters)[: len(arguments)]
    return Trace(recorder.operations, names, output, recorder.shapes)
