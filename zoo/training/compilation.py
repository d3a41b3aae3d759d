"""torch.compile for the loss of a task, where that makes its training steps faster."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.errors import StorageError
from zoo.io.cache_folder import cache_root
from zoo.parts.ffn import aux_losses
from zoo.system import kernel_choice
from zoo.system.torch_internals import (
    compile_backward_with_forward,
    default_compiler_cache,
    keep_programs_of_own_gradients,
    with_sizes_of_data,
)

if TYPE_CHECKING:
    from zoo.tasks.task import Loss, Task

log = logging.getLogger(__name__)

EAGER, COMPILED = "eager", "compiled"
COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def compile_loss(task: Task) -> None:
    """Have torch.compile make one program of a task's loss and its gradients in training; validation stays as it is.

    At the first batch, steps of both kinds are timed in turns (`zoo.system.kernel_choice`), and the program is used
    where it is faster; a run that is resumed repeats its choice. ``ZOO_KERNELS=plain`` uses it without a measurement.
    Where torch cannot compile, a warning says why. Compiled programs stay in the cache folder for the next run.
    """
    keep_programs()
    compile_backward_with_forward()
    keep_programs_of_own_gradients()
    # it says which CUDA it would use, on machines without a GPU too
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    eager, compiled = task.loss, with_sizes_of_data(torch.compile(task.loss))
    way = ""

    def loss(batch: Any) -> Loss:
        nonlocal way
        if not (task.training and torch.is_grad_enabled()):
            return eager(batch)
        try:
            way = way or faster_way(task, eager, compiled, batch)
            if way == COMPILED:
                return compiled(batch)
        except Exception as error:  # whatever the compiler raises: the loss raises an error of its own again below
            task.loss = eager  # type: ignore[method-assign]
            result = eager(batch)
            log.warning("not compiled, going on without: %s", reason(error))
            return result
        task.loss = eager  # type: ignore[method-assign]
        return eager(batch)

    task.loss = loss  # type: ignore[method-assign]


def reason(error: Exception) -> str:
    """What an error of the compiler says, in one line: its first one that says something, and what a tool's ends with.

    The compiler puts "backend='inductor' raised:" first, and the output of a C++ compiler after its command.
    """
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    lines = [line for line in lines if line and not line.endswith("raised:")] or lines
    last = [line for line in lines if re.search(r"no space|cannot|not found|denied|error:", line, re.IGNORECASE)]
    return "; ".join(dict.fromkeys(line[:200] for line in (lines[0], *last[-2:])))


def keep_programs() -> None:
    """Let the compiler keep its programs in zoo's cache folder, unless the user names another."""
    if os.environ.get(COMPILER_CACHE) in (None, default_compiler_cache()):
        with suppress(StorageError):  # without a home it keeps them in the folder of temporary files
            os.environ[COMPILER_CACHE] = str(cache_root() / "compiled")


def faster_way(task: Task, eager: Callable[[Any], Loss], compiled: Callable[[Any], Loss], batch: Any) -> str:
    """Whether forward and backward of a batch are faster EAGER or COMPILED, by a measurement in turns that leaves the
    task as it was. The class is the model with its sizes, those of the batch, and the precision.
    """
    if kernel_choice.mode() == "plain":
        return COMPILED
    device = task.device.type
    autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    sizes = [(name, tuple(one.shape), str(one.dtype)) for name, one in tensors_of(batch)]
    text = repr((task.net, sizes, autocast[1] if autocast[0] else None, device))
    call = (f"training step of {type(task).__name__}", hashlib.sha256(text.encode()).hexdigest()[:12])

    def prepare() -> dict[str, Callable[[], object]]:
        return {EAGER: lambda: run(eager), COMPILED: lambda: run(compiled)}

    def run(function: Callable[[Any], Loss]) -> Sequence[Tensor | None]:
        parameters = [parameter for parameter in task.parameters() if parameter.requires_grad]
        with torch.autocast(device, autocast[1], autocast[0]):
            total, size = function(batch)
            total = total + sum(side * size for side in aux_losses(task.net))
        return torch.autograd.grad(total, parameters, allow_unused=True)

    with unchanged_buffers(task):
        way = kernel_choice.choose(call, (EAGER, COMPILED), prepare)
    seconds = kernel_choice.times(call)
    if way == EAGER:
        measured = f" ({1e3 * seconds[COMPILED]:.1f} ms against {1e3 * seconds[EAGER]:.1f})" if seconds else ""
        log.warning("--compile: a compiled step is not faster here%s, going on without", measured)
    return way


def tensors_of(batch: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch of nested mappings and sequences, with their places; of any shape, mostly (B, T)."""
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from tensors_of(value, f"{name}.{key}")
    elif isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        for number, value in enumerate(batch):
            yield from tensors_of(value, f"{name}.{number}")


@contextmanager
def unchanged_buffers(task: Task) -> Iterator[None]:
    """What steps change beside gradients is afterwards what it was before."""
    before = [(buffer, buffer.clone()) for buffer in task.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, content in before:
                buffer.copy_(content)
