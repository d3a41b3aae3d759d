"""Is an operation bound by what `zoo explain` says? Its time with twice the FLOPs, and with twice the bytes.

An operation is bound by compute where twice the FLOPs for the same bytes cost more than twice the bytes for the same
FLOPs. All operands together are larger than the caches, so that each is read from memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.study import Options, Table
from zoo.explain.ceilings import Ceilings, measure
from zoo.explain.trace import Operation

BYTES = 2**27  # of all operands of a measurement
CHUNK = 2**14  # numbers of a chunk that stays in the cache
TURNS = 5


class Product(NamedTuple):
    """Matrix products (rows, inner) × (inner, columns) of one name; ``few`` rows leave the matrix the larger part."""

    name: str
    rows: int
    inner: int
    columns: int
    few: bool = False

    def scaled(self, factor: float) -> Product:
        """With sides so many times longer: of few rows the rows alone."""
        rows = round(self.rows * factor)
        if self.few:
            return self._replace(rows=rows)
        return self._replace(rows=rows, inner=round(self.inner * factor), columns=round(self.columns * factor))

    @property
    def operation(self) -> Operation:
        """What `zoo explain` knows of one of them."""
        read = 4 * (self.rows * self.inner + self.inner * self.columns)
        write = 4 * self.rows * self.columns
        flops = 2 * self.rows * self.inner * self.columns
        return Operation("", "mm", (self.rows, self.columns), flops, read, write, max(read, write) // 4)


# of a block of width 768 with 12 heads and 512 tokens, and of its decoding with few sentences
PRODUCTS = (
    Product("queries, keys, values", 512, 768, 2304),
    Product("scores of a head", 512, 64, 512),
    Product("values of a head", 512, 512, 64),
    Product("output", 512, 768, 768),
    Product("up", 512, 768, 3072),
    Product("down", 512, 3072, 768),
    Product("decoding: queries, keys, values", 2, 768, 2304, few=True),
    Product("decoding: up", 2, 768, 3072, few=True),
    Product("decoding: down", 2, 3072, 768, few=True),
)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 1.0,
    "mul": lambda x: x * 1.01,
    "relu": F.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "sin": torch.sin,
    "softmax": lambda x: x.softmax(-1),
    "native_layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
}


def fastest(*works: Callable[[], object]) -> list[float]:
    """Seconds of the fastest of TURNS calls of each, in turn, so that a busy machine disturbs all of them alike."""
    best = [float("inf")] * len(works)
    for _ in range(TURNS):
        for number, work in enumerate(works):
            start = time.perf_counter()
            work()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def product_times(product: Product) -> list[float]:
    """Seconds of products, of as many bytes with twice the FLOPs, and of twice the bytes with as many FLOPs."""
    count = max(8, 8 * (BYTES // product.operation.traffic // 8))
    # sides twice as long: FLOPs × 8, bytes × 4, so a quarter as many are twice the FLOPs for the same bytes
    flops = product.scaled(2.0), count if product.few else count // 4
    bytes_ = product.scaled(0.5), count * (2 if product.few else 8)
    return fastest(*(_multiply(*pair) for pair in ((product, count), flops, bytes_)))


def _multiply(product: Product, count: int) -> Callable[[], None]:
    a = torch.randn(count, product.rows, product.inner)
    b = torch.randn(count, product.inner, product.columns)
    out = torch.empty(count, product.rows, product.columns)

    def work() -> None:
        for one, other, result in zip(a, b, out, strict=True):
            torch.mm(one, other, out=result)

    return work


def function_times(function: Callable[[Tensor], Tensor]) -> list[float]:
    """Seconds of a function of many numbers; twice of each chunk while it is in the cache; and beside a copy."""
    size = BYTES // 8  # half of the bytes are read, half are written
    x = torch.randn(size // CHUNK, CHUNK // 256, 256)
    out, other, copy = torch.empty_like(x), torch.randn_like(x), torch.empty_like(x)

    def once() -> None:
        for chunk, result in zip(x, out, strict=True):
            result.copy_(function(chunk))

    def twice() -> None:
        for chunk, result in zip(x, out, strict=True):
            result.copy_(function(function(chunk)))

    def beside() -> None:
        for chunk, result, chunk_of_other, result_of_copy in zip(x, out, other, copy, strict=True):
            result.copy_(function(chunk))
            result_of_copy.copy_(chunk_of_other)

    return fastest(once, twice, beside)


def row(name: str, operation: Operation, times: list[float], ceilings: Ceilings) -> list[str | float]:
    """An operation with what is said of it and what is measured."""
    flops, bytes_ = times[1] / times[0], times[2] / times[0]
    bound = "compute" if flops > bytes_ else "memory"
    claim = ceilings.bound(operation)
    return [name, operation.intensity, claim, flops, bytes_, bound, "yes" if bound == claim else "no"]


def study(options: Options) -> list[Table]:
    """Products and functions of a block, each with three times."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    ceilings = measure()
    table = Table(
        "What bounds an operation: as `zoo explain` says it, and as measured",
        ["operation", "FLOP per byte", "said", "time, 2 × FLOPs", "time, 2 × bytes", "measured", "agree"],
    )
    with torch.no_grad():
        for product in PRODUCTS:
            table.rows.append(row(product.name, product.operation, product_times(product), ceilings))
        for name, function in FUNCTIONS.items():
            size = BYTES // 8
            operation = Operation("", name, (size,), 0, 4 * size, 4 * size, size)
            table.rows.append(row(name, operation, function_times(function), ceilings))
    agree = sum(one[-1] == "yes" for one in table.rows)
    table.notes.append(f"{agree} of {len(table.rows)} agree; {ceilings.balance:.1f} FLOPs while a byte is moved.")
    return [table]
