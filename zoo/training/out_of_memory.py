"""Suggest a batch size that fits, where a step ran out of memory."""

from __future__ import annotations

import re
from inspect import signature
from typing import Any

import torch
from lightning.pytorch import Trainer

from zoo.errors import ZooError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
REQUIRED_PATTERN = re.compile(r"(?:allocate|allocating) ([\d.]+) ?([KMGT]?)i?B?(?:ytes)?", re.IGNORECASE)


class OutOfMemoryError(ZooError):
    """A step needs more memory than there is."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or off it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def explain_out_of_memory(error: BaseException, trainer: Trainer, data: Any) -> OutOfMemoryError:
    """The error in terms of options: halving a batch and doubling the accumulation learns the same.

    What counts batches, when to validate and how many of them, is to be doubled then, too.
    """
    option = "max_tokens" if hasattr(data, "max_tokens") else "batch_size"
    size = int(getattr(data, option, 1))
    # data that are made of a text's samples have its batches
    place = "data.text" if hasattr(data, "text") and option not in signature(type(data)).parameters else "data"
    estimate = fitting_batch(size, required_bytes(str(error)), trainer)
    parts = next(n for n in (2**k for k in range(1, 64)) if size // n <= max(1, estimate))
    if size == 1:
        hint = (
            "a batch is one sample already: take a smaller model, --data.max_length, or --trainer.precision bf16-mixed"
        )
    else:
        words = [f"--{place}.{option} {max(1, size // parts)}"]
        for name in ("accumulate_grad_batches", "val_check_interval", "limit_val_batches"):
            count = getattr(trainer, name, None)
            words += [f"--trainer.{name} {count * parts}"] if type(count) is int and count else []
        hint = f"about {option}={estimate} would fit. The same steps: {' '.join(words)}"
    return OutOfMemoryError(f"out of memory at step {trainer.global_step} with {place}.{option}={size}: {hint}")


def required_bytes(message: str) -> int:
    """The bytes that could not be allocated, 0 where the message has none."""
    match = REQUIRED_PATTERN.search(message)
    return int(float(match[1]) * UNITS[match[2].upper()]) if match else 0


def fitting_batch(size: int, more: int, trainer: Trainer) -> int:
    """The largest batch that might fit: a batch takes the memory that weights and optimiser do not.

    On a GPU, of ``capacity``, a batch of ``size`` needs at least what is allocated now and ``more``; elsewhere half.
    """
    device = trainer.strategy.root_device
    if device.type != "cuda" or not more:
        return max(1, size // 2)
    capacity = torch.cuda.get_device_properties(device).total_memory
    return scale_batch(size, capacity, torch.cuda.memory_allocated(device) + more, fixed_bytes(trainer))


def scale_batch(size: int, capacity: int, needed: int, used: int) -> int:
    """``size`` scaled to the memory that a batch may take: ``capacity - used`` of ``needed - used``."""
    return max(1, min(size - 1, int(size * (capacity - used) / max(1, needed - used))))


def fixed_bytes(trainer: Trainer) -> int:
    """Bytes of weights, gradients and the optimiser's state, which no batch changes."""
    weights = sum(p.numel() * p.element_size() for p in trainer.lightning_module.parameters())
    return 4 * weights
