"""Run entrants in turns, each in a process of its own, so that one's memory and settings are not another's."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
PATIENCE = 900.0  # seconds that building, compiling or a turn may take


@dataclass(frozen=True)
class Entrant:
    """Who runs: ``factory`` is "module:function", which gives a step ``(number) -> loss``, a number or None.

    The step may carry ``parameters``, its count of them. ``env`` is set before anything is imported.
    """

    name: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False  # whether freed memory is kept, as `zoo fit` does
    release: str = ""  # a folder with another version's package zoo, and perhaps its bench


@dataclass
class Record:
    """What was measured of one entrant: seconds per step of each turn, losses of the first steps, bytes at most."""

    entrant: Entrant
    seconds: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    parameters: int | None = None
    memory: int = 0  # the process at its largest, above what it held before the model was built
    failed: str = ""


def compete(entrants: list[Entrant], *, first: int, turns: int, steps: int, clock: str = "wall") -> list[Record]:
    """Build all, take ``first`` untimed steps each, whose losses are kept, then ``turns`` rounds of ``steps``.

    An entrant that fails is reported and left out; the others go on.
    """
    records = [Record(entrant) for entrant in entrants]
    with _workers(entrants, clock) as pipes:
        for record, pipe in zip(records, pipes, strict=True):
            _ask(record, pipe, ("build", None))
        for record, pipe in zip(records, pipes, strict=True):
            _ask(record, pipe, ("first", first))
        for turn in range(turns):
            # every second round goes backwards: whatever drifts, drifts for all
            order = list(zip(records, pipes, strict=True))[:: -1 if turn % 2 else 1]
            for record, pipe in order:
                _ask(record, pipe, ("time", steps))
        for record, pipe in zip(records, pipes, strict=True):
            _ask(record, pipe, ("memory", None))
    return records


@contextmanager
def _workers(entrants: list[Entrant], clock: str):
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    for entrant in entrants:
        here, there = context.Pipe()
        before = dict(os.environ)
        os.environ.update(entrant.env)
        process = context.Process(target=_serve, args=(there, entrant, clock), daemon=True)
        process.start()
        os.environ.clear()
        os.environ.update(before)
        processes.append(process)
        pipes.append(here)
    try:
        yield pipes
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.terminate()


def _ask(record: Record, pipe: Connection, request: tuple[str, int | None]) -> None:
    if record.failed:
        return
    try:
        pipe.send(request)
        if not pipe.poll(PATIENCE):
            raise TimeoutError(f"no answer to {request[0]} in {PATIENCE:.0f} s")
        kind, value = pipe.recv()
    except (OSError, EOFError) as error:
        record.failed = f"{type(error).__name__}: {error or 'the process ended'}"
        return
    if kind == "failed":
        record.failed = value
    elif kind == "build":
        record.parameters = value
    elif kind == "first":
        record.losses = value
    elif kind == "time":
        record.seconds.append(value)
    else:
        record.memory = value


def _serve(pipe: Connection, entrant: Entrant, clock: str) -> None:
    now, step, number, before = CLOCKS[clock], None, 0, 0
    while True:
        try:
            request, count = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any
            if request == "build":
                before, step = _build(entrant)
                answer = getattr(step, "parameters", None)
            elif request == "memory":
                answer = peak() - before
            else:
                losses = []
                start = now()
                for _ in range(count):
                    losses.append(step(number))  # type: ignore[misc]
                    number += 1
                took = (now() - start) / count
                answer = took if request == "time" else losses
            pipe.send((request, answer))
        except BaseException as error:
            lines = traceback.format_exception(error)
            pipe.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0][:300] + "\n" + "".join(lines[-2:])))


def use_release(folder: str) -> None:
    """Import zoo, and bench where it is there, from a folder from now on, whatever was imported before."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "zoo" or name.startswith(("bench.workloads", "bench.training", "bench.work")):
            del sys.modules[name]
    sys.path.insert(0, folder)
    own = os.path.join(folder, "bench")
    if os.path.isdir(own):
        sys.modules[__package__].__path__ = [own]


def _build(entrant: Entrant) -> tuple[int, Callable[[int], float | None]]:
    if entrant.release:
        use_release(entrant.release)
    if entrant.keep:
        _keep_freed_memory()
    module, _, name = entrant.factory.partition(":")
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    factory = getattr(importlib.import_module(module), name)
    before = peak()
    torch.manual_seed(0)
    return before, factory(**entrant.options)


def _keep_freed_memory() -> None:
    """Keep freed memory as `zoo fit` does; version 0.1.0 has it in another module."""
    try:
        from zoo.system.malloc import keep_freed_memory
    except ModuleNotFoundError:
        from zoo.memory import keep as keep_freed_memory
    keep_freed_memory()


def peak() -> int:
    """The most bytes that this process has held.

    Linux's own figure where it can be read: getrusage begins with the size of the parent process.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
