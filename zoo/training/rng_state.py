"""Every generator of random numbers that training may draw from, as plain data for a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def capture(device: torch.device) -> dict[str, Any]:
    """The state of torch's generators (CPU and this process's GPU), of numpy's and of Python's."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, numbers, following = random.getstate()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": [version, torch.tensor(numbers, dtype=torch.int64), following],
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: dict[str, Any], device: torch.device) -> None:
    """Set all generators to the ``states`` that ``capture`` returned."""
    torch.set_rng_state(states["torch"])
    keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    version, numbers, following = states["python"]
    random.setstate((version, tuple(numbers.tolist()), following))
    cuda: Tensor | None = states.get("cuda")
    if cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda, device)
