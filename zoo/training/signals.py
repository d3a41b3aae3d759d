"""SIGTERM, SIGUSR1, SIGINT and SIGHUP stop training, after a batch that all processes agree on.

Lightning's own handler talks to the other processes from within the handler, which blocks when two of them do. Here a
handler only records the signal.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer

from zoo.system import stop_signals
from zoo.system.stop_signals import HANDLED, REPEAT_AFTER, exit_code
from zoo.training import distributed


class StopRequested(SystemExit):
    """A signal stops training at ``step``; ``saved``: whether a checkpoint of that step is on disk."""

    def __init__(self, signum: int, step: int, saved: bool) -> None:
        super().__init__(exit_code(signum))
        self.signum, self.step, self.saved = signum, step, saved


class Signals:
    """Takes the place of Lightning's handlers while a trainer runs; what was there before is put back at the end."""

    received_sigterm = False  # read in Lightning's loops; `CheckpointSaver.on_batch_boundary` stops training instead

    def __init__(self) -> None:
        self.signum = 0  # the signal
        self.when = 0.0
        self.previous: dict[int, Any] = {}  # handlers by signal

    def register_signal_handlers(self) -> None:
        """Handle signals from now on."""
        if self.previous or threading.current_thread() is not threading.main_thread():
            return
        # nohup ignores SIGHUP
        ignored = {getattr(signal, "SIGHUP", None)} if ignores_hangup() else set()
        self.previous = {number: signal.getsignal(number) for number in HANDLED if number not in ignored}
        for number in self.previous:
            signal.signal(number, self.note)
        if (earlier := stop_signals.received_signal()) and not self.signum:
            self.note(earlier, None)

    def teardown(self) -> None:
        """Put back the handlers that were there before."""
        for number, handler in self.previous.items():
            if handler is not None:  # one that Python has not set cannot be set by it
                signal.signal(number, handler)
        self.previous = {}

    def note(self, number: int, frame: Any) -> None:
        """Remember the first signal; one that comes seconds later ends the process at once."""
        if not self.signum:
            self.signum, self.when = number, time.monotonic()
        elif time.monotonic() - self.when > REPEAT_AFTER:
            os._exit(exit_code(number))


def ignores_hangup() -> bool:
    """Whether this process was started to outlive its terminal."""
    return hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


class Agreement:
    """Exchanges values between all processes: the maximum of whole numbers, or the plain data of each.

    With several processes this is one all-reduce on the CPU; it does not wait for a GPU.
    """

    def __init__(self, trainer: Trainer) -> None:
        several = trainer.world_size > 1 and dist.is_available() and dist.is_initialized()
        # torch gives a new group its own timeout of 30 minutes, whatever that of the job
        self.group: Any = dist.new_group(backend="gloo", timeout=distributed.PATIENCE) if several else None

    def maximum(self, *values: int) -> list[int]:
        """The largest of each value over all processes, each of which must call this."""
        if self.group is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return [int(value) for value in tensor]

    def gather(self, value: Any) -> list[Any]:
        """The plain data of every process, in the order of ranks."""
        if self.group is None:
            return [value]
        objects: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(objects, value, group=self.group)
        return objects
