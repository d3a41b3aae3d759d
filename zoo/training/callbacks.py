"""Callbacks of every run: cost, provenance, and lines for logs and pipes."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from zoo import console
from zoo.inference.part_versions import KEY, Record
from zoo.logging.cost_measures import MEASURES, RunFacts
from zoo.tasks.task import Task
from zoo.training.model_cost import Cost


class CostMeter(Callback):
    """Logs parameters and FLOPs once, speed (median over steady windows) and peak memory with every validation.

    Its measurements continue after a resume, with the window that was in progress: the time in between is left out.
    """

    def __init__(self, cost: Cost):
        self.cost = cost
        self.rates: list[float] = []
        self.peak = 0  # bytes, in earlier processes of this run
        self._mark: tuple[float, int] | None = None  # when a window began, at how many predictions
        self._step = 0  # of the newest mark: several batches may end at one step
        self._window: tuple[float, int] | None = None  # seconds and first count of the window of a resumed checkpoint
        self._announced = False

    def state_dict(self) -> dict[str, Any]:
        """The speeds so far, the current window as (seconds, predictions at its start), the peak in bytes."""
        window = None if self._mark is None else (time.perf_counter() - self._mark[0], self._mark[1])
        return {"rates": self.rates, "window": window, "peak": self.peak_memory(), "announced": self._announced}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` gave."""
        self.rates, self._window = list(state_dict["rates"]), state_dict["window"]
        self.peak, self._announced = state_dict["peak"], state_dict["announced"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue the window of a resumed run; log parameters and FLOPs in a new one."""
        self._step = trainer.global_step
        if self._window is not None:
            seconds, tokens = self._window
            self._mark, self._window = (time.perf_counter() - seconds, tokens), None
        if self._announced or trainer.global_step:
            return  # a resumed run has logged them
        self._announced = True
        self._log(trainer, fixed=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a window where a line of the log is due, and begin the next."""
        every, step = trainer.log_every_n_steps, trainer.global_step  # type: ignore[attr-defined]
        if not every or step % every or step == self._step:
            return
        self._step = step
        now, tokens = time.perf_counter(), int(pl_module.tokens_seen)
        if self._mark is not None and tokens > self._mark[1]:
            self.rates.append((tokens - self._mark[1]) / (now - self._mark[0]))
        self._mark = now, tokens

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the current window: the time of a validation is not the time of a step."""
        self._mark = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log speed and peak memory."""
        if not trainer.sanity_checking and self.rates:
            self._log(trainer, fixed=False)

    def facts(self, seconds: float = 0.0, tokens: int = 0) -> RunFacts:
        """The measurements of the run; the first window, which warms up, is left out."""
        return RunFacts(
            self.cost.parameters,
            self.cost.flops,
            self.rates[1:] or self.rates,
            self.peak_memory(),
            seconds,
            tokens,
            self.cost.state_bytes,
        )

    def peak_memory(self) -> int:
        """The most bytes that the first process has held, before a resume too."""
        return max(self.peak, peak_memory())

    def _log(self, trainer: Trainer, fixed: bool) -> None:
        facts = self.facts()
        values = {
            f"cost/{cost.tag}": value / cost.scale
            for cost in MEASURES
            if cost.tag and cost.fixed == fixed and (value := cost.measure(facts)) is not None
        }
        for logger in trainer.loggers:
            logger.log_metrics(values, trainer.global_step)


def peak_memory() -> int:
    """The most bytes this process has held: on its GPU where it has one, of the machine's memory elsewhere."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError):  # only Linux has it, and lets it begin anew
        if match := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8")):
            return int(match[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_memory() -> None:
    """Let the peak begin with what this process holds now, where the system can."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


class Provenance(Callback):
    """Writes into every checkpoint which packages its parts come from: the records beside the run's configuration."""

    def __init__(self, records: list[Record]):
        self.records = records

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the records to a checkpoint."""
        checkpoint[KEY] = self.records


class PrintedLines(Callback):
    """Prints one line per validation: above a progress bar, and alone in logs and pipes."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take standard output back: a progress bar of another package may have taken it."""
        console.guard_again()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the monitored metrics of the validation; before training, where all of it is validated."""
        part = trainer.sanity_checking and trainer.num_sanity_val_steps != float("inf")
        if part or not trainer.is_global_zero or not isinstance(pl_module, Task):
            return
        figures = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        monitored = {f"val/{name}" for name in pl_module.monitored_metrics}
        text = " · ".join(f"{name} {value:.4g}" for name, value in figures.items() if name in monitored)
        if pl_module.nan_batches:
            text = f"the loss of {pl_module.nan_batches} of the validation's batches is not a number (nan)"
        total = int(trainer.estimated_stepping_batches) if trainer.max_epochs else 0
        step = f"step {trainer.global_step}/{total}"
        print(f"{'before training' if trainer.sanity_checking else step} · {text}", flush=True)
