"""Measurements that are no contest: tables of figures over sizes, kinds or commands, each point in a fresh process."""

from __future__ import annotations

import ctypes
import gc
import importlib
import math
import multiprocessing
import os
import resource
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 1800.0  # seconds that one measurement may take
SHARE = 0.6  # of the memory that is free, which a point may be expected to take


@dataclass(frozen=True)
class Options:
    """How much is measured: ``longest`` bounds sizes, ``turns`` repetitions; ``clock`` is "wall" or "cpu"; ``figures``
    is a folder for pictures, none unless given; ``parts`` names the rows of tables of mixers, all unless given.
    """

    turns: int = 7
    clock: str = "wall"
    longest: int = 16384
    threads: int = 1
    figures: Path | None = None
    parts: Sequence[str] = ()


@dataclass
class Table:
    """Figures under a title, with what must be known to read them."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The table as a page shows it."""
        lines = [f"### {self.title}", "", f"| {' | '.join(self.columns)} |", "|---" * len(self.columns) + "|"]
        lines += [f"| {' | '.join(as_text(value) for value in row)} |" for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {"title": self.title, "columns": list(self.columns), "rows": self.rows, "notes": self.notes}


def as_text(value: Any) -> str:
    """A figure with three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, float) and abs(value) >= 100 else (
        f"{value:.3g}" if isinstance(value, float) else str(value)
    )  # fmt: skip


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """b of the power law cost = a size^b that fits best, by least squares of logarithms; None below two points."""
    pairs = [(math.log(x), math.log(y)) for x, y in zip(sizes, costs, strict=True) if x > 0 and y > 0]
    if len(pairs) < 2:
        return None
    x, y = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in pairs) / sum((a - x) ** 2 for a, _ in pairs)


def fresh(function: str, env: Mapping[str, str] | None = None, **options: Any) -> Any:
    """What "module:function" gives in a process of its own; RuntimeError with what it raised where it fails."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    before = dict(os.environ)
    os.environ.update(env or {})
    process = context.Process(target=_serve, args=(there, function, options), daemon=True)
    process.start()
    os.environ.clear()
    os.environ.update(before)
    there.close()
    try:
        if not here.poll(PATIENCE):
            raise RuntimeError(f"no answer in {PATIENCE:.0f} s")
        fine, value = here.recv()
    except EOFError as error:
        raise RuntimeError("the process ended") from error
    finally:
        process.join(1)
        if process.is_alive():
            process.kill()
    if not fine:
        raise RuntimeError(value)
    return value


def _serve(pipe: Any, function: str, options: dict[str, Any]) -> None:
    module, _, name = function.partition(":")
    try:
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        pipe.send((True, getattr(importlib.import_module(module), name)(**options)))
    except BaseException as error:
        pipe.send((False, "".join(traceback.format_exception_only(error)).strip().splitlines()[0][:300]))


def command_seconds(
    command: Sequence[str], folder: str, clock: str, limit: float = 300.0, check: bool = False
) -> float:
    """Seconds that a command takes in a folder, with the processes that it starts and waits for, by ``clock``.

    Raises subprocess.TimeoutExpired after ``limit`` seconds; with ``check``, CalledProcessError if it fails.
    """
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, capture_output=True, check=check, timeout=limit)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if clock == "cpu":
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start


# memory of this process

RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "ZOO_KEEP_MEMORY": "0"}


def peak_above(work: Callable[[], object]) -> int:
    """Bytes by which this process grew at most during ``work``, as the system counts them (Linux).

    To be run under ``RETURN_MEMORY``: freed blocks then leave the process, so that its size is what is in use. What
    small blocks have left free within the heap is given back first: it would hide as much of the growth.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak starts anew
    work()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def free() -> int:
    """Bytes that the machine can still give."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


Study = Callable[[Options], list[Table]]
