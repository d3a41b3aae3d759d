"""torch.compile for the loss of a task."""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from zoo.errors import StorageError
from zoo.io.cache_folder import cache_root
from zoo.system.torch_internals import (
    compile_backward_with_forward,
    default_compiler_cache,
    keep_programs_of_own_gradients,
    with_sizes_of_data,
)

if TYPE_CHECKING:
    from zoo.tasks.task import Loss, Task

log = logging.getLogger(__name__)

COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def compile_loss(task: Task) -> None:
    """Have torch.compile make one program of a task's loss and its gradients in training; validation stays as it is.

    Where torch cannot compile, a warning says why, and the run goes on without. Compiled programs stay in the cache
    folder for the next run.
    """
    keep_programs()
    compile_backward_with_forward()
    keep_programs_of_own_gradients()
    # it says which CUDA it would use, on machines without a GPU too
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    eager, compiled = task.loss, with_sizes_of_data(torch.compile(task.loss))

    def loss(batch: Any) -> Loss:
        if not (task.training and torch.is_grad_enabled()):
            return eager(batch)
        try:
            return compiled(batch)
        except Exception as error:  # whatever the compiler raises: the loss raises an error of its own again below
            task.loss = eager  # type: ignore[method-assign]
            result = eager(batch)
            log.warning("not compiled, going on without: %s", reason(error))
            return result

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
