"""Estimates the memory of a training run before it starts, from tensors without numbers."""

from __future__ import annotations

import copy
import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.data.data import Data
from zoo.logging.run_record import tensors
from zoo.models.initialization import preserve_rng
from zoo.system.torch_internals import TorchDispatchMode, fake_tensors, is_fake, outside_fake_tensors, packs_sequences
from zoo.tasks.task import Task

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
STAND_IN = 128  # the most rows or columns of a weight for which an optimiser's state is made
BATCHES = 9  # training batches, of which the largest is taken
LARGE = 2**22  # integers: more are not computed, only their shape


class Estimate(NamedTuple):
    """Bytes of weights, of gradients, of the optimiser's state, and of what a step has at most in addition.

    The last one is what autograd keeps, the gradients that exist by then, and what operations write and free again.
    """

    weights: int
    gradients: int
    states: int
    batch: int

    @property
    def total(self) -> int:
        """At most, beside what Python, torch and the data take."""
        return self.weights + self.states + self.batch


def estimate(task: Task, batch: Any) -> Estimate:
    """The memory of a step with a batch in float32, without accumulation and recomputation.

    Loss and gradients are computed with tensors that have shapes and no memory, and the memory is counted that would be
    in use at each time. What kernels use only while they run is not known.
    """
    weights = sum(p.nbytes for p in task.parameters())
    gradients = sum(p.nbytes for p in task.parameters() if p.requires_grad)
    return Estimate(weights, gradients, optimizer_bytes(task), peak_of_step(task, batch))


def optimizer_bytes(task: Task) -> int:
    """What the optimiser of a task will keep: seen after a step with small weights in the places of the task's own.

    A state grows with the sides of the weight that it has, and one that has a number for each block of weights with
    the weight.
    """
    optimizer = task.make_optimizer()
    places: dict[Tensor, tuple[Tensor, float]] = {}  # the weight, and the longest side that has factors
    for group in optimizer.param_groups:
        weights, group["params"] = group["params"], []
        for weight in weights:
            small = torch.zeros(stand_in_shape(weight.shape), dtype=weight.dtype, requires_grad=True)
            small.grad = torch.ones_like(small)
            places[small] = weight, group.get("max_precondition_dim", math.inf)
            group["params"].append(small)
    optimizer.step()
    sizes = {
        state.data_ptr(): grown_bytes(state, small, *places[small])
        for small, states in optimizer.state.items()
        for state in tensors_in(states)
        if state.dim()
    }
    return round(sum(sizes.values()))


def stand_in_shape(shape: Sequence[int]) -> list[int]:
    """Sides of at most STAND_IN, unequal where those of ``shape`` are."""
    sides: list[int] = []
    for size in shape:
        side = min(size, STAND_IN)
        while any(side == other and size != real for other, real in zip(sides, shape, strict=False)):
            side -= 8
        sides.append(side)
    return sides


def grown_bytes(state: Tensor, small: Tensor, weight: Tensor, longest: float) -> float:
    """The bytes of a state of the stand-in ``small``, were it that of the weight.

    A side longer than ``longest`` has no factor, a matrix of its own (SOAP).
    """
    sides = {1: 1, **dict(zip(small.shape, weight.shape, strict=True))}
    if not {*state.shape} <= sides.keys():
        return state.nbytes * weight.numel() / max(1, small.numel())
    is_factor = state.shape != small.shape and state.dim() == 2 and state.size(0) == state.size(1)
    if is_factor and sides[state.size(0)] > longest:
        return 0
    return state.itemsize * math.prod(sides[side] for side in state.shape)


def device_memory(device: torch.device) -> int | None:
    """Bytes of memory that this process may use on a device: of the GPU, or of this machine, container or limit."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    limits = []
    with suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # "max" where a container has no limit
        limits.append(int(CONTAINER_LIMIT.read_text()))
    return min((limit for limit in limits if limit > 0), default=None)


def peak_of_step(
    task: Task, batch: Any, forward: AbstractContextManager[Any] | None = None, accumulates: bool = False
) -> int:
    """The most bytes that loss and gradients of a batch take at one time, beside weights, buffers and the batch.

    The loss is computed in ``forward``, such as torch.autocast. With ``accumulates`` the weights have gradients before,
    which do not count.

    Floating-point tensors have no numbers. Integers such as tokens and the places of padding have theirs, because
    shapes depend on them where padding is removed. Raises what torch raises where a shape depends on other numbers.
    """
    buffers = [buffer for module in task.modules() for buffer in module.buffers(recurse=False)]
    with fake_tensors() as mode:
        copies: dict[int, object] = {
            id(b): torch.empty(b.shape, dtype=b.dtype) if b.is_meta else mode.from_tensor(b)
            for b in buffers
            if b.is_meta or is_floating(b)
        }
        copies |= {
            id(p): nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=p.requires_grad)
            for p in task.parameters()
        }
    with suppress(RuntimeError):  # where no trainer is attached
        copies[id(task.trainer)] = task.trainer
    twin = copy.deepcopy(task, copies).train()
    batch = {name: mode.from_tensor(value) if is_floating(value) else value for name, value in batch.items()}
    with mode:
        for weight in twin.parameters() if accumulates else ():
            weight.grad = torch.empty_like(weight) if weight.requires_grad else None
    gradients = [weight.grad for weight in twin.parameters()]
    own = [*tensors_in(list(copies.values())), *tensors_in(batch), *tensors_in(gradients)]
    with mode, MemoryCounter(own) as counter:
        with forward or nullcontext():
            loss = twin.loss(batch)
        (loss.total / loss.size).backward()
    return counter.peak


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of any shape in a value, which may be a list, tuple or dictionary of others."""
    return (tensor for _, tensor in tensors(value))


def is_floating(value: object) -> bool:
    """Whether a value is a tensor of floating-point numbers, of any shape."""
    return isinstance(value, Tensor) and value.is_floating_point()


class MemoryCounter(TorchDispatchMode):
    """Counts the bytes of the results of operations for as long as any tensor uses them, and ``peak``, their most.

    To be entered below tensors without numbers. Operations on tensors that have numbers compute them, unless they are
    ``LARGE``.
    """

    def __init__(self, ignored: list[Tensor]) -> None:
        """The memory of ``ignored``, tensors of any shape, does not count."""
        super().__init__()
        self.in_use = self.peak = 0
        self.ignored = [tensor.untyped_storage() for tensor in ignored]  # their ids are unique while they live
        # by id: the storages to ignore, and weak references to those that count
        self.storages: dict[int, Any] = {id(storage): storage for storage in self.ignored}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of an operation, whose memory is counted."""
        kwargs = kwargs or {}
        if has_numbers(operation, args, kwargs):
            with outside_fake_tensors():
                result = operation(*args, **kwargs)
        elif packs_sequences(operation):
            result = packed_shape(*args)
        else:
            result = operation(*with_places(operation, args), **kwargs)
        for tensor in tensors_in(result):
            self.count(tensor)
        return result

    def count(self, tensor: Tensor) -> None:
        """Count the memory of a tensor of any shape, unless it is counted already."""
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self.storages:
            return

        def release(_: object) -> None:
            self.in_use -= size
            del self.storages[key]

        self.storages[key] = weakref.ref(storage, release)
        self.in_use += size
        self.peak = max(self.peak, self.in_use)


def has_numbers(operation: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the result of an operation can be computed: from tensors with numbers, or from no tensor as integers."""
    operands = list(tensors_in(args)) + list(tensors_in(kwargs))
    if any(map(is_fake, operands)):
        return False
    if operands:
        shapes = [tensor.shape for tensor in operands]
        with suppress(RuntimeError):  # shapes that do not go together, as those of an index
            shapes = [torch.broadcast_shapes(*shapes)]
        return max(map(math.prod, shapes)) <= LARGE
    numbers = [item for value in args for item in (value if isinstance(value, (list, tuple)) else [value])]
    numbers = [number for number in numbers if isinstance(number, (int, float))]
    dtype = kwargs.get("dtype")
    if dtype is None:
        return operation.overloadpacket is torch.ops.aten.arange and all(isinstance(number, int) for number in numbers)
    sizes = [abs(number) for number in numbers if isinstance(number, int) and number]
    return not dtype.is_floating_point and math.prod(sizes) <= LARGE


INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


def with_places(operation: Any, args: Any) -> Any:
    """The arguments of an operation that indexes, with the places of a mask's true values instead of the mask."""
    if operation not in INDEXING:
        return args
    places: list[Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype != torch.bool or is_fake(index):
            places.append(index)
        else:
            with outside_fake_tensors():
                places += index.nonzero(as_tuple=True)
    return args[0], places, *args[2:]


def packed_shape(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """What torch packs padded sequences into, x (B, T, ...) or (T, B, ...): (N, ...) without numbers, and how many of
    the sequences are at least as long as each step.
    """
    with outside_fake_tensors():
        counts = (lengths[:, None] > torch.arange(int(lengths.max()))).sum(0)
        total = int(lengths.sum())
    return x.new_empty((total, *x.shape[2:])), counts


def training_batch(task: Task, rows: int, data: Data | None) -> tuple[Any, str]:
    """A batch as a step of training takes it, and what it is, in words.

    That of the data where lengths differ between batches, else a random one of ``rows`` samples of full length. Raises
    NotImplementedError where there is neither.
    """
    alike = any(tensor.dim() > 3 for tensor in task.example()[0])  # images and clips have one size
    if data is not None and not data.streams and not (alike and rows):
        batches = largest_batches(data)
        largest = batches[0] if len(batches) == 1 else max(batches, key=partial(peak_of_step, task))
        return largest, f"the largest of the first {BATCHES} batches"
    if not rows:
        raise NotImplementedError("the data does not say how many samples a batch has")
    return full_batch(task, rows), f"a batch of {rows} at full length"


def largest_batches(data: Data) -> list[Any]:
    """Of the first batches of training, loaded in this process, the largest of each tensor: none decides alone."""
    workers, data.num_workers = data.num_workers, 0
    try:
        batches = list(islice(data.train_dataloader(), BATCHES))
    finally:
        data.num_workers = workers
    names = [name for name, value in batches[0].items() if isinstance(value, Tensor)]
    sizes = [[batch[name].nbytes for batch in batches] for name in names]
    largest = [batches[batch_sizes.index(max(batch_sizes))] for batch_sizes in sizes]
    return list({id(batch): batch for batch in largest}.values())


def full_batch(task: Task, rows: int) -> Any:
    """A random batch of ``rows`` samples of the length of the task's example, without padding.

    Raises NotImplementedError where a task makes no such samples.
    """
    expected = {tensor.shape[1:] for tensor in task.example()[0]}
    longer = copy.copy(task)
    longer.sample_length = max(shape[0] for shape in expected)
    with preserve_rng():
        batch = longer.sample(rows)
    if not any(isinstance(value, Tensor) and value.shape[1:] in expected for value in batch.values()):
        raise NotImplementedError(f"{type(task).__name__} makes no samples of the greatest length")
    return {name: torch.ones_like(value) if name.endswith("valid") else value for name, value in batch.items()}


def rows(task: Task, data: Mapping[str, Any]) -> int:
    """Samples of the greatest length in a batch of these options of the data; 0 where they set none.

    Data that are made of the samples of others, such as masked text, have batches of as many. Exercises train on texts
    of a share of the greatest length, which those of validation have. 0 where a sample has several rows, as a pair of
    texts does.
    """
    if any(len(tensor) > 1 for tensor in task.example()[0]):
        return 0
    if data.get("max_tokens"):
        return max(1, int(data["max_tokens"]) // max(1, task.example()[1]))
    nested = data.get("text")
    if not data.get("batch_size") and isinstance(nested, Mapping):
        return rows(task, nested.get("init_args") or {})
    batch = int(data.get("batch_size") or 0)
    return -(-batch // max(1, int(data.get("longer") or 1)))


def reason_against(config: Mapping[str, Any]) -> str:
    """What a step of this configuration does otherwise than the estimate, which is of float32; empty for nothing."""
    model, trainer = (config.get(name) or {} for name in ("model", "trainer"))
    if not str(trainer.get("precision") or 32).startswith("32"):
        return f"with precision {trainer['precision']}"
    if (model.get("init_args") or {}).get("recompute"):
        return "with recompute"
    if int(trainer.get("accumulate_grad_batches") or 1) > 1:
        return "with accumulate_grad_batches"
    callbacks = trainer.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    names = [callback.get("class_path", "") if isinstance(callback, Mapping) else callback for callback in callbacks]
    if any(str(name).rpartition(".")[2] == "EMA" for name in names):
        return "with EMA, which keeps a copy of the weights"
    return ""
