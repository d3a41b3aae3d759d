"""Products with few rows, as in a step of decoding, by the kernel that is fastest at them on this machine.

A CPU's matrix library is made for many rows. With one or two, W x^T with two columns takes half as long on an AMD EPYC,
and twice as long on an Intel Xeon with AMX. oneDNN may be faster, if it may reorder the matrix once, as ``packs`` does
for generation; on a newer EPYC it halves the time of one row. `zoo.system.kernel_choice` measures which to use.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from zoo.parts import training_products
from zoo.parts.derivatives import transformed
from zoo.system import kernel_choice, torch_internals

TYPES = (torch.float32, torch.bfloat16)
FEW = 32  # rows; with more the ordinary kernels are as good
COLUMNS = 2  # rows up to which W x^T may be the fastest
# megabytes of matrices that a step reads one after the other: those of a small model stay in the processor's caches,
# those of a larger one do not, and another kernel is the fastest
SIZES = (4, 16, 64)
EXAMPLE = 2**23  # bytes of the matrices that are timed together
MATRICES = 512  # largest number of matrices of a measurement
SAMPLE = 200  # numbers of a matrix that are compared to notice changes that torch does not count
LARGEST = 2**30  # bytes of matrices up to which a reordered copy is made


class Linear(nn.Linear):
    """x W^T + b, whatever the number of rows."""

    packs = True

    def forward(self, input: Tensor) -> Tensor:
        """x (..., in) to (..., out)."""
        return linear(input, self.weight, self.bias)


class Packed:
    """A matrix (out, in) in oneDNN's layout; ``linear`` uses it while it is referenced and the matrix is unchanged.

    A change through ``.data`` of a few numbers only, which torch does not count, goes unnoticed.
    """

    def __init__(self, weight: Tensor):
        self.weight, self.version = weight, torch_internals.change_count(weight)
        self.place = weight.data_ptr()
        # torch counts no changes through .data, by which callbacks swap weights: a sample of the numbers is compared
        bits = weight.detach().view(torch.int16) if weight.dtype is torch.bfloat16 else weight.detach()  # for numpy
        flat = bits.view(-1).numpy() if weight.is_contiguous() else None
        self.sample = None if flat is None else flat[:: max(1, len(flat) // SAMPLE) | 1]
        self.before = None if self.sample is None else self.sample.tobytes()
        self.matrix = self.lay(weight.detach())
        self.choices: dict[int, bool] = {}  # by rows

    @staticmethod
    def lay(weight: Tensor) -> Any:
        """The matrix in the layout of ``product``."""
        return torch_internals.reorder_weight(weight)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., in) to x W^T + b, (..., out)."""
        return torch_internals.reordered_linear(x, self.matrix, bias)

    def serves(self, rows: int) -> bool:
        """Whether its product is used for so many rows."""
        choice = self.choices.get(rows)
        if choice is None:
            choice = self.choices[rows] = rows <= FEW and is_faster_packed(rows, self.weight)
        return choice

    @property
    def current(self) -> bool:
        """Whether the matrix is still the one that was packed."""
        version = torch_internals.change_count(self.weight)
        if version != self.version or self.weight.data_ptr() != self.place:
            return False
        return self.sample is None or self.sample.tobytes() == self.before


_packed: weakref.WeakValueDictionary[int, Packed] = weakref.WeakValueDictionary()
_read_together: WeakIdKeyDictionary = WeakIdKeyDictionary()  # bytes of the matrices that a step reads, by each of them


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for x (..., in) and W (out, in), as ``F.linear`` to within rounding."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return F.linear(x, weight, bias)
    rows = x.numel() // x.size(-1) if x.size(-1) else 0
    if rows > FEW and torch.is_grad_enabled():
        return training_products.linear(x, weight, bias)
    if not rows or (rows > FEW and not _packed) or not is_inference(x, weight):
        return F.linear(x, weight, bias)
    packed = _packed.get(id(weight))
    if packed is not None and packed.serves(rows) and packed.current:
        return packed.product(x, bias)
    if rows < least_rows(weight) and fastest_kernel(rows, weight) == "columns":
        out = product_by_columns(x.reshape(rows, -1), weight)
        return (out if bias is None else out.add_(bias)).view(*x.shape[:-1], -1)
    return F.linear(x, weight, bias)


def uses_torch_kernel(rows: int, weight: Tensor) -> bool:
    """Whether ``linear`` computes products of so many rows with a matrix (out, in) by torch's own kernel, as long as
    the matrix is not packed; without gradients.
    """
    if id(weight) in _packed:
        return False
    if rows >= least_rows(weight) or not can_serve(weight):
        return True
    return fastest_kernel(rows, weight) != "columns"


def least_rows(weight: Tensor) -> int:
    """The rows from which the packed matrix is the only rival of torch's kernel: fewer of float32 have W x^T, too."""
    return COLUMNS + 1 if weight.dtype is torch.float32 else 1


def product_by_columns(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T (rows, out) as the transpose of W x^T, for x (rows, in) and W (out, in); one row is read as two columns."""
    if len(x) == 1:  # repeat takes seven times as long
        return torch.mm(weight, torch.cat([x] * COLUMNS).t())[:, :1].t().contiguous()
    return torch.mm(weight, x.t()).t().contiguous()


def fastest_kernel(rows: int, weight: Tensor) -> str:
    """The kernel for products of at most ``FEW`` rows with a matrix (out, in): "linear", which is torch's own, or
    "columns" (W x^T) of one or two rows, "packed" (oneDNN) of more. From eight rows on classes end at powers of two.
    """
    rows = rows if rows <= 8 else 1 << (rows - 1).bit_length()
    rival = "columns" if rows < least_rows(weight) else "packed"
    return _choose("products", rows, weight, ("linear", rival))


def is_faster_packed(rows: int, weight: Tensor) -> bool:
    """Whether products of at most ``FEW`` rows with a matrix (out, in) are faster with the matrix packed."""
    kernel = fastest_kernel(rows, weight)
    if rows >= least_rows(weight):
        return kernel == "packed"
    return _choose("packed products", rows, weight, (kernel, "packed")) == "packed"


def _choose(what: str, rows: int, weight: Tensor, kernels: tuple[str, str]) -> str:
    out, width = weight.shape
    dtype, size = weight.dtype, size_class(weight)
    what = f"{what if dtype is torch.float32 else f'bf16 {what}'} in {size} MB"
    return kernel_choice.choose(
        (what, rows, width, out), kernels, lambda: _examples(rows, width, out, kernels, dtype, size)
    )


def size_class(weight: Tensor) -> int:
    """The megabytes of ``SIZES`` for the matrices that a step reads together with this one; the most if unknown."""
    size = _read_together.get(weight, SIZES[-1] << 20)
    return next((megabytes for megabytes in SIZES if size <= megabytes << 20), SIZES[-1])


def _examples(
    rows: int, width: int, out: int, kernels: tuple[str, str], dtype: torch.dtype, size: int
) -> dict[str, Callable[[], object]]:
    """Products with the next of so many matrices (out, in) that they take ``size`` MB, by each of the kernels."""
    row = width * dtype.itemsize
    out = max(1, min(out, (size << 20) // row))
    count = max(1, min((size << 20) // (row * out), MATRICES))
    x = torch.full((rows, width), 0.5, dtype=dtype)
    weights = list(torch.full((count, out, width), 0.5, dtype=dtype))
    packed = [torch_internals.reorder_weight(weight) for weight in weights] if "packed" in kernels else []
    together = max(1, min(count, EXAMPLE // (row * out)))

    def in_turns(product: Callable[[Any], object], matrices: list[Any]) -> Callable[[], None]:
        turns = itertools.cycle(matrices)

        @torch.no_grad()
        def call() -> None:
            for matrix in itertools.islice(turns, together):
                product(matrix)

        return call

    examples: dict[str, Callable[[], object]] = {
        "linear": in_turns(lambda weight: F.linear(x, weight), weights),
        "columns": in_turns(lambda weight: product_by_columns(x, weight), weights),
        "packed": in_turns(lambda weight: torch_internals.reordered_linear(x, weight, None), packed),
    }
    return {name: examples[name] for name in kernels}


def is_inference(x: Tensor, weight: Tensor) -> bool:
    """Whether the product is of float32 or bfloat16 on a CPU and needs no gradient."""
    return (
        x.dtype is weight.dtype
        and x.dtype in TYPES
        and not torch.is_grad_enabled()
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and type(x) is Tensor
        and not transformed()
    )


def packs(weights: Iterable[Tensor], rows: int) -> list[Packed]:
    """Reorder matrices for products with ``rows`` rows; used while the result is referenced. Doubles their memory.

    Nothing is done where it does not help: few or many rows, other devices and types, more than ``LARGEST`` bytes,
    matrices for which torch's own kernel is as fast.
    """
    served = [
        weight
        for weight in note_step(weights)
        if 1 <= rows <= FEW and torch_internals.can_reorder_weights(weight.dtype) and is_faster_packed(rows, weight)
    ]
    return [] if sum(weight.nbytes for weight in served) > LARGEST else [pack_once(weight, Packed) for weight in served]


def note_step(weights: Iterable[Tensor]) -> list[Tensor]:
    """Note the matrices (out, in) that a step reads one after the other, by whose bytes kernels are chosen.

    Those of them that may be reordered are returned.
    """
    candidates = [weight for weight in weights if can_serve(weight)]
    size = sum(weight.nbytes for weight in candidates)
    for weight in candidates:
        _read_together[weight] = size
    return candidates


def can_serve(weight: Tensor) -> bool:
    """Whether a matrix can be reordered, and changes of it noticed."""
    return weight.dim() == 2 and is_inference(weight.detach(), weight) and not weight.is_inference()


def pack_once(weight: Tensor, kind: type[Packed]) -> Packed:
    """The matrix in the layout of ``kind``: the existing one if it is current, otherwise a new one."""
    packed = _packed.get(id(weight))
    if not isinstance(packed, kind) or not packed.current:
        packed = _packed[id(weight)] = kind(weight)
    return packed
