"""What this machine can do at most, measured: matrix products, memory traffic, and the rates of other operations."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.cache import cache_root, digest
from zoo.errors import StorageError
from zoo.explain.trace import Operation
from zoo.io import atomic_files
from zoo.system import torch_internals
from zoo.system.kernel_choice import CPUINFO, processor_name

SIZES = (512, 1024, 1536)
VERSION = 3  # version of the file in the cache
ROWS, WIDTH = 64, 256  # size of a tensor that stays in a core's cache, and whose memory malloc uses again
# operations that compute much for each number, without multiply-adds; any other without them is bound by memory
RATES: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "erf": torch.erf,
    "cos": torch.cos,
    "sin": torch.sin,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "native_layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
}
SAME_RATE = {"safe_softmax": "softmax"}


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s of a matrix product, bytes per second of a copy, and numbers per second of other operations by name."""

    flops: float
    bandwidth: float
    rates: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = (self.flops, self.bandwidth, *self.rates.values())
        if not all(isinstance(value, float) and 0 < value < math.inf for value in values):
            raise ValueError(f"ceilings are positive numbers, got {values}")

    @property
    def balance(self) -> float:
        """FLOPs that are computed while a byte is moved."""
        return self.flops / self.bandwidth

    def compute_seconds(self, operation: Operation) -> float:
        """The least time to compute an operation whose numbers are in the cache."""
        if operation.flops:
            return operation.flops / self.flops
        rate = self.rates.get(SAME_RATE.get(operation.name, operation.name))
        return operation.elements / rate if rate else 0.0

    def memory_seconds(self, operation: Operation) -> float:
        """The least time to move what an operation reads and writes."""
        return operation.traffic / self.bandwidth

    def seconds(self, operation: Operation) -> float:
        """The least time of an operation: computing and moving overlap at best."""
        return max(self.compute_seconds(operation), self.memory_seconds(operation))

    def bound(self, operation: Operation) -> str:
        """Which resource bounds an operation: compute or memory."""
        return "compute" if self.compute_seconds(operation) >= self.memory_seconds(operation) else "memory"


def matrix(dtype: torch.dtype) -> float:
    """The best FLOP/s of a square product over sizes, repetitions and, in float32, the kernels that zoo has for it."""
    best = 0.0
    for size in SIZES:
        a, out = torch.randn(size, size, dtype=dtype), torch.empty(size, size, dtype=dtype)
        products: list[Callable[[], object]] = [functools.partial(torch.mm, a, a, out=out)]
        if dtype is torch.float32 and torch_internals.can_reorder_weights():
            products.append(functools.partial(torch_internals.dense_linear, a, a, None))
        for _ in range(6):
            for product in products:
                start = time.perf_counter()
                product()
                best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def bandwidth(megabytes: int = 256) -> float:
    """Bytes per second, read and written, of a copy far larger than the caches; the best of its pieces.

    A piece takes a few milliseconds, so that some of them are copied while nothing else runs.
    """
    a = torch.ones(megabytes * 2**18)
    b = torch.empty_like(a)
    best = 0.0
    for _ in range(6):
        for piece, target in zip(a.chunk(megabytes // 8), b.chunk(megabytes // 8), strict=True):
            start = time.perf_counter()
            target.copy_(piece)
            best = max(best, 2 * piece.nbytes / (time.perf_counter() - start))
    return best


def rate(function: Callable[[Tensor], Tensor]) -> float:
    """The most numbers per second of a function of a tensor that stays in the cache."""
    x, best = torch.randn(ROWS, WIDTH), 0.0
    for _ in range(200):
        start = time.perf_counter()
        function(x)
        best = max(best, x.numel() / (time.perf_counter() - start))
    return best


def measure() -> Ceilings:
    """The ceilings of this machine in float32 with as many threads as torch has now; takes about two seconds."""
    with torch.no_grad():
        return Ceilings(matrix(torch.float32), bandwidth(), {name: rate(function) for name, function in RATES.items()})


def highest(earlier: Ceilings, later: Ceilings) -> Ceilings:
    """The higher of two measurements of each ceiling: what else the machine does can only lower one."""
    rates = {
        name: max(earlier.rates.get(name, 0.0), later.rates.get(name, 0.0)) for name in earlier.rates | later.rates
    }
    return Ceilings(max(earlier.flops, later.flops), max(earlier.bandwidth, later.bandwidth), rates)


def this_machine(again: bool = False) -> Ceilings:
    """The ceilings of this machine, from the cache after the first time; ``again`` measures and raises them."""
    machine = [VERSION, platform.node(), processor(), torch.__version__, torch.get_num_threads()]
    try:
        path: Path | None = cache_root() / f"ceilings-{digest(machine)[:24]}.json"
    except StorageError:
        path = None
    before = None
    if path is not None:
        with contextlib.suppress(
            OSError, ValueError, TypeError, AttributeError, RecursionError
        ):  # not measured yet, or damaged
            before = Ceilings(**json.loads(path.read_text("utf-8")))
    if before is not None and not again:
        return before
    result = measure() if before is None else highest(before, measure())
    if path is not None:
        with contextlib.suppress(OSError):  # without a cache they are measured each time
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write_bytes(path, json.dumps(asdict(result)).encode())
    return result


def processor() -> str:
    """The name of the processor, with its instructions for matrices."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return processor_name()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    extra = [flag for flag in ("avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{processor_name()} ({', '.join(extra)})"
