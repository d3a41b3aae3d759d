"""The machine of a report: hardware, versions and ceilings."""

from __future__ import annotations

import os
import platform
import statistics
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "lightning", "transformers", "litgpt", "x-transformers", "timm", "joeynmt")


def machine() -> dict[str, str | float]:
    """Hardware, versions and ceilings, for the head of a report."""
    import torch

    from zoo.explain.ceilings import bandwidth, matrix, processor

    properties: dict[str, str | float] = {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    for name in PACKAGES:
        try:
            properties[name] = version(name)
        except PackageNotFoundError:
            continue
    properties["fp32 GFLOP/s"] = round(matrix(torch.float32) / 1e9)
    properties["bf16 GFLOP/s"] = round(matrix(torch.bfloat16) / 1e9)
    properties["memory GB/s"] = round(bandwidth() / 1e9, 1)
    return properties


def spread(values: list[float]) -> float:
    """Half the range between the quartiles, as a share of the median."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2 / statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / statistics.median(values)
