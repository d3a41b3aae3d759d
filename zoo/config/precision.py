"""Default precision: bf16-mixed on processors with fast bfloat16 (AMX, recent GPUs), else Lightning's float32."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

SWITCH = "ZOO_BF16"
BF16_MIXED = "bf16-mixed"


def choose_precision(trainer: dict[str, Any]) -> None:
    """Set the trainer's precision to bf16-mixed if it is not configured and the device has fast bfloat16."""
    off = os.environ.get(SWITCH, "").lower() in ("0", "no", "off", "false")
    if off or any(trainer.get(name) is not None for name in ("precision", "plugins")):
        return
    if has_fast_bf16(device_type(str(trainer.get("accelerator") or "auto"))):
        trainer["precision"] = BF16_MIXED


def adopt_precision(trainer: dict[str, Any], earlier: Mapping[str, Any]) -> None:
    """Set the trainer's precision to that of an earlier run, whatever the device supports."""
    precision = earlier.get("precision")
    if precision is None:
        trainer.pop("precision", None)
    else:
        trainer["precision"] = precision


def device_type(accelerator: str) -> str:
    """The device type on which a trainer will compute: cpu, cuda, mps or another."""
    import torch

    if accelerator in ("auto", "gpu"):
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    return accelerator


def has_fast_bf16(place: str) -> bool:
    """Whether bfloat16 matrix products are several times faster than float32: CPUs with AMX, GPUs with bf16."""
    import torch

    if place == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return place == "cpu" and bool(cpu_capabilities().get("amx_bf16"))


def has_bf16(place: str) -> bool:
    """Whether a device has bfloat16 instructions at all: AVX-512 doubles the speed of large matrix products."""
    return has_fast_bf16(place) or (place == "cpu" and bool(cpu_capabilities().get("avx512_bf16")))


def cpu_capabilities() -> Mapping[str, Any]:
    """torch's report of CPU instructions; empty for versions of torch without one."""
    import torch

    report: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return report
