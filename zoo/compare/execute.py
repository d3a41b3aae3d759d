"""Run what a comparison still lacks: each run in its own process, several at once, none twice, none lost."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from zoo.compare import run_state
from zoo.errors import StorageError, ZooError
from zoo.io.locks import BEAT, Lock

POLL, GRACE = 0.1, 60.0  # seconds between two looks, and for a run to save its state when it is stopped
COMMAND = (sys.executable, "-m", "zoo")
TAIL = 3  # lines of a failed run's log that are shown
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # loaded here: not after a fork


@dataclass(frozen=True)
class Job:
    """A run: what to call it, its folder, and the words of `zoo fit`."""

    title: str
    folder: Path
    words: tuple[str, ...]
    goal: str = ""  # the figure that is told when it ends; the run's first one unless named


@dataclass
class Running:
    """A job, its process and its lock."""

    job: Job
    process: subprocess.Popen[bytes]
    lock: Lock
    log: IO[bytes]
    since: int  # where this attempt's output begins in the log
    begun: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class How:
    """How to run: the program, how many runs at once, what their environment adds, and whether to wait for others."""

    command: Sequence[str] = COMMAND
    jobs: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    wait: bool = True
    tell: Callable[[str], object] = print


def threads(jobs: int) -> int:
    """Threads for each run: what the environment says, or else an equal share of the cores."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdecimal() and int(text) > 0:
        return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // jobs)


class FailedRun(str):
    """The title of a run that failed, which knows its exit code."""

    code: int

    def __new__(cls, title: str, code: int) -> FailedRun:
        found = super().__new__(cls, title)
        found.code = code
        return found


def exit_code(failed: Sequence[FailedRun]) -> int:
    """What a comparison ends with whose runs have failed: 5 where a disk was the reason for all, 0 for none."""
    if not failed:
        return 0
    return StorageError.code if all(one.code == StorageError.code for one in failed) else ZooError.code


def execute(jobs: Sequence[Job], how: How) -> list[FailedRun]:
    """Run jobs until all are finished, by this process or another, and return the titles of those that failed.

    With ``how.wait`` false it ends when the only runs left are others'. An interruption stops the runs, which save
    their state, and is raised again.
    """
    previous = _leave_on_signals()
    try:
        worker = _Worker(jobs, how)
        try:
            return worker.run()
        finally:
            worker.stop()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Worker:
    def __init__(self, jobs: Sequence[Job], how: How) -> None:
        self.how, self.count = how, len(jobs)
        self.waiting = [job for job in jobs if run_state.read_state(job.folder) != "finished"]
        self.running: list[Running] = []
        self.failed: list[FailedRun] = []
        self.done = self.count - len(self.waiting)
        self.beaten = time.monotonic()
        self.told = ""

    def run(self) -> list[FailedRun]:
        while self.waiting or self.running:
            for one in [one for one in self.running if one.process.poll() is not None]:
                self._ended(one)
            self._beat()
            held = self._start()
            if held and not self.running:
                if not self.how.wait:
                    break
                self._say(f"waiting for {len(held)} runs that others do: {held[0]}")
            if self.waiting or self.running:
                time.sleep(POLL if self.running else 10 * POLL)
        return self.failed

    def _start(self) -> list[str]:
        """Start what is free, and say what others work on."""
        held = []
        for job in list(self.waiting):
            if len(self.running) == self.how.jobs:
                break
            if run_state.read_state(job.folder) == "finished":
                self.waiting.remove(job)
                self.done += 1
                self._line(job, "done by another process")
                continue
            lock = Lock(run_state.path_beside(job.folder, ".lock"))
            if not lock.take():
                held.append(f"{job.title} ({lock.holder() or 'just ended'})")
                continue
            if run_state.read_state(job.folder) == "finished":  # between the look and the lock
                lock.release()
                continue
            self.waiting.remove(job)
            self._spawn(job, lock)
        return held

    def _spawn(self, job: Job, lock: Lock) -> None:
        try:
            words = [*self.how.command, "fit", *job.words, *run_state.should_run_again(job.folder)]
            log = run_state.path_beside(job.folder, ".log").open("ab")
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            parent = os.getpid()
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads(self.how.jobs)), **self.how.environment},
                preexec_fn=lambda: _begin(parent),  # this process has one thread
            )  # fmt: skip
        except BaseException:
            lock.release()
            raise
        self.running.append(Running(job, process, lock, log, log.tell()))
        lock.started(process.pid)

    def _ended(self, one: Running) -> None:
        self.running.remove(one)
        one.log.close()
        code, finished = one.process.returncode, run_state.read_state(one.job.folder) == "finished"
        one.lock.release()
        if finished:
            self.done += 1
            seconds = time.monotonic() - one.begun
            self._line(one.job, f"{figure(run_state.ledger(one.job.folder), one.job.goal)}{seconds:.0f} s")
            return
        self.failed.append(FailedRun(one.job.title, code))
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        log = run_state.path_beside(one.job.folder, ".log")
        self.how.tell("\n".join([f"failed  {one.job.title} ({why}), see {log}", *last(log, one.since)]))

    def _line(self, job: Job, what: str) -> None:
        self.how.tell(f"{self.done}/{self.count}  {job.title} · {what}")

    def _say(self, text: str) -> None:
        """Tell something once, not at every look."""
        if text != self.told:
            self.told = text
            self.how.tell(text)

    def _beat(self) -> None:
        """Give a sign of life; give up runs that somebody took over, who saw none for too long."""
        if time.monotonic() - self.beaten < BEAT:
            return
        self.beaten = time.monotonic()
        for one in list(self.running):
            if not one.lock.beat():
                self.running.remove(one)
                _kill(one.process)
                one.log.close()
                self.waiting.append(one.job)

    def stop(self) -> None:
        """End the runs that are left as Ctrl-C does, so that they save their state; kill what does not end."""
        for one in self.running:
            _signal(one.process, signal.SIGINT)
        deadline = time.monotonic() + GRACE
        try:
            for one in self.running:
                with suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # a second Ctrl-C does not wait
            for one in self.running:
                _kill(one.process)
                one.lock.release()
                one.log.close()
            self.running.clear()


def figure(record: Mapping[str, Any], goal: str) -> str:
    """A run's headline figure, as a part of its line."""
    goals = list(record.get("goals", {}))
    name = goal if goal in goals else goals[0] if goals else ""
    value = record.get("best", {}).get(name)
    return f"{name} {value:.4g} · " if isinstance(value, (int, float)) else ""


def last(log: Path, since: int, count: int = TAIL) -> list[str]:
    """The last lines that say something, of what a log holds from an offset on."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [f"        {line[:200]}" for line in text.splitlines() if line.strip()][-count:]


def _leave_on_signals() -> dict[int, Any]:
    """Let SIGTERM, which SLURM sends, and the end of a terminal stop the runs too, with 143. The handlers before."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(143)

    numbers = [signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    try:
        return {number: signal.signal(number, leave) for number in numbers}
    except ValueError:  # not in the main thread
        return {}


def _begin(parent: int) -> None:
    """In the child: have the kernel kill it when the process that started it dies, however that dies.

    It listens to SIGINT even where this process, as one in the background of a script, was started deaf to it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    _signal(process, signal.SIGKILL)
    process.wait()
