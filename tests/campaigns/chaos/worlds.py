"""The further processes of a job, forked as the first one is: a job of two is there as soon as one of one.

A process that `lives.born` starts calls ``ready`` in its prologue; what Lightning would start by a command line, with
an environment, is then a fork that has waited for that environment. It is a child of the first process all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from zoo.system import stop_signals


class Forked:
    """As much of subprocess.Popen as a launcher uses."""

    waiting: list[tuple[int, int]] = []  # noqa: RUF012 - of this process: a child, and where it is told its environment

    def __init__(self, command: list[str], env: dict[str, str], cwd: str | None = None) -> None:
        self.args, self.returncode = command, None
        self.pid, pipe = Forked.waiting.pop(0)
        with contextlib.suppress(BrokenPipeError), os.fdopen(pipe, "w") as stream:  # killed before it began
            json.dump(dict(env), stream)

    def poll(self) -> int | None:
        """The exit code, minus the signal's number, or None."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return self.returncode
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Until it ends."""
        until = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To a process that still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """By SIGKILL."""
        self.send_signal(signal.SIGKILL)


def ready(processes: int) -> None:
    """Fork what will be the further processes, and let Lightning's launcher use them."""
    from lightning.pytorch.strategies.launchers import subprocess_script

    for _ in range(1, processes):
        out, into = os.pipe()
        with stop_signals.block_signals():  # as for a process that the launcher starts
            child = os.fork()
        if not child:
            os.close(into)
            for _, other in Forked.waiting:
                os.close(other)
            become(out)
        os.close(out)
        Forked.waiting.append((child, into))

    class Module:
        """The module subprocess, as the launcher sees it."""

        Popen = Forked

        def __getattr__(self, name: str) -> Any:
            return getattr(subprocess, name)

    subprocess_script.subprocess = Module()  # type: ignore[attr-defined]


def become(pipe: int) -> None:
    """Wait for an environment, and run the command in it; end where nobody sends one."""
    code = 70
    try:
        with os.fdopen(pipe) as stream:
            text = stream.read()
        if not text:
            os._exit(0)
        os.environ.clear()
        os.environ.update(json.loads(text))
        from zoo.cli import main

        code = main(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        os._exit(code)


def rank() -> int:
    """The number of this process in its job."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def emptied(group: int, within: float) -> float | None:
    """Seconds until no process of a group is left; None where one still is after so many."""
    start = time.monotonic()
    while time.monotonic() - start < within:
        if not members(group):
            return time.monotonic() - start
        time.sleep(0.02)
    return None


def members(group: int) -> list[int]:
    """The living processes of a group."""
    result = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, _, its, *_ = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(its) == group and state not in (b"Z", b"X"):
                result.append(int(name))
    return result
