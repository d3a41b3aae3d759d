"""Processes that run one `zoo` command each and may be killed: forked from one that has imported everything."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

torch.set_num_threads(1)

PATIENCE = 300.0  # seconds that a killed process may take to end on a busy machine
NEEDED = (
    "zoo.training.setup zoo.training.model_cost zoo.cli.fit zoo.data.text zoo.data.phrasebook zoo.data.glyphs "
    "zoo.tasks.lm zoo.tasks.translation zoo.tasks.classification torchvision.transforms.v2"
)


def load() -> None:
    """Import what every life needs, once."""
    import importlib

    for name in NEEDED.split():
        importlib.import_module(name)


def born(words: list[str], home: Path, log: Path, prologue: Callable[[], None] | None = None) -> int:
    """Start `zoo words` in ``home`` as the leader of a process group; its output goes to ``log``. The process's id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(home)
        sys.argv = [str(Path(sys.executable).parent / "zoo"), *words]
        # what Lightning starts for the second process
        sys.modules["__main__"].__spec__ = importlib.util.find_spec("zoo.__main__")
        if prologue is not None:
            prologue()
        from zoo.cli import main

        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        os._exit(code)


def ended(child: int, within: float) -> int | None:
    """The exit code, minus the signal's number where one ended it; None where it still runs after so many seconds."""
    until = time.monotonic() + within
    while True:
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:  # it has ended, and somebody has asked how
            return None
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.005)


def kill(child: int, number: int = signal.SIGKILL) -> int | None:
    """Signal a process and everything in its group; after SIGKILL its exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, number)
    return ended(child, PATIENCE) if number == signal.SIGKILL else None


def aimed(draw: random.Random) -> Callable[[], None]:
    """A prologue that kills the process while it writes: at a random write, fsync or rename."""
    after = draw.randrange(1, 60)

    def prologue() -> None:
        from torch.distributed.checkpoint import filesystem

        from zoo.io import atomic_files

        countdown = after

        def counting(wrapped: Callable) -> Callable:
            def call(*args, **kwargs):
                nonlocal countdown
                countdown -= 1
                if countdown == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return wrapped(*args, **kwargs)

            return call

        class Watched:
            """The module os, as zoo.io.atomic_files and torch's writer of shards see it."""

            replace, fsync, link = (staticmethod(counting(call)) for call in (os.replace, os.fsync, os.link))

            def __getattr__(self, name):
                return getattr(os, name)

        atomic_files.os = filesystem.os = Watched()
        filesystem._write_item = counting(filesystem._write_item)
        atomic_files.HashingFile.write = counting(atomic_files.HashingFile.write)

    return prologue
