"""What this machine can do at most: matrix products and copies, measured."""

from __future__ import annotations

import os
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

SIZES = (512, 1024, 1536)
PACKAGES = ("torch", "lightning", "transformers", "litgpt", "x-transformers", "timm", "joeynmt")


def matrix(dtype: torch.dtype) -> float:
    """The best FLOP/s of a square product into memory that is there already, over sizes and repetitions."""
    best = 0.0
    for size in SIZES:
        a, out = torch.randn(size, size, dtype=dtype), torch.empty(size, size, dtype=dtype)
        for _ in range(6):
            start = time.perf_counter()
            torch.mm(a, a, out=out)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def bandwidth(megabytes: int = 256) -> float:
    """Bytes per second, read and written, of a copy far larger than the caches; the best of a few."""
    a = torch.ones(megabytes * 2**18)
    b = torch.empty_like(a)
    best = 0.0
    for _ in range(6):
        start = time.perf_counter()
        b.copy_(a)
        best = max(best, 2 * a.nbytes / (time.perf_counter() - start))
    return best


def machine() -> dict[str, str | float]:
    """Hardware, versions and ceilings, for the head of a report."""
    properties: dict[str, str | float] = {
        "processor": _processor(),
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    extra = [flag for flag in ("avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{names[0] if names else platform.machine()} ({', '.join(extra)})"


def spread(values: list[float]) -> float:
    """Half the range between the quartiles, as a share of the median."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2 / statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / statistics.median(values)
