"""Several processes end together: none waits for one that died or outlives the first; the cause is printed once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy, StrategyRegistry
from lightning.pytorch.utilities import rank_zero_only
from lightning_utilities.core import rank_zero

from zoo import registry
from zoo.errors import UsageError, ZooError
from zoo.plugins.safe_import import import_object
from zoo.system import stop_signals
from zoo.system.stop_signals import PARENT
from zoo.training.lightning_internals import ScriptLauncher, replace_launcher

PATIENCE = timedelta(minutes=10)  # for a process that hangs in a collective operation; torch's own is 30 minutes
GRACE = 20.0  # seconds that the others have to end by themselves when one has died
POLL = 0.2
CONNECTION_FAILURES = re.compile(
    r"connection (closed|reset|refused)|gloo.*(timed? ?out|recv|read error)|nccl|broken pipe|socket", re.I
)


class LostProcessError(ZooError):
    """Another process of the job has ended."""


class Launcher(ScriptLauncher):
    """Starts the processes of one machine as Lightning does, and ends them all where one dies."""

    failed_process: tuple[int, int] | None = None  # which, with what code

    def launch(self, function: Callable, *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """As Lightning's, whose observer would kill the first process too, even while it writes a file."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            if self.num_nodes > 1:
                announce_nodes(self.num_nodes)
            os.environ[PARENT] = str(os.getpid())
            if sys.flags.safe_path:  # Lightning passes on no flag of Python
                os.environ["PYTHONSAFEPATH"] = "1"
            with stop_signals.block_signals():
                self.start_children()
            threading.Thread(target=self._observe, name="observer of processes", daemon=True).start()
        return function(*args, **kwargs)

    def _observe(self) -> None:
        while self.failed_process is None:
            time.sleep(POLL)
            codes = [process.poll() for process in self.procs]
            if all(code == 0 for code in codes):
                return
            failed = [(rank, code) for rank, code in enumerate(codes, 1) if code]
            if failed:
                self.failed_process = failed[0]
        time.sleep(GRACE)
        rank, code = self.failed_process
        print(f"error: {error_text(rank, code, len(self.procs) + 1)}; ended the others.", file=sys.stderr, flush=True)
        end_process(self.procs)
        os._exit(stop_signals.job_code(code))


def announce_nodes(nodes: int) -> None:
    """Say where a process waits for those of other machines. Raises UsageError where these could not know the place."""
    place = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    if not all(place):
        raise UsageError(
            f"trainer.num_nodes={nodes}: the processes of {nodes} machines must find each other. Start the command on "
            "each with MASTER_ADDR and MASTER_PORT of the first and its own NODE_RANK, or by torchrun or SLURM."
        )
    minutes = PATIENCE.total_seconds() / 60
    print(f"waiting for {nodes} machines at {':'.join(place)}, at most {minutes:.0f} minutes", flush=True)


def end_process(processes: list[subprocess.Popen]) -> None:
    """Kill those that still run."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def error_text(rank: int, code: int, world: int) -> str:
    """How a process ended."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"process {rank} of {world} was ended by {signal.Signals(-code).name}"
    return f"process {rank} of {world} ended with code {code}"


def plan_trainer(options: Mapping[str, Any], **extras: Any) -> Trainer:
    """A trainer with the processes that the options of another one ask for, and nothing else of it."""
    own = {name: options[name] for name in ("accelerator", "devices", "num_nodes") if options.get(name) is not None}
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    before, rank_zero.log.disabled = rank_zero.log.disabled, True  # the trainer of the run says what devices there are
    try:
        return Trainer(**{**off, **own, **extras})
    finally:
        rank_zero.log.disabled = before


def launcher_of(options: Mapping[str, Any]) -> list[LightningEnvironment]:
    """For a trainer of one process the environment that no launcher manages, whatever variables are set around it."""
    own = LightningEnvironment()
    return [own] if plan_trainer(options, plugins=[own]).world_size == 1 else []


def settle_rank(options: Mapping[str, Any]) -> None:
    """Have Lightning's record of this process's rank follow from the trainer's options, in the place of RANK alone.

    A training on one device of one node has one process, and this is the first, whatever a launcher's variables say.
    """
    try:
        rank = 0 if launcher_of(options) else plan_trainer(options).global_rank
    except Exception:  # options that the trainer of the run refuses again, with a message
        rank = 0
    set_rank(rank)


def set_rank(rank: int) -> None:
    """Record the rank of this process where Lightning's functions for the first process alone read it."""
    setattr(rank_zero_only, "rank", rank)  # noqa: B010 (mypy knows no attributes of functions)


def gathers_state(strategy: Strategy) -> bool:
    """Whether the state that a strategy gives to be saved is whole, as that of one process.

    A strategy of a package says so by an attribute of this name.
    """
    own = type(strategy) is DDPStrategy or isinstance(strategy, SingleDeviceStrategy)
    return own or bool(getattr(strategy, "gathers_state", False))


def register_strategies() -> None:
    """Give Lightning the strategies of packages by their names."""
    for name, target in registry.strategies().items():
        if name not in StrategyRegistry:
            StrategyRegistry.register(name, import_object(*target.split(":")))


def set_timeouts() -> None:
    """Have DDP strategies that are own_options by name wait no longer than ``PATIENCE`` for a process that hangs."""
    for entry in StrategyRegistry.values():
        if issubclass(entry["strategy"], DDPStrategy):
            entry["init_params"]["timeout"] = PATIENCE


def watch_process(trainer: Trainer) -> None:
    """Let a trainer's processes end together."""
    replace_launcher(trainer.strategy, Launcher)


def wait_for_processes(trainer: Trainer | None) -> None:
    """Wait a moment for the processes that this one started: none outlives it."""
    launcher = trainer.strategy.launcher if trainer is not None else None
    for process in launcher.procs if isinstance(launcher, Launcher) else ():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE / 2)


def explain_lost_process(error: BaseException, trainer: Trainer | None) -> LostProcessError | None:
    """The error to raise if the end of another process caused this one; None for other errors."""
    if trainer is None or trainer.world_size < 2 or not isinstance(error, RuntimeError) or isinstance(error, ZooError):
        return None
    if not CONNECTION_FAILURES.search(str(error)):
        return None
    launcher = trainer.strategy.launcher
    until = time.monotonic() + 5 * POLL
    while isinstance(launcher, Launcher) and launcher.failed_process is None and time.monotonic() < until:
        time.sleep(POLL)
    if isinstance(launcher, Launcher) and launcher.failed_process is not None:
        rank, code = launcher.failed_process
        cause = error_text(rank, code, trainer.world_size)
        error_of_job = LostProcessError(f"{cause}: its output is above. Continue: --resume")
        error_of_job.code = stop_signals.job_code(code)
        return error_of_job
    here = f"process {trainer.global_rank} of {trainer.world_size}"
    return LostProcessError(
        f"{here} lost the connection to another one, which printed the cause or was killed. Continue: --resume"
    )
