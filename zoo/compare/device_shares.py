"""Devices of the simultaneous runs of a comparison: each run of ``--jobs N`` sees its own share of the GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.errors import UsageError

VARIABLE = "CUDA_VISIBLE_DEVICES"
ACCELERATORS = ("auto", "gpu", "cuda")


def visible_devices() -> tuple[str, ...]:
    """The GPUs that this process sees, by the names or numbers of CUDA_VISIBLE_DEVICES. Imports torch."""
    import torch

    count = torch.cuda.device_count()
    text = os.environ.get(VARIABLE)
    names = [name.strip() for name in text.split(",")] if text else [str(number) for number in range(count)]
    return tuple(names[:count])


def split_devices(devices: Sequence[str], jobs: int, per_run: int = 1) -> tuple[str, ...]:
    """CUDA_VISIBLE_DEVICES of each of ``jobs`` simultaneous runs: equally many consecutive devices, none shared.

    Raises UsageError if there are not ``per_run`` devices for each.
    """
    share = len(devices) // jobs
    if share < per_run:
        most, names = len(devices) // per_run, ", ".join(devices)
        devices_of_run = "a device" if per_run == 1 else f"{per_run} devices"
        instead = f"Use --jobs {most}" if most else f"Set --trainer.devices to at most {len(devices)}"
        raise UsageError(
            f"--jobs {jobs}: every run has {devices_of_run} of its own, and there are {len(devices)}: {names}.\n"
            "Runs on one device would share its memory and slow each other down, and the table compares their speed "
            f"and memory.\n{instead}, or --trainer.accelerator cpu."
        )
    return tuple(",".join(devices[job * share : (job + 1) * share]) for job in range(jobs))


def device_shares(trainer: Mapping[str, Any], jobs: int) -> tuple[str, ...]:
    """The devices of each of ``jobs`` simultaneous runs with these options of the trainer.

    Empty where nothing is divided: one run at a time, no GPU, another accelerator, or devices that the options number.
    Raises UsageError if there are too few devices.
    """
    devices = trainer.get("devices") or "auto"
    count = int(devices) if str(devices).isdecimal() else 1
    numbered = isinstance(devices, (list, tuple)) or (isinstance(devices, str) and "," in devices)
    if jobs == 1 or numbered or str(trainer.get("accelerator") or "auto") not in ACCELERATORS:
        return ()
    visible = visible_devices()
    return split_devices(visible, jobs, count) if visible else ()
