"""Handle SIGTERM, SIGUSR1, SIGINT and SIGHUP from a command's start to its end, except while training.

While a trainer trains, the handlers of `zoo.training.signals` stand in the place of these, and begin with the signal
that has arrived here before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

HANDLED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP") if hasattr(signal, name))
PARENT = "ZOO_FIRST_PROCESS"  # the environment variable with the number of the process that starts the others
REPEAT_AFTER = 2.0  # seconds: what sends a signal to a group of processes may reach one of them twice at once
UNANSWERED = 10.0  # seconds that a call into a library may keep Python from answering a signal


class Interrupted(KeyboardInterrupt):
    """A signal ends the command outside of training; as Ctrl-C, it is no error of what was being done."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def exit_code(signum: int) -> int:
    """130 for SIGINT, which a person sends, 143 for the others, which machines send."""
    return 130 if signum == signal.SIGINT else 143


def job_code(code: int) -> int:
    """The exit code of a job one of whose processes has ended with this one."""
    return code if 0 < code < 126 or code in (130, 143) else 1


class StopSignals:
    """Handlers of a whole command; ``defer``: a signal waits until all processes of the job agree to end.

    ``received`` is the first signal, 0 before.
    """

    def __init__(self, defer: bool = False) -> None:
        self.defer = defer
        self.received, self._when = 0, 0.0
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals that are not ignored, and let in those that the process was started without."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = {number: signal.getsignal(number) for number in HANDLED}
        self._previous = {number: old for number, old in previous.items() if old is not signal.SIG_IGN}
        for number in self._previous:
            signal.signal(number, self.note)
        if not self.defer:
            self._watch()
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def remove(self, ended: bool) -> None:
        """Put the former handlers back; a process that has ``ended`` all its work ignores the signals instead."""
        for number, old in self._previous.items():
            signal.signal(number, signal.SIG_IGN if ended else signal.SIG_DFL if old is None else old)
        if self._previous and not self.defer:
            signal.set_wakeup_fd(-1)
            self._ends.close()
        self._previous = {}

    def note(self, number: int, frame: Any) -> None:
        """Remember the first signal, and end by it; one that comes seconds later ends the process at once."""
        if self.received and time.monotonic() - self._when > REPEAT_AFTER:
            os._exit(exit_code(number))
        if self.received:
            return
        self.received, self._when = number, time.monotonic()
        if not self.defer:
            raise Interrupted(number)

    def _watch(self) -> None:
        """End the process even while a library waits and Python cannot run its signal handlers."""
        receiver, self._ends = socket.socketpair()
        self._ends.setblocking(False)
        signal.set_wakeup_fd(self._ends.fileno(), warn_on_full_buffer=False)

        def watch() -> None:
            with receiver:
                while data := receiver.recv(1):
                    time.sleep(UNANSWERED)
                    if data[0] in HANDLED and not self.received and signal.getsignal(data[0]) == self.note:
                        os.write(2, f"interrupted by {signal.Signals(data[0]).name}\n".encode())
                        os._exit(exit_code(data[0]))

        threading.Thread(target=watch, name="observer of signals", daemon=True).start()


def is_further_process() -> bool:
    """Whether the first process of a training has started this one."""
    return PARENT in os.environ and os.environ.get("LOCAL_RANK", "0") not in ("", "0")


current: StopSignals | None = None  # that of the command which runs


def received_signal() -> int:
    """The signal that has arrived since the command began, before anything else handled signals; 0 for none."""
    return current.received if current is not None else 0


@contextlib.contextmanager
def handle_signals(defer: bool, restore: bool) -> Iterator[None]:
    """Handle signals while a command runs; then restore the former handlers, or ignore signals unless ``restore``."""
    global current
    before, current = current, StopSignals(defer)
    current.install()
    try:
        yield
    finally:
        installed, current = current, before
        installed.remove(ended=not restore)


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Start processes that receive no signal before they handle it: ``StopSignals.install`` lets it in."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
