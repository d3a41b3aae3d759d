"""The runs of a comparison on dask, whose workers are here, elsewhere or in jobs of SLURM, or each in such a job."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import logging
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compare.executor import CPUS, GPUS, MEMORY, NAME, Executor, Request, Resource
from zoo.errors import UsageError, ZooError
from zoo.io import atomic_files
from zoo.system import process_exit

if TYPE_CHECKING:
    from zoo.compare.parallel_runs import Outcome, SubmittedRun

TIME = Resource("time", r"(\d+-)?\d+(:\d\d){0,2}", "04:00:00")
PARTITION = Resource("partition", NAME, "gpu")
CONNECT = 20.0  # seconds for a scheduler to answer
POLL = 1.0  # seconds between two looks at a job
SAVING = 120  # seconds before the end of its time at which a job of SLURM saves its run
LATENCY = 10.0  # seconds until a file of another machine is seen
MOST_REQUEUES = 100
ORPHANED = 60  # seconds after which a worker without a scheduler ends
SETTINGS = {
    # the workers' environment is that of the runs, and a worker whose runs are busy is no reason to give them out again
    "distributed.nanny.pre-spawn-environ": {}, "distributed.worker.daemon": True,
    "distributed.scheduler.allowed-failures": 10, "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-saturation": 1.0, "distributed.admin.low-level-log-length": 1000,
}  # fmt: skip


class Dask(Executor):
    """dask: workers of this machine, of a scheduler (dask:tcp://HOST:PORT), or in jobs of SLURM (dask:slurm).

    Resources: gpus, cpus, memory; time and partition in jobs of SLURM. A scheduler that runs already is asked for the
    resources of those names that its workers were started with: `dask worker --resources "gpus=1 cpus=8"`.
    """

    resources = (GPUS, CPUS, MEMORY, TIME, PARTITION)

    def check(self, request: Request) -> None:
        """Raise UsageError where dask is not installed, for an address that is none, and for resources elsewhere."""
        from zoo.compare.parallel_runs import Processes

        address = request.address
        require_package("distributed", "dask")
        if address == "slurm":
            require_package("dask_jobqueue", "dask")
            require_program("sbatch", "dask:slurm")
        elif unfit := sorted({"time", "partition"} & {*request.resources}):
            raise UsageError(f"--resources {unfit[0]}=…: it is for jobs of SLURM: --executor dask:slurm")
        if not address:
            Processes().check(request)
        elif address != "slurm" and not (
            (match := re.fullmatch(r"(?:tcp|tls|ws|wss)://\S+:(\d{1,5})", address)) and 0 < int(match[1]) < 2**16
        ):
            raise UsageError(
                f"--executor dask:{address:.80}: write dask, dask:slurm, or the address of a scheduler, such as "
                "dask:tcp://10.0.0.1:8786"
            )
        if request.gpu_share and address == "slurm":
            raise UsageError(f"--resources gpus={request.resources['gpus']}: SLURM gives whole GPUs to a job.")

    def start(self, request: Request) -> None:
        """Start the workers, or find the scheduler. Raises UsageError where there is none at the address."""
        import dask
        from distributed import Client

        from zoo.compare.parallel_runs import threads_per_run

        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is lost is tried again, and counted
        self.request = request
        self.cluster: Any = None
        self.client: Any = None
        self.threads = int(request.resources.get("cpus", 0)) or threads_per_run(request.jobs)
        self.wants: dict[str, float] = {}
        dask.config.set(SETTINGS)
        if request.address == "slurm":
            self.cluster = start_jobs(request, self.threads)
        elif not request.address:
            self.cluster = start_workers(request)
        else:
            self.wants = worker_resources(request)
        try:
            self.client = Client(self.cluster or request.address, timeout=CONNECT, set_as_default=False)
        except OSError as error:
            raise UsageError(
                f"--executor dask:{request.address}: no scheduler answers there within {CONNECT:.0f} seconds ({error})."
            ) from None
        if request.address not in ("", "slurm"):
            self._check_workers()
        self.engine = self.client.get_executor(pure=False, retries=0, resources=self.wants)
        self.key = self.client.id

    def _check_workers(self) -> None:
        """Say that a scheduler has no worker. Raises UsageError where none offers what a run needs."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        if not workers:
            print(
                f"waiting: {self.request.address} has no worker yet. Start some: dask worker {self.request.address} "
                "--nthreads 1", file=sys.stderr, flush=True,
            )  # fmt: skip
        offers = [worker.get("resources") or {} for worker in workers]
        if offers and not any(all(offer.get(name, 0) >= need for name, need in self.wants.items()) for offer in offers):
            needs = " ".join(f"{name}={need:.15g}" for name, need in self.wants.items())
            raise UsageError(
                f"no worker of {self.request.address} offers what a run needs. Start them with: dask worker "
                f'{self.request.address} --nthreads 1 --resources "{needs}"'
            )

    def submit(self, run: SubmittedRun) -> Future[Outcome]:
        """What the run will return. Raises ZooError where the scheduler is gone."""
        if self.client is None or self.client.status != "running":
            raise ZooError(
                f"the scheduler {self.request.address or 'of dask'} has gone, and with it the runs that were not "
                "finished. The same command goes on with them."
            )
        return self.engine.submit(call_run, run, self.key)

    def stop(self) -> None:
        """Cancel the runs, wait until they have saved their state, and end what was started."""
        from zoo.compare.parallel_runs import GRACE

        client, cluster, self.client, self.cluster = self.client, self.cluster, None, None
        if client is None:
            return
        with contextlib.suppress(Exception):  # a scheduler that is gone has no runs any more
            self.engine.shutdown(wait=False)  # which cancels
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and sum(client.run(count_runs, self.key).values()):
                time.sleep(POLL)
        for item in (client, cluster):
            with contextlib.suppress(Exception):
                if item is not None:
                    item.close(timeout=10)


def require_package(module: str, extra: str) -> None:
    """Raise UsageError for a package that is not installed, with the line that installs it."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise UsageError(f"--executor {extra} needs {module}, which is not installed: pip install 'zoo-scale[{extra}]'")


def require_program(name: str, executor: str) -> None:
    """Raise UsageError where a program of SLURM is not there."""
    import shutil

    if shutil.which(name) is None:
        raise UsageError(f"--executor {executor}: there is no {name} here. Start it where jobs of SLURM are submitted.")


def worker_resources(request: Request) -> dict[str, float]:
    """What a run takes of the resources of a scheduler's worker."""
    from zoo.compare.executor import bytes_of

    return {name: float(bytes_of(value) if name == "memory" else value) for name, value in request.resources.items()}


def start_workers(request: Request) -> Any:
    """A scheduler in this process and a worker process for each run at once, with GPUs of its own."""
    from distributed import Nanny, Scheduler, SpecCluster

    from zoo.compare.parallel_runs import VISIBLE, gpus_of_runs

    gpus = gpus_of_runs(request)
    local = {"host": "127.0.0.1", "dashboard_address": ":0"}
    workers = {
        number: {
            "cls": Nanny,
            # no memory limit: the runs are processes of their own, which a worker does not measure
            "options": {**local, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL,
                        "env": {VISIBLE: gpus[number]} if gpus else {}},
        }
        for number in range(request.jobs)
    }  # fmt: skip
    scheduler = {"cls": Scheduler, "options": {**local, "dashboard": False, "port": 0}}
    return SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL)


def start_jobs(request: Request, threads: int) -> Any:
    """A scheduler in this process, and a job of SLURM with one worker for each run at once."""
    from dask_jobqueue import SLURMCluster

    resources = request.resources
    extra = [f"--gres=gpu:{resources['gpus']}"] if "gpus" in resources else []
    cluster = SLURMCluster(
        cores=1, processes=1, memory="1 GiB", job_cpu=threads, job_mem=resources.get("memory", "0"),
        queue=resources.get("partition"), walltime=resources.get("time"), job_extra_directives=extra, nanny=False,
        death_timeout=ORPHANED, worker_extra_args=["--memory-limit", "0", "--no-dashboard", "--preload", __name__],
        log_directory=os.path.abspath("dask-logs"), scheduler_options={"dashboard_address": ":0"},
    )  # fmt: skip
    # what a run does not save within its time is lost: a job that ends is replaced
    cluster.adapt(minimum=request.jobs, maximum=request.jobs)
    return cluster


def dask_setup(worker: Any) -> None:
    """In a worker that is the command of a job: end with the job's shell, after which it may wait for its scheduler."""
    process_exit.follow_parent(os.getppid())


_active: dict[str, int] = {}  # in a worker: the number of runs by the client that has submitted them
_servers: list[Any] = []  # in a worker: the server of forks, which ends with it
_lock = threading.Lock()


def count_runs(client: str) -> int:
    """In a worker: how many runs of a client it does."""
    return _active.get(client, 0)


def call_run(run: SubmittedRun, client: str) -> Outcome:
    """In a worker: do a run until dask takes the task back, as it does where the client or the scheduler has gone."""
    from distributed import get_worker
    from distributed.core import Status

    from zoo.compare.fork_server import ForkServer, can_fork
    from zoo.compare.parallel_runs import COMMAND

    worker = get_worker()
    key = worker.get_current_task()

    def signal_of_stop() -> int:
        task = worker.state.tasks.get(key)
        holds = task is not None and task.state in ("executing", "long-running")
        return 0 if holds and worker.status in (Status.running, Status.paused) else signal.SIGINT

    with _lock:
        _active[client] = _active.get(client, 0) + 1
        if not _servers and not run.command and can_fork():
            _servers.append(ForkServer(COMMAND[:-1], run.variables()))
    try:
        return run(signal_of_stop, next(iter(_servers), None))
    finally:
        with _lock:
            _active[client] -= 1


class Submitit(Executor):
    """A job of SLURM for each run, through submitit, where no scheduler may run beside SLURM's.

    Resources: gpus, cpus, memory, time, partition. A job whose time ends saves its run and is queued again. Jobs of a
    command that was killed go on; the same command waits for them.
    """

    resources = (GPUS, CPUS, MEMORY, TIME, PARTITION)

    def check(self, request: Request) -> None:
        """Raise UsageError where submitit or SLURM is not there, for an address, and for too short a time."""
        require_package("submitit", "submitit")
        for name in ("sbatch", "srun", "squeue", "scancel", "scontrol"):
            require_program(name, "submitit")
        if request.address:
            raise UsageError(
                f"--executor submitit:{request.address:.80}: it has no address, but --resources partition=…"
            )
        if request.gpu_share:
            raise UsageError(f"--resources gpus={request.resources['gpus']}: SLURM gives whole GPUs to a job.")
        time_text = request.resources.get("time")
        if time_text and time_limit(time_text) < 3 * SAVING:
            raise UsageError(
                f"--resources time={time_text}: a job is stopped {SAVING} seconds before its time is over, to save its "
                f"run, and trains too little in less than {3 * SAVING}."
            )

    def start(self, request: Request) -> None:
        """Prepare a thread for each job at once, which waits for it."""
        from zoo.compare.parallel_runs import threads_per_run

        logging.getLogger("submitit").setLevel(logging.CRITICAL)
        self.request = request
        self.threads = int(request.resources.get("cpus", 0)) or threads_per_run(request.jobs)
        answer = subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=False)
        if answer.returncode:
            reason = (answer.stderr.strip().splitlines() or [f"squeue ends with {answer.returncode}"])[0]
            raise UsageError(f"--executor submitit: SLURM does not answer: {reason[:200]}")
        self.pool = ThreadPoolExecutor(request.jobs)
        self.stopping, self.queue = threading.Event(), SlurmQueue()

    def submit(self, run: SubmittedRun) -> Future[Outcome]:
        """What the run's job will return; an exception where the job ended without a result."""
        return self.pool.submit(self._do, run)

    def _do(self, run: SubmittedRun) -> Outcome:
        from submitit import SlurmJob

        # with it the run's name needs no quotes: SLURM and submitit replace signs such as %j
        folder = run.job.folder.parent / f".{hashlib.sha256(run.job.folder.name.encode()).hexdigest()[:8]}.slurm"
        note = folder / "job"
        number = note.read_text() if note.is_file() else ""
        if not self.queue.has(number):
            number = self.queue.added(self._submit_job(run, folder))
            atomic_files.write_text(note, number)
        job: SlurmJob[Outcome] = SlurmJob(folder, number)
        while self.queue.has(number) and not job.paths.result_pickle.exists():
            if self.stopping.is_set():
                self.queue.cancel(number)
            time.sleep(POLL)
        note.unlink(missing_ok=True)
        deadline = time.monotonic() + LATENCY
        while not job.paths.result_pickle.exists():
            if time.monotonic() > deadline:
                raise LostJobError(f"job {number} of SLURM ended without a result, see {folder}")
            time.sleep(POLL)
        state, result = pickle.loads(job.paths.result_pickle.read_bytes())
        if state == "success":
            return result
        raise LostJobError(f"job {number} of SLURM failed: {result.strip().splitlines()[-1]}")

    def _submit_job(self, run: SubmittedRun, folder: Path) -> str:
        from submitit import SlurmExecutor

        class Jobs(SlurmExecutor):
            def _make_submission_file_text(self, command: str, uid: str) -> str:
                lines = super()._make_submission_file_text(command, uid).splitlines(keepends=True)
                keeps_time = "time" in resources  # else the partition's, in the place of submitit's five minutes
                return "".join(line for line in lines if keeps_time or not line.startswith("#SBATCH --time="))

        resources = self.request.resources
        executor = Jobs(folder, max_num_timeout=MOST_REQUEUES)
        more = {
            "gpus": {"gpus_per_node": resources.get("gpus")},
            "partition": {"partition": resources.get("partition")},
        }
        executor.update_parameters(
            job_name=f"zoo {run.job.title}"[:60], cpus_per_task=self.threads, signal_delay_s=SAVING,
            time=time_limit(resources.get("time", "365-0")) // 60, stderr_to_stdout=True,
            **({"mem": resources["memory"]} if "memory" in resources else {}),
            **{key: value for name in more if name in resources for key, value in more[name].items()},
        )  # fmt: skip
        return str(executor.submit(JobOfRun(run)).job_id)

    def stop(self) -> None:
        """Cancel the jobs, and wait until they have saved their runs."""
        self.stopping.set()
        self.pool.shutdown(cancel_futures=True)


class LostJobError(Exception):
    """A job of SLURM has ended without doing its run."""


class JobOfRun:
    """In a job of SLURM: a run whose state is saved when submitit is told that the job's time ends."""

    def __init__(self, run: SubmittedRun) -> None:
        self.run = run

    def __call__(self) -> Outcome:
        """Do the run in a thread, so that a signal's handler can wait for it."""
        self.signal = 0
        with ThreadPoolExecutor(1) as pool:
            self.future = pool.submit(self.run, lambda: self.signal)
            return self.future.result()

    def checkpoint(self) -> Any:
        """Stop the run, and return what the job does when it is queued again."""
        from submitit.helpers import DelayedSubmission

        self.signal = signal.SIGINT
        with contextlib.suppress(Exception):
            self.future.result(SAVING)
        return DelayedSubmission(JobOfRun(self.run))


class SlurmQueue:
    """The jobs of this user in SLURM's queue, asked at most every ``POLL`` seconds whatever their number."""

    def __init__(self) -> None:
        self.lock, self.numbers, self.when = threading.Lock(), set[str](), -math.inf
        self.canceled: set[str] = set()

    def has(self, number: str) -> bool:
        """Whether a job waits or runs; also where SLURM does not answer."""
        if not number:
            return False
        with self.lock:
            if time.monotonic() - self.when > POLL:
                words = ["squeue", "--noheader", "--format=%A", f"--user={getpass.getuser()}"]
                answer = subprocess.run(words, capture_output=True, text=True, check=False)
                self.numbers = set(answer.stdout.split()) if answer.returncode == 0 else self.numbers | {number}
                self.when = time.monotonic()
            return number in self.numbers

    def added(self, number: str) -> str:
        """The number of a job that was submitted after the queue was asked, which it has until it is asked again."""
        with self.lock:
            self.numbers.add(number)
            self.when = time.monotonic()
        return number

    def cancel(self, number: str) -> None:
        """Take a job out of the queue; one that runs is told by SIGTERM, and has SLURM's KillWait to save its run."""
        if number not in self.canceled:
            self.canceled.add(number)
            subprocess.run(["scancel", number], capture_output=True, check=False)


def time_limit(text: str) -> int:
    """The seconds of SLURM's ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds`` or ``days-hours:…``."""
    days, dash, clock = text.rpartition("-")
    numbers = [int(piece) for piece in clock.split(":")]
    if dash or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
