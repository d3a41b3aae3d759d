"""bfloat16 where nobody says otherwise, on machines that are made for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

SWITCH = "ZOO_BF16"
FAST = "bf16-mixed"


def choose_precision(trainer: dict[str, Any]) -> None:
    """Write the precision into the options of a trainer that says nothing of it, where it is not Lightning's own."""
    off = os.environ.get(SWITCH, "").lower() in ("0", "no", "off", "false")
    if off or any(trainer.get(name) is not None for name in ("precision", "plugins")):
        return
    if fast_dtypes(place(str(trainer.get("accelerator") or "auto"))):
        trainer["precision"] = FAST


def adopt_precision(trainer: dict[str, Any], earlier: Mapping[str, Any]) -> None:
    """Take the precision of an earlier run, whatever this machine is good at."""
    precision = earlier.get("precision")
    if precision is None:
        trainer.pop("precision", None)
    else:
        trainer["precision"] = precision


def place(accelerator: str) -> str:
    """Where a trainer will compute: cpu, cuda, or another."""
    import torch

    if accelerator in ("auto", "gpu"):
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    return accelerator


def fast_dtypes(place: str) -> bool:
    """Whether products of bfloat16 numbers are several times as fast as others: AMX, and GPUs that have them."""
    import torch

    if place == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return place == "cpu" and bool(capabilities().get("amx_bf16"))


def faster(place: str) -> bool:
    """Whether a processor has instructions for bfloat16 at all: AVX-512 doubles the speed of large products."""
    return fast_dtypes(place) or (place == "cpu" and bool(capabilities().get("avx512_bf16")))


def capabilities() -> Mapping[str, Any]:
    """What torch knows of the processor; not every torch that serves does."""
    import torch

    report: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return report
