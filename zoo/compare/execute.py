"""Run the unfinished runs of a comparison: one process per run, several at once, each locked against other workers."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from zoo.compare import run_records
from zoo.compare.fork_server import ForkedRun, ForkServer, can_fork, prepare_child
from zoo.errors import StorageError, UsageError, ZooError
from zoo.inference.checkpoint_manifest import newest_intact
from zoo.io import atomic_files
from zoo.io.locks import REFRESH, Lock
from zoo.logging import run_state

POLL, GRACE = 0.1, 60.0  # seconds between two polls; and for a run to save its state when it is stopped
# -P: files of the working folder with the names of modules stay out, as they do for `zoo`; where this process itself
# imports from there first, as `python -m zoo` does, so do its runs
COMMAND = (sys.executable, *(() if sys.path[:1] in ([""], [os.path.abspath("")]) else ("-P",)), "-m", "zoo")
TAIL = 3  # lines of a failed run's log to print
# exit codes that say nothing about the variant: disks, and signals that stop a run; before the first step also
# options and plugins
NO_CRASH = (5, 130, 143, -signal.SIGINT, -signal.SIGTERM)
NO_CRASH_BEFORE_STEPS = (2, 3)


@dataclass(frozen=True)
class FitJob:
    """A run: its title in messages, its folder, and its arguments for `zoo fit`."""

    title: str
    folder: Path
    words: tuple[str, ...]


@dataclass
class ActiveRun:
    """A job whose process is running, with its lock and log file."""

    job: FitJob
    process: subprocess.Popen[bytes] | ForkedRun
    lock: Lock
    log: IO[bytes]
    log_offset: int  # bytes: where the output of this attempt begins in the log
    devices: str | None = None  # CUDA_VISIBLE_DEVICES of the run; None: that of this process
    start_time: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class RunOptions:
    """Program to call, number of simultaneous runs, additional environment variables, whether to wait for runs of
    other workers, the function that prints progress, and the devices of each simultaneous run (none: not divided).

    ``goal`` and ``at`` say which figure of a run is printed when it ends: by default the first one of its task.
    """

    command: Sequence[str] = COMMAND
    jobs: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    wait: bool = True
    report: Callable[[str], object] = print
    devices: Sequence[str] = ()
    goal: str = ""
    at: str = run_records.DECISIVE


def threads_per_run(jobs: int) -> int:
    """OMP_NUM_THREADS of each run: that of this process if set, else an equal share of the cores."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdecimal() and int(text) > 0:
        return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // jobs)


def exit_code(codes: Collection[int]) -> int:
    """The exit code of a comparison from those of failed runs: 0 without any, 5 if all are storage errors, else 1."""
    return (StorageError.code if {*codes} == {StorageError.code} else ZooError.code) if codes else 0


def execute(jobs: Sequence[FitJob], options: RunOptions) -> dict[str, int]:
    """Run jobs until all are finished, by this process or another worker; the exit codes of those that failed by title.

    With ``options.wait`` false it returns when only runs of other workers remain. An interruption stops the runs,
    which save their state, and is raised again.
    """
    previous = _leave_on_signals()
    try:
        worker = _Worker(jobs, options)
        try:
            return worker.run()
        finally:
            worker.stop()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Worker:
    def __init__(self, jobs: Sequence[FitJob], options: RunOptions) -> None:
        self.options, self.count = options, len(jobs)
        self.waiting = [job for job in jobs if run_state.read_state(job.folder) not in run_state.END_STATES]
        self.active: list[ActiveRun] = []
        self.free_devices = list(options.devices)
        self.failures: dict[str, int] = {}
        self.finished_count = self.count - len(self.waiting)
        self.last_refresh = time.monotonic()
        self.last_message = ""
        self.server: ForkServer | None = None
        if tuple(options.command) == COMMAND and can_fork():  # also for one run: the table compares memory
            self.server = ForkServer(COMMAND[:-1], self._environment())

    def _environment(self) -> dict[str, str]:
        cores = threads_per_run(self.options.jobs)
        return {**os.environ, "OMP_NUM_THREADS": str(cores), **self.options.environment}

    def run(self) -> dict[str, int]:
        while self.waiting or self.active:
            for run in [run for run in self.active if run.process.poll() is not None]:
                self._handle_exit(run)
            self._refresh_locks()
            busy = self._start()
            if busy and not self.active:
                if not self.options.wait:
                    break
                text = f"waiting for {len(busy)} runs that others do: {busy[0]}"
                if text != self.last_message:  # polling does not repeat it
                    self.options.report(text)
                self.last_message = text
            if self.waiting or self.active:
                time.sleep(POLL if self.active else 10 * POLL)
        return self.failures

    def _start(self) -> list[str]:
        """Start jobs that no other worker has locked; return descriptions of those that are locked."""
        busy = []
        for job in list(self.waiting):
            if len(self.active) == self.options.jobs:
                break
            if run_state.read_state(job.folder) in run_state.END_STATES:
                self.waiting.remove(job)
                self.finished_count += 1
                self._report_progress(job, "done by another process")
                continue
            lock = Lock(run_state.path_beside(job.folder, ".lock"))
            if not lock.acquire():
                busy.append(f"{job.title} ({lock.holder() or 'just ended'})")
                continue
            if run_state.read_state(job.folder) in run_state.END_STATES:  # between the look and the lock
                lock.release()
                continue
            self.waiting.remove(job)
            self._spawn(job, lock)
        return busy

    def _spawn(self, job: FitJob, lock: Lock) -> None:
        try:
            words = [*self.options.command, "fit", *job.words, *run_state.resume_options(job.folder)]
            log_path, parent = run_state.path_beside(job.folder, ".log"), os.getpid()
            log = _open_log(log_path, words)
            environment = self._environment()
            devices = self.free_devices[0] if self.free_devices else None
            if devices is not None:
                environment[VARIABLE] = devices
            forked = self.server and self.server.start(words[len(COMMAND) :], log_path, environment)
            process = forked or subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=environment,
                preexec_fn=lambda: prepare_child(parent),  # this process has one thread
            )  # fmt: skip
        except BaseException:
            lock.release()
            raise
        self.active.append(ActiveRun(job, process, lock, log, log.tell(), devices))
        del self.free_devices[:1]
        lock.record_child(process.pid)

    def _remove(self, run: ActiveRun) -> None:
        self.active.remove(run)
        if run.devices is not None:
            self.free_devices.append(run.devices)

    def _handle_exit(self, run: ActiveRun) -> None:
        self._remove(run)
        run.log.close()
        code, state = run.process.returncode, run_state.read_state(run.job.folder)
        log = run_state.path_beside(run.job.folder, ".log")
        if state not in run_state.END_STATES:
            self._record_crash(run, log)
        run.lock.release()
        if state in run_state.END_STATES:
            self.finished_count += 1
            seconds = time.monotonic() - run.start_time
            record = run_records.parse_record(run.job.folder / run_state.LEDGER)
            headline = headline_text(record, self.options.goal, self.options.at)
            self._report_progress(run.job, f"{headline}{seconds:.0f} s")
            return
        self.failures[run.job.title] = code
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.options.report(
            "\n".join([f"failed  {run.job.title} ({why}), see {log}", *last_log_lines(log, run.log_offset)])
        )

    def _record_crash(self, run: ActiveRun, log: Path) -> None:
        """Record that the process of a run died, unless the run itself recorded why or nothing of it was the cause."""
        code = run.process.returncode
        record = run_state.read_record(run.job.folder)
        state, began = (record.get("outcome") or {}).get("state"), bool(record.get("steps"))
        if code in NO_CRASH or (code in NO_CRASH_BEFORE_STEPS and not began) or state == "out of memory":
            return
        own_cause = (record.get("outcome") or {}).get("cause") if state == "crashed" else None  # says more than the log
        lines = last_log_lines(log, run.log_offset)
        cause = own_cause or (lines[0].strip() if lines else f"exit code {code}")
        cause = f"killed by signal {-code}" if code < 0 else cause
        with suppress(OSError):
            run_records.record_crash(run.job.folder, cause)

    def _report_progress(self, job: FitJob, what: str) -> None:
        self.options.report(f"{self.finished_count}/{self.count}  {job.title} · {what}")

    def _refresh_locks(self) -> None:
        """Refresh the locks; stop runs whose lock another worker has taken over as stale."""
        if time.monotonic() - self.last_refresh < REFRESH:
            return
        self.last_refresh = time.monotonic()
        for run in list(self.active):
            if not run.lock.refresh():
                self._remove(run)
                _kill(run.process)
                run.log.close()
                self.waiting.append(run.job)

    def stop(self) -> None:
        """Interrupt the active runs as Ctrl-C does, so that they save their state; kill those that do not end."""
        for run in self.active:
            _signal(run.process, signal.SIGINT)
        deadline = time.monotonic() + GRACE
        try:
            for run in self.active:
                with suppress(subprocess.TimeoutExpired):
                    run.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # a second Ctrl-C does not wait
            for run in self.active:
                _kill(run.process)
                run.lock.release()
                run.log.close()
            self.active.clear()
            if self.server is not None:
                self.server.stop()


def headline_text(run: run_records.RunRecord, goal: str, at: str) -> str:
    """The beginning of a progress line: the figure that decides, ``loss 1.632 · ``, or ``diverged at step 12 · ``.

    The figures of a test split are measured later: those of the last validation stand for them. Empty without a figure.
    """
    if run.outcome.get("state") == "diverged":
        return f"diverged at step {run.outcome.get('step')} · "
    name = goal.removeprefix("val/")
    name = name if name in run.goals else next(iter(run.goals), "")
    try:
        figure = run.figure(name, "last" if at == "test" else at)
    except UsageError:  # fewer validations than the figure is a mean of
        figure = None
    return "" if figure is None else f"{name} {figure:.4g} · "


def _open_log(path: Path, words: Sequence[str]) -> IO[bytes]:
    """The log of a run, with the command that writes it. Raises StorageError if it cannot be written."""
    try:
        with path.open("ab") as file:
            file.write(f"$ {shlex.join(words)}\n".encode())
        return path.open("ab")
    except OSError as error:
        raise StorageError(f"the log of a run cannot be written: {atomic_files.reason(error, path)}") from error


def last_log_lines(log: Path, since: int, count: int = TAIL) -> list[str]:
    """Up to ``count`` non-empty lines of a log after an offset in bytes, indented: its error, or its last lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("error:")]
    lines = lines[errors[-1] :][:count] if errors else lines[-count:]
    return [f"        {line[:200]}" for line in lines]


def _leave_on_signals() -> dict[int, Any]:
    """Exit with 143, stopping the runs, on SIGTERM, SIGUSR1 (both of which SLURM sends) and SIGHUP.

    Returns the previous handlers.
    """

    def leave(number: int, frame: object) -> None:
        raise SystemExit(143)

    numbers = [signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    try:
        return {number: signal.signal(number, leave) for number in numbers}
    except ValueError:  # not in the main thread
        return {}


def _signal(process: subprocess.Popen[bytes] | ForkedRun, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _kill(process: subprocess.Popen[bytes] | ForkedRun) -> None:
    _signal(process, signal.SIGKILL)
    process.wait()


VARIABLE = "CUDA_VISIBLE_DEVICES"
ACCELERATORS = ("auto", "gpu", "cuda")


def visible_devices() -> tuple[str, ...]:
    """The GPUs that this process sees, by the names or numbers of CUDA_VISIBLE_DEVICES. Imports torch."""
    import torch

    count = torch.cuda.device_count()
    text = os.environ.get(VARIABLE)
    names = [name.strip() for name in text.split(",")] if text else [str(number) for number in range(count)]
    return tuple(names[:count])


def split_devices(devices: Sequence[str], jobs: int, per_run: int = 1) -> tuple[str, ...]:
    """CUDA_VISIBLE_DEVICES of each of ``jobs`` simultaneous runs: equally many consecutive devices, none shared.

    Raises UsageError if there are not ``per_run`` devices for each.
    """
    share = len(devices) // jobs
    if share < per_run:
        most, names = len(devices) // per_run, ", ".join(devices)
        devices_of_run = "a device" if per_run == 1 else f"{per_run} devices"
        instead = f"Use --jobs {most}" if most else f"Set --trainer.devices to at most {len(devices)}"
        raise UsageError(
            f"--jobs {jobs}: every run has {devices_of_run} of its own, and there are {len(devices)}: {names}.\n"
            "Runs on one device would share its memory and slow each other down, and the table compares their speed "
            f"and memory.\n{instead}, or --trainer.accelerator cpu."
        )
    return tuple(",".join(devices[job * share : (job + 1) * share]) for job in range(jobs))


def device_shares(trainer: Mapping[str, Any], jobs: int) -> tuple[str, ...]:
    """The devices of each of ``jobs`` simultaneous runs with these options of the trainer.

    Empty where nothing is divided: one run at a time, no GPU, another accelerator, or devices that the options number.
    Raises UsageError if there are too few devices.
    """
    devices = trainer.get("devices") or "auto"
    count = int(devices) if str(devices).isdecimal() else 1
    numbered = isinstance(devices, (list, tuple)) or (isinstance(devices, str) and "," in devices)
    if jobs == 1 or numbered or str(trainer.get("accelerator") or "auto") not in ACCELERATORS:
        return ()
    visible = visible_devices()
    return split_devices(visible, jobs, count) if visible else ()


def measure_test_figures(folders: Sequence[Path], allow: Sequence[str], report: Callable[[str], object]) -> None:
    """Evaluate the last state of every finished run on the test split, unless that was done. Raises ZooError."""
    for folder in folders:
        if run_state.read_state(folder) != "finished":
            continue
        record = run_records.parse_record(folder / run_state.LEDGER)
        if record.test:
            continue
        report(f"test split of {record.name}")
        words = [*COMMAND, "test", str(folder / run_state.CONFIG)]
        words += [f"--ckpt_path={newest_intact(folder).path}", *(f"--allow-import={name}" for name in allow)]
        path = run_state.path_beside(folder, ".log")
        with path.open("ab") as log:
            offset = log.tell()
            code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
        if code or not run_records.parse_record(folder / run_state.LEDGER).test:
            lines = "\n".join(last_log_lines(path, offset))
            raise ZooError(f"the test split of {record.name} could not be measured, see {path}\n{lines}")
