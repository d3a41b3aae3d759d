"""Start runs as forks of one process that has imported what every training needs, which takes seconds each time.

A fork is as much on its own as a new process: it shares no folder, stream, environment or random state with another.
Forks are for Linux, and for machines without an accelerator, whose driver a fork cannot use once its parent did.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import random
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.config import fit_options, run_config
from zoo.system import process_exit

# what `zoo fit` imports for every recipe, in its order
LIBRARIES = (
    "torch", "lightning.pytorch", "torchmetrics", "jsonargparse", "torch.utils.tensorboard", "zoo.cli.fit",
    "zoo.cli.fit_summary", "zoo.training.setup", "zoo.training.model_cost", "zoo.training.loops", "zoo.tasks.task",
)  # fmt: skip
STOPPED = 128 + signal.SIGTERM  # which says nothing about the variant
STALE = "stale"  # the answer of a server some of whose modules have changed on the disk
POLL = 0.02  # seconds


def can_fork() -> bool:
    """Whether runs may be forks here: on Linux without an accelerator, as torch says."""
    import torch

    return sys.platform == "linux" and not torch.accelerator.is_available()


class ForkedRun:
    """A run as `subprocess.Popen` has it: ``pid``, ``returncode``, `poll` and `wait`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server, self.pid = server, pid
        self.returncode: int | Any = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended the run; None while it runs."""
        if self.returncode is None:
            self.returncode = self.server.code_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once there is one. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"run {self.pid}", timeout or 0.0)
            time.sleep(POLL)
        return code


class ForkServer:
    """The process that forks, for the threads of this one; the first run starts it, ``command`` as a run of its own.

    It ends with this process, when its input does: following the thread that started it, it would end too early.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command, self.environment = [*command, __spec__.name], dict(environment)
        self.lock = threading.RLock()
        self.process: Any = None  # a subprocess.Popen, once there is one
        self.codes: dict[int, int] = {}
        self.running: set[int] = set()  # the runs whose codes nobody has taken
        self.unread = b""

    def start(
        self, words: Sequence[str], log: Path, environment: Mapping[str, str], folder: str = ""
    ) -> ForkedRun | None:
        """Fork for ``zoo WORDS`` with this environment, its output in ``log``, in a working folder (that of this
        process); None where no server can: also where a module of it has changed while other runs of it go on.
        """
        request = {"words": list(words), "log": str(log), "environment": dict(environment)}
        with self.lock:
            return self._start({**request, "folder": folder or os.getcwd()})

    def _start(self, request: Mapping[str, Any]) -> ForkedRun | None:
        for _ in range(2):
            if self.process is None or self.process.poll() is not None:
                self.codes |= dict.fromkeys(self.running - self.codes.keys(), STOPPED)  # they have followed theirs
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    env=self.environment, start_new_session=True,
                )  # fmt: skip
                self.unread = b""
            answer = self._ask(request)
            if isinstance(answer, int):
                self.running.add(answer)
                return ForkedRun(self, answer)
            if answer is None or self.running - self.codes.keys():
                return None
            self.stop()
        return None

    def code_of(self, pid: int) -> int | None:
        """The exit code of a run; that of a run which was stopped where its server has died, which its runs follow."""
        with self.lock:
            self._read(0.0)
            if pid not in self.codes and (self.process is None or self.process.poll() is not None):
                self.codes[pid] = STOPPED
            if pid in self.codes:
                self.running.discard(pid)
            return self.codes.pop(pid, None)

    def stop(self) -> None:
        """End the server, which has no runs any more."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()

    def _ask(self, request: Mapping[str, Any]) -> Any:
        """The server's answer to a request; None where it has died."""
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return None
        while (answer := self._read(None)) is None and self.process.poll() is None:
            pass
        return answer

    def _read(self, timeout: float | None) -> Any:
        """Note the exit codes that the server has written; the answer among them, for which None as timeout waits."""
        answer = None
        while answer is None and select.select([self.process.stdout], [], [], timeout)[0]:
            content = os.read(self.process.stdout.fileno(), 65536)
            *lines, self.unread = (self.unread + content).split(b"\n")
            for message in map(json.loads, lines):
                if isinstance(message, dict):
                    self.codes[message["pid"]] = message["code"]
                else:
                    answer = message
            if not content:
                break
        return answer


def serve() -> int:
    """Fork for each request; returns in forks alone, with the exit code of the command that the request names."""
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what modules print when they are imported is no answer
    for name in LIBRARIES:
        importlib.import_module(name)
    modules: dict[str, int] = {}
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    runs: set[int] = set()
    unread = b""
    while True:
        ready = select.select([0, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            for pid in list(runs):
                if (status := os.waitpid(pid, os.WNOHANG))[0]:
                    runs.remove(pid)
                    _answer(answers, {"pid": pid, "code": os.waitstatus_to_exitcode(status[1])})
        if 0 not in ready:
            continue
        content = os.read(0, 65536)
        if not content:
            os._exit(0)
        *lines, unread = (unread + content).split(b"\n")
        for request in map(json.loads, lines):
            if not modules:
                _plan(request["words"])
                gc.collect()
                gc.freeze()  # a collection would take a third of a second, and copy the memory of all objects
                modules = _stamps()
            elif _stamps() != modules:
                _answer(answers, STALE)
                continue
            began, begin = os.pipe()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for descriptor in (ended, wakeup, began, answers):
                    os.close(descriptor)
                return _run(request, os.getppid(), begin)
            os.close(begin)
            os.read(began, 1)  # its process group exists, and can be signalled
            os.close(began)
            runs.add(pid)
            _answer(answers, pid)


def _plan(words: Sequence[str]) -> None:
    """Plan a run of zoo's own parts as far as its parsers: forks have what that imports, reads and keeps.

    Packages of others are left to the runs that use them: a fork has no threads that an import may start.
    """
    with contextlib.suppress(Exception):  # each run says itself what is wrong with it
        command = fit_options.parse("fit", words[1:])
        draft = run_config.read_draft(command)
        if command.allowed or any(not part.builtin for kind in registry.KINDS for part in registry.parts(kind)):
            return
        from zoo.cli.fit import Parsers

        schema = run_config.schema()
        Parsers(run_config.make_plan(command, draft, schema), schema)


def _answer(answers: int, message: object) -> None:
    with contextlib.suppress(OSError):
        os.write(answers, json.dumps(message).encode() + b"\n")


def _stamps() -> dict[str, int]:
    """When imported modules and the folder of packages were changed: a run is recorded with what the disk has."""
    stamps = {"": os.stat(sysconfig.get_path("purelib")).st_mtime_ns}
    for name, module in list(sys.modules.items()):
        with contextlib.suppress(OSError, TypeError, AttributeError):
            stamps[name] = os.stat(module.__file__).st_mtime_ns  # type: ignore[arg-type]
    return stamps


def _run(request: Mapping[str, Any], parent: int, begin: int) -> int:
    """Turn this fork into what a new process would be, and run the command."""
    os.setsid()
    log, null = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, log, log)):
        os.dup2(descriptor, number)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    process_exit.follow_parent(parent)
    os.close(begin)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    importlib.import_module("numpy").random.seed()
    main = sys.modules["__main__"]
    main.__spec__ = importlib.util.find_spec("zoo.__main__")  # which Lightning starts further processes of a run with
    assert main.__spec__ is not None
    sys.argv = [str(main.__spec__.origin), *request["words"]]
    from zoo.cli import main as run

    return run()


if __name__ == "__main__":
    process_exit.exit_with(serve)
