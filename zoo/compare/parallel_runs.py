"""Do the unfinished runs of a comparison on an executor, each by a process of its own, locked against other workers."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo import console
from zoo.compare import run_records
from zoo.compare.executor import CPUS, GPUS, MEMORY, Executor, Request, bytes_of
from zoo.compare.fork_server import ForkedRun, ForkServer, can_fork
from zoo.errors import StorageError, UsageError, ZooError
from zoo.io import atomic_files
from zoo.io.checkpoint_manifest import newest_intact
from zoo.io.locks import REFRESH, Lock
from zoo.logging import run_state
from zoo.system.process_exit import PARENT_PROCESS

POLL, GRACE = 0.1, 60.0  # seconds between two polls; and for a run to save its state when it is stopped
RETRY = 1.0  # seconds until a run that another worker has locked is tried again
LOSSES = 5  # how often an engine may lose a run before that is a failure
# -P: files of the working folder with the names of modules stay out, as they do for `zoo`; where this process itself
# imports from there first, as `python -m zoo` does, so do its runs
COMMAND = (sys.executable, *(() if sys.path[:1] in ([""], [os.path.abspath("")]) else ("-P",)), "-m", "zoo")
TAIL = 3  # lines of a failed run's log to print
# exit codes that say nothing about the variant: disks, and signals that stop a run; before the first step also
# options and plugins
NO_CRASH = (5, 130, 143, -signal.SIGINT, -signal.SIGTERM)
NO_CRASH_BEFORE_STEPS = (2, 3)
# variables that a run has as the comparison has them, whatever an engine sets for its own processes
CARRIED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "PYTHONPATH")


@dataclass(frozen=True)
class FitJob:
    """A run: its title in messages, its folder, and its arguments for `zoo fit`."""

    title: str
    folder: Path
    words: tuple[str, ...]


@dataclass(frozen=True)
class RunOptions:
    """The executor with what is requested of it, the program to call, additional environment variables, whether to
    wait for runs of other workers, and the function that prints progress.

    ``goal`` and ``at`` say which figure of a run is printed when it ends: by default the first one of its task.
    """

    command: Sequence[str] = COMMAND
    jobs: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    wait: bool = True
    report: Callable[[str], object] = print
    executor: Executor | None = None  # started; None: processes of this machine, as ``jobs`` says
    goal: str = ""
    at: str = run_records.DECISIVE


@dataclass(frozen=True)
class Outcome:
    """How a call of a run ended: ``state`` is "ended", "failed", or "busy" where another worker has the lock."""

    state: str
    code: int = 0
    seconds: float | None = None  # None: another worker did the run
    text: str = ""  # the last lines of its log, or who has the lock


@dataclass(frozen=True)
class SubmittedRun:
    """A run as an engine calls it in any process that sees the same folders, once or again: it goes on where it is.

    Several calls at once do it once: all but one return as busy.
    """

    job: FitJob
    home: str  # the working folder
    environment: Mapping[str, str | None]  # None: the variable is not set
    command: tuple[str, ...] = ()  # empty: zoo by the Python that calls

    def __call__(
        self,
        signal_of_stop: Callable[[], int] = int,
        server: ForkServer | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Do the run, unless it has ended. ``signal_of_stop`` returns a signal once the run is to be stopped, 0 before.

        Raises ZooError where the folders cannot be written or are not there.
        """
        job = self.job
        if not Path(self.home).is_dir():
            raise ZooError(f"{self.home} is no folder on {os.uname().nodename}: an engine needs a shared file system.")
        lock = Lock(run_state.path_beside(job.folder, ".lock"))
        if run_state.read_state(job.folder) in run_state.END_STATES:
            return Outcome("ended")
        if not lock.acquire():
            return Outcome("busy", text=str(lock.holder() or "just ended"))
        try:
            if run_state.read_state(job.folder) in run_state.END_STATES:  # between the look and the lock
                return Outcome("ended")
            return self._fit(lock, signal_of_stop, server, variables or {})
        finally:
            lock.release()

    def _fit(
        self, lock: Lock, signal_of_stop: Callable[[], int], server: ForkServer | None, variables: Mapping[str, str]
    ) -> Outcome:
        log, started = run_state.path_beside(self.job.folder, ".log"), time.monotonic()
        arguments = ["fit", *self.job.words, *run_state.resume_options(self.job.folder)]
        offset = _begin_log(log, [*(self.command or COMMAND), *arguments])
        process = self._start(arguments, log, server, variables)
        lock.record_child(process.pid)
        owns = _wait_for(process, lock, signal_of_stop)
        if not owns:
            return Outcome("busy", text="who has taken over its lock")
        state, lines = run_state.read_state(self.job.folder), last_log_lines(log, offset)
        if state in run_state.END_STATES:
            return Outcome("ended", seconds=time.monotonic() - started)
        record_crash(self.job.folder, process.returncode, lines)
        return Outcome("failed", process.returncode, text="\n".join(lines))

    def _start(
        self, arguments: Sequence[str], log: Path, server: ForkServer | None, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | ForkedRun:
        environment = {**self.variables(), **variables}
        forked = None if server is None or self.command else server.start(arguments, log, environment, self.home)
        if forked is not None:
            return forked
        with log.open("ab") as file:
            return subprocess.Popen(
                [*(self.command or COMMAND), *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True, cwd=self.home, env={**environment, PARENT_PROCESS: str(os.getpid())},
            )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """The environment of the run's process: that of this process with what the comparison carries."""
        # what a scheduler sets for the tasks of a job would have Lightning wait for others: a run is no task
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        carried = {**own, **self.environment}
        return {name: value for name, value in carried.items() if value is not None}


def _wait_for(process: subprocess.Popen[bytes] | ForkedRun, lock: Lock, signal_of_stop: Callable[[], int]) -> bool:
    """Wait for a run's process, and refresh its lock; stop it as asked. False: another worker has taken over the lock.

    A process that is stopped has ``GRACE`` seconds to save its state.
    """
    sent, deadline, refreshed = 0, float("inf"), time.monotonic()
    try:
        while process.poll() is None:
            now = time.monotonic()
            number = signal.SIGKILL if now > deadline else signal_of_stop()
            if number and number != sent:
                _signal(process, number)
                sent, deadline = number, min(deadline, now + GRACE)
            if now - refreshed > REFRESH:
                refreshed = now
                if not lock.refresh():
                    return False
            time.sleep(POLL)
        return True
    finally:
        if process.poll() is None:
            _signal(process, signal.SIGKILL)
            process.wait()


def record_crash(folder: Path, code: int, lines: Sequence[str]) -> None:
    """Record that the process of a run died, unless the run itself recorded why or nothing of it was the cause."""
    record = run_state.read_record(folder)
    state, began = (record.get("outcome") or {}).get("state"), bool(record.get("steps"))
    if code in NO_CRASH or (code in NO_CRASH_BEFORE_STEPS and not began) or state == "out of memory":
        return
    own_cause = (record.get("outcome") or {}).get("cause") if state == "crashed" else None  # says more than the log
    error_line = next((line.strip() for line in lines[:1] if line.strip().startswith("error:")), "")
    cause = own_cause or error_line or f"exit code {code}"
    cause = f"killed by signal {-code}" if code < 0 else cause
    with suppress(OSError):
        run_records.record_crash(folder, cause)


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_run(jobs: int) -> int:
    """OMP_NUM_THREADS of each run: that of this process if set, else an equal share of the cores."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else max(1, core_count() // jobs)


def exit_code(codes: Collection[int]) -> int:
    """The exit code of a comparison from those of failed runs: 0 without any, 5 if all are storage errors, else 1."""
    return (StorageError.code if {*codes} == {StorageError.code} else ZooError.code) if codes else 0


def execute(jobs: Sequence[FitJob], options: RunOptions) -> dict[Path, int]:
    """Run jobs until all are finished, by this process or another worker; the exit codes of failed ones by folder.

    With ``options.wait`` false it returns when only runs of other workers remain. An interruption stops the runs,
    which save their state, and is raised again. Raises ZooError where the executor cannot go on.
    """
    executor = options.executor
    if executor is None:
        executor = Processes()
        executor.start(Request(jobs=options.jobs))
    with leave_on_signals():
        try:
            failures = _Worker(jobs, options, executor).run()
        except BaseException:
            executor.stop()
            raise
        if options.executor is None:
            executor.stop()
        return failures


class _Worker:
    def __init__(self, jobs: Sequence[FitJob], options: RunOptions, executor: Executor) -> None:
        self.options, self.executor, self.count = options, executor, len(jobs)
        self.waiting = [job for job in jobs if run_state.read_state(job.folder) not in run_state.END_STATES]
        self.active: dict[concurrent.futures.Future[Outcome], FitJob] = {}
        self.losses: dict[Path, int] = {}
        self.failures: dict[Path, int] = {}
        self.finished_count = self.count - len(self.waiting)
        self.last_message = ""
        carried = {
            name: value for name, value in os.environ.items() if name.startswith("ZOO_") and name != PARENT_PROCESS
        }
        self.environment: dict[str, str | None] = {
            **{name: os.environ.get(name) for name in CARRIED}, **carried,
            "OMP_NUM_THREADS": str(executor.threads or threads_per_run(options.jobs)), **options.environment,
        }  # fmt: skip

    def run(self) -> dict[Path, int]:
        """Submit what no other worker has locked, and answer what ends, until nothing is left."""
        while self.waiting or self.active:
            busy = self._submit()
            if busy and not self.active:
                if not self.options.wait:
                    break
                text = f"waiting for {len(busy)} runs that others do: {busy[0]}"
                if text != self.last_message:  # polling does not repeat it
                    self.options.report(text)
                self.last_message = text
                time.sleep(RETRY)
            ended, _ = concurrent.futures.wait(self.active, RETRY if busy else None, concurrent.futures.FIRST_COMPLETED)
            for future in sorted(ended, key=[*self.active].index):
                self._answer(self.active.pop(future), future)
        return self.failures

    def _submit(self) -> list[str]:
        """Submit the jobs that no other worker has locked; return descriptions of those that are locked."""
        busy = []
        for job in list(self.waiting):
            holder = Lock(run_state.path_beside(job.folder, ".lock")).holder()
            if holder is not None and run_state.read_state(job.folder) not in run_state.END_STATES:
                busy.append(f"{job.title} ({holder})")
                continue
            self.waiting.remove(job)
            command = () if tuple(self.options.command) == COMMAND else tuple(self.options.command)
            place = FitJob(job.title, job.folder.absolute(), job.words)
            self.active[self.executor.submit(SubmittedRun(place, os.getcwd(), self.environment, command))] = job
        return busy

    def _answer(self, job: FitJob, future: concurrent.futures.Future[Outcome]) -> None:
        """Report how a run ended; one that the engine lost, or that another worker does, is to be tried again."""
        try:
            outcome = future.result()
        except (ZooError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # CancelledError is no Exception, and engines have their own
            self.losses[job.folder] = self.losses.get(job.folder, 0) + 1
            if self.losses[job.folder] < LOSSES:
                self.waiting.append(job)
                return
            text = f"{self.executor.name} lost it {LOSSES} times: {type(error).__name__}: {error}"[:300]
            outcome = Outcome("failed", ZooError.code, text=f"        {text}")
        if outcome.state == "busy":
            self.waiting.append(job)
        elif outcome.state == "ended":
            self.finished_count += 1
            self._report_end(job, outcome.seconds)
        else:
            log = run_state.path_beside(job.folder, ".log")
            self.failures[job.folder] = code = outcome.code
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            place = f", see {log}" if log.is_file() else ""  # none of a run that no process has begun
            self.options.report("\n".join([f"failed  {job.title} ({why}){place}", outcome.text]).rstrip("\n"))

    def _report_end(self, job: FitJob, seconds: float | None) -> None:
        what = "done by another process"
        if seconds is not None:
            record = run_records.parse_record(job.folder / run_state.LEDGER)
            what = f"{headline_text(record, self.options.goal, self.options.at)}{seconds:.0f} s"
        self.options.report(f"{self.finished_count}/{self.count}  {job.title} · {what}")


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


def _begin_log(path: Path, words: Sequence[str]) -> int:
    """Write the command into the log of a run; the log's bytes then. Raises StorageError if it cannot be written."""
    try:
        with path.open("ab") as file:
            file.write(f"$ {shlex.join(words)}\n".encode())
            return file.tell()
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
    if errors:  # of a bug the line before it is the exception
        begin = errors[-1] - lines[errors[-1]].startswith("error: this looks like a bug")
        lines = lines[max(0, begin) :]
    lines = lines[:count] if errors else lines[-count:]
    return [f"        {line[:200]}" for line in lines]


@contextmanager
def leave_on_signals() -> Iterator[None]:
    """Leave by SystemExit with 143 on SIGTERM, SIGUSR1 (both of which SLURM sends) and SIGHUP."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(143)

    numbers = [signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    previous: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread
        for number in numbers:
            previous[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _signal(process: subprocess.Popen[bytes] | ForkedRun, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class Processes(Executor):
    """Processes of this machine, each with GPUs of its own, or a share of one. Resources: gpus, cpus, memory."""

    resources = (GPUS, CPUS, MEMORY)

    def check(self, request: Request) -> None:
        """Raise UsageError for an address, and for more than this machine has."""
        if request.address:
            raise UsageError(f"--executor processes:{request.address:.80}: processes of this machine have no address.")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for name, total, share in (
            ("cpus", core_count(), int(request.resources.get("cpus", 0))),
            ("memory", memory, bytes_of(request.resources.get("memory", "0M"))),
        ):
            if request.jobs * share > total:
                text = f"{total} cores" if name == "cpus" else console.format_bytes(total)
                raise UsageError(
                    f"--jobs {request.jobs} with {name}={request.resources[name]} each is more than the {text} of "
                    "this machine. Use fewer jobs, or ask for less."
                )
        gpus_of_runs(request)

    def start(self, request: Request) -> None:
        """Divide the GPUs."""
        self.threads = int(request.resources.get("cpus", 0))
        self.pool = concurrent.futures.ThreadPoolExecutor(request.jobs)
        self.gpus: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        slots = gpus_of_runs(request)
        for index in range(request.jobs):
            self.gpus.put({VISIBLE: slots[index]} if slots else {})
        self.signal: int = 0
        self.server: ForkServer | None = None

    def submit(self, run: SubmittedRun) -> concurrent.futures.Future[Outcome]:
        """What the run will return, from a thread that starts its process and waits for it."""
        if self.server is None and not run.command and can_fork():  # also for one run: the table compares memory
            self.server = ForkServer(COMMAND[:-1], run.variables())
        return self.pool.submit(self._do, run)

    def _do(self, run: SubmittedRun) -> Outcome:
        variables = self.gpus.get()
        try:
            return run(lambda: self.signal, self.server, variables)
        finally:
            self.gpus.put(variables)

    def stop(self) -> None:
        """Interrupt the runs as Ctrl-C does, so that they save their state; a second interruption kills them."""
        try:
            self.signal = self.signal or signal.SIGINT
            self.pool.shutdown(cancel_futures=True)
        except BaseException:
            self.signal = signal.SIGKILL
            self.pool.shutdown()
            raise
        finally:
            if self.server is not None:
                self.server.stop()


VISIBLE, SHARE = "CUDA_VISIBLE_DEVICES", "ZOO_GPU_SHARE"  # the second: of the GPU that a run shares with others
ACCELERATORS = ("auto", "gpu", "cuda")


def visible_devices() -> tuple[str, ...]:
    """The GPUs that this process sees, by the names or numbers of CUDA_VISIBLE_DEVICES. Imports torch."""
    import torch

    count = torch.cuda.device_count()
    text = os.environ.get(VISIBLE)
    names = [name.strip() for name in text.split(",")] if text else [str(number) for number in range(count)]
    return tuple(names[:count])


def gpus_of_runs(request: Request) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each of the simultaneous runs: GPUs of their own, or a share of one where so requested.

    Without such a request the GPUs are divided among several runs, as many to each as the trainer takes. Empty where
    nothing is divided: no GPU, another accelerator, or devices that the options of the trainer number. Raises
    UsageError for more GPUs than there are.
    """
    devices, jobs, requested = request.trainer.get("devices") or "auto", request.jobs, request.resources.get("gpus")
    numbered = isinstance(devices, (list, tuple)) or (isinstance(devices, str) and "," in devices)
    uses_gpus = str(request.trainer.get("accelerator") or "auto") in ACCELERATORS
    if requested and (numbered or not uses_gpus):
        raise UsageError(f"--resources gpus={requested} does not go with --trainer.devices 0,1 or another accelerator.")
    if numbered or not uses_gpus or (jobs == 1 and not requested):
        return []
    visible = visible_devices()
    if not visible and not requested:
        return []
    if request.gpu_share:
        slots = [name for name in visible for _ in range(int(1 / request.gpu_share + 1e-9))]
    else:
        least = int(requested) if requested else int(devices) if str(devices).isdecimal() else 1
        size = least if requested else max(least, len(visible) // jobs)
        slots = [",".join(visible[at : at + size]) for at in range(0, len(visible) - size + 1, size)]
    if jobs > len(slots):
        instead = f"Use --jobs {len(slots)}" if slots else "Ask for fewer GPUs"
        each = f"gpus={requested} each" if requested else f"{least} each of their own"
        sharing = (
            f"{instead}, --trainer.accelerator cpu, or --resources gpus={1000 // jobs / 1000}: runs that share a GPU "
            "slow each other down, and the table draws no conclusion from their speed and memory."
        )
        raise UsageError(
            f"--jobs {jobs}: the runs need {each}, and there are {len(visible)}: {', '.join(visible) or 'none'}.\n"
            + (sharing if visible else "Leave out gpus= in --resources, or compare where there is one.")
        )
    return slots[:jobs]


def measure_test_figures(folders: Sequence[Path], trusted: Sequence[str], report: Callable[[str], object]) -> None:
    """Evaluate the last state of every finished run on the test split, unless that was done. Raises ZooError.

    ``trusted`` are the words of a command that say which modules may be imported.
    """
    for folder in folders:
        if run_state.read_state(folder) != "finished":
            continue
        record = run_records.parse_record(folder / run_state.LEDGER)
        if record.test:
            continue
        report(f"test split of {record.name}")
        words = [*COMMAND, "test", str(folder / run_state.CONFIG)]
        words += [f"--ckpt_path={newest_intact(folder).path}", *trusted]
        path = run_state.path_beside(folder, ".log")
        with path.open("ab") as log:
            offset = log.tell()
            code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
        if code or not run_records.parse_record(folder / run_state.LEDGER).test:
            lines = "\n".join(last_log_lines(path, offset))
            raise ZooError(f"the test split of {record.name} could not be measured, see {path}\n{lines}")
