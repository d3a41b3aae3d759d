"""Arithmetic that neither a low precision nor autocast shortens."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """x in at least float32, the same shape."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unshortened(x: Tensor) -> AbstractContextManager:
    """Turns autocast off for the device of x."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
