"""The record of a run, ledger.json beside its checkpoints: plain JSON, which `zoo compare` reads without torch."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from zoo import __version__
from zoo.config.passive_settings import is_passive
from zoo.errors import CheckpointError, NonFiniteError, StorageError, UsageError
from zoo.io import atomic_files, limits
from zoo.io.content_digests import json_value, with_digest
from zoo.logging.best_effort import BestEffort
from zoo.logging.cost_measures import MEASURES, RunFacts
from zoo.parts.attention import Attention
from zoo.system import kernel_choice
from zoo.system.kernel_choice import processor_name
from zoo.training.callbacks import CostMeter, peak_memory

FILE, FORMAT = "ledger.json", 1
SAMPLE = 1 << 16  # bytes of a tensor that a digest reads; of a larger one it reads evenly spaced values
PENDING = 16  # batches of another device that wait for their digest: one wait for the device serves them all
FIRST = 8  # batches whose own digests are written down
# what `zoo compare --budget` makes equal, if it is not tokens; set for the runs that it starts
BUDGET = {"budget": os.environ["ZOO_BUDGET"]} if os.environ.get("ZOO_BUDGET") else {}


class Ledger(Callback):
    """Writes ``ledger.json`` into the run's folder: at the start, at every validation, and at the end, however it ends.

    ``about`` is what the configuration says: choices, optimizer, schedule and the options of the data, the whole
    ``config``, and the ``code`` that it names. Digests show that two runs began with the same weights and saw the same
    batches in the same order: those of the first process, where there are several. All of it goes on after a resume,
    out of the checkpoint; ``earlier_code`` lists the code of earlier processes where it was other code, and ``resumed``
    the steps from which the run went on with other options or data, and which.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]):
        self.folder, self.about = folder, about
        self.start: dict[str, str] = {}
        self.batches: dict[str, Any] = {"digest": "", "count": 0, "first": []}
        self.validations: list[dict[str, float]] = []
        self.seconds, self.finished = 0.0, False  # seconds of training, without validation
        self.validation_seconds = 0.0
        self.outcome: dict[str, Any] = {"state": "running"}
        self.code: dict[str, Any] = dict(about.get("code", {}))
        self.earlier_code: list[dict[str, Any]] = []
        self.resumed: list[dict[str, Any]] = []
        self._trained_with: dict[str, Any] = {}  # options and data of the checkpoint that is resumed
        self._started_at: float | None = None
        self._paused_at: float | None = None  # when the validation in progress began
        self._pending: list[list[tuple[str, Tensor]]] = []
        self.effort = BestEffort(
            f"the record of the run, {folder / FILE},",
            "its end is missing, which the same command with --resume writes",
            "nothing is missing from it",
        )

    # collecting

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Digest the initial weights, unless a checkpoint brings their digests."""
        if stage == "fit" and not self.start:
            self.start = weight_digests(getattr(pl_module, "net", pl_module).named_parameters())

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and write the file."""
        self._started_at, self.finished = time.monotonic(), False
        self.start = self.start or getattr(trainer.strategy, "first_digests", {})  # of weights that it has initialised
        self.outcome = {"state": "running"}
        if changes := changed_settings(self._trained_with, self._training_with(trainer), pl_module):
            self.resumed.append({"step": trainer.global_step, "changes": changes})
        self._trained_with = self._training_with(trainer)
        self.write(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take a sample of the batch for its digest."""
        if not trainer.is_global_zero:
            return
        samples = [(name, sample(tensor)) for name, tensor in tensors(batch)]
        self._pending.append(samples)
        if len(self._pending) == PENDING or all(tensor.device.type == "cpu" for _, tensor in samples):
            self._digest()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock: a variant that validates more does not train more slowly."""
        if self._started_at is not None:
            self._paused_at = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the metrics of the validation, and write the file."""
        if trainer.sanity_checking or self._started_at is None:
            return
        if self._paused_at is not None:
            took, self._paused_at = time.monotonic() - self._paused_at, None
            self._started_at += took
            self.validation_seconds += took
        measured: dict[str, float] = getattr(pl_module, "measured", {})
        # a metric that is nan was not measured; where the loss is not finite either, the run diverged
        diverged = not math.isfinite(measured.get("loss", 0.0))
        figures = {name: value for name, value in measured.items() if diverged or value == value}
        self.validations.append({"step": trainer.global_step, "tokens": tokens_seen(pl_module), **figures})
        self.write(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, as finished unless training was interrupted."""
        self.finished = not trainer.interrupted
        self.outcome = {"state": "finished" if self.finished else "interrupted", "step": trainer.global_step}
        self.write(trainer, pl_module)
        if self.effort.failures:  # the last chance
            self.write(trainer, pl_module)
        self.effort.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write how the run ended: diverged, out of memory, crashed, or interrupted, with its step and cause."""
        if not trainer.is_global_zero or getattr(trainer, "fast_dev_run", False):
            return
        self.outcome = describe_exception(exception, trainer.global_step)
        has_record = (self.folder / FILE).is_file()
        if self.outcome["state"] != "interrupted" and (self._started_at is not None or not has_record):
            self.write(trainer, pl_module)
        elif has_record:  # also a resume that failed before it had the state of its checkpoint
            self._amend()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run continues from."""
        self._digest()
        names = ("start", "batches", "validations", "finished", "code", "earlier_code", "resumed", "validation_seconds")
        state = {name: getattr(self, name) for name in names}
        return {
            **state,
            "trained_with": self._trained_with,
            "seconds": self._elapsed(),
            "kernels": kernel_choice.record(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` gave, by the same kernels; code of another process is remembered."""
        code = self.code
        self._trained_with = state_dict.get("trained_with", {})
        for name, value in state_dict.items():
            if name not in ("kernels", "trained_with"):
                setattr(self, name, value)
        kernel_choice.adopt(state_dict.get("kernels"))
        if "code" in state_dict and self.code != code:
            self.earlier_code = [*self.earlier_code, self.code]
        self.code = code

    def _training_with(self, trainer: Trainer) -> dict[str, Any]:
        """The options of the run by dotted keys, and its data."""
        return {**self.about.get("config", {}), "data": data_identity(trainer)} if self.about.get("config") else {}

    def _amend(self) -> None:
        """Replace the outcome in the file, and leave the rest as it is."""
        with contextlib.suppress(OSError, ValueError):
            content: Any = limits.read_json(self.folder / FILE)
            write_json(self.folder / FILE, {**content, "outcome": self.outcome})

    def _digest(self) -> None:
        """Chain the digests of the pending batches."""
        for samples in self._pending:
            own = hashlib.blake2b(digest_size=8)
            for name, tensor in samples:
                own.update(f"{name} {tensor.dtype} ".encode() + tensor_bytes(tensor))
            chained = hashlib.blake2b(f"{self.batches['digest']} {own.hexdigest()}".encode(), digest_size=16)
            self.batches["digest"], self.batches["count"] = chained.hexdigest(), self.batches["count"] + 1
            if len(self.batches["first"]) < FIRST:
                self.batches["first"].append(own.hexdigest())
        self._pending.clear()

    def _elapsed(self) -> float:
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return self.seconds + (0.0 if self._started_at is None else now - self._started_at)

    # writing

    def write(self, trainer: Trainer, task: Any) -> None:
        """Replace the file atomically by the present state."""
        if not trainer.is_global_zero or getattr(trainer, "fast_dev_run", False):
            return
        self._digest()
        last = {name: value for name, value in self._last().items() if name not in ("step", "tokens")}
        content = {
            "format": FORMAT,
            **run_identity(self.folder, task),
            "choices": self.about.get("choices", {}),
            "goals": dict(getattr(task, "monitored_metrics", {})),
            "unit": getattr(task, "unit", "token"),
            "prediction": getattr(task, "prediction", "") or type(task).__name__,
            "data": data_identity(trainer),
            "start": self.start,
            "batches": self.batches,
            "setting": {**training_setting(trainer, task), **self.about.get("setting", {}), **BUDGET},
            "kernels": kernel_choice.record(),
            "cost": self._cost(trainer, task),
            "validations": self.validations,
            "steps": trainer.global_step,
            "tokens": tokens_seen(task),
            "best": dict(getattr(task, "best", {})) if self.validations else {},
            "last": last,
            "finished": self.finished,
            "diverged": self.outcome["state"] == "diverged",
            "outcome": {**self.outcome, "skipped": self._skipped(trainer)},
            "config": self.about.get("config", {}),
            "code": self.code,
            "earlier_code": self.earlier_code,
            "resumed": self.resumed,
        }
        with self.effort.attempt():
            write_json(self.folder / FILE, content)

    def _skipped(self, trainer: Trainer) -> int:
        """Steps that were not finite and left out, by the policies that leave them out."""
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        return sum(int(item.skipped) for item in callbacks if hasattr(item, "in_a_row"))

    def _last(self) -> dict[str, float]:
        return self.validations[-1] if self.validations else {}

    def _cost(self, trainer: Trainer, task: Any) -> dict[str, float | None]:
        """Every measure of what the run costs, the relative spread of its speed, and the seconds of validation."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        meter = next((item for item in callbacks if isinstance(item, CostMeter)), None)
        seconds, tokens = self._elapsed(), tokens_seen(task)
        facts = meter.facts(seconds, tokens) if meter else RunFacts(None, None, [], peak_memory(), seconds, tokens)
        spread = statistics.stdev(facts.rates) / statistics.mean(facts.rates) if len(facts.rates) > 1 else None
        return {**{measure.name: measure.measure(facts) for measure in MEASURES}, "spread": spread,
                "validation_seconds": self.validation_seconds}  # fmt: skip


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any], task: Any) -> dict[str, list[Any]]:
    """What a run is trained with from now on and was not before, as old and new value by dotted key.

    Passive settings, and sizes that the data fill in, do not count. Empty where either is not known.
    """
    sizes = {f"model.{name}" for name in getattr(task, "data_sizes", ())}
    return {
        key: [old.get(key), new.get(key)]
        for key in (dict.fromkeys([*old, *new]) if old and new else ())
        if json_value(old.get(key)) != json_value(new.get(key))
        and not (is_passive(key, old.get(key)) and is_passive(key, new.get(key)))
        and not (key in sizes and None in (old.get(key), new.get(key)))
    }


def describe_exception(error: BaseException, step: int) -> dict[str, Any]:
    """The state in which an exception leaves a run, with the step and the first line of its cause."""
    from zoo.training.out_of_memory import OutOfMemoryError, is_out_of_memory

    text = " ".join((str(error).splitlines() or [""])[0].split())[:300]
    if isinstance(error, NonFiniteError):
        state = "diverged"
    elif isinstance(error, OutOfMemoryError) or is_out_of_memory(error):
        state = "out of memory"
    elif not isinstance(error, Exception) or isinstance(error, (OSError, StorageError, CheckpointError, UsageError)):
        state = "interrupted"  # a signal, a disk, or an option: nothing that the model did
    else:
        state, text = "crashed", f"{type(error).__name__}: {text}"
    return {"state": state, "step": step, "cause": text or type(error).__name__}


def tensors(batch: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch, of any shape, with their paths in it: `.inputs`, `.0.1`."""
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, item in batch.items():
            yield from tensors(item, f"{name}.{key}")
    elif isinstance(batch, (list, tuple)):
        for index, item in enumerate(batch):
            yield from tensors(item, f"{name}.{index}")


def sample(tensor: Tensor) -> Tensor:
    """At most SAMPLE bytes of a tensor of any shape, evenly spaced, (N,); a copy unless it is on the CPU."""
    flat = tensor.detach().reshape(-1)
    most = SAMPLE // max(1, tensor.element_size())
    if flat.numel() > most:
        flat = flat[:: -(-flat.numel() // most) | 1]  # an odd step: an even one would read few columns of an image
    # those of the CPU are read immediately, those of another device later, when the task may have changed them
    return flat if flat.device.type == "cpu" else flat.clone()


def tensor_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor of any type."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def weight_digests(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """The first 16 hexadecimal digits of the SHA-256 of every parameter, of any shape, by name."""
    return {
        name: hashlib.sha256(tensor_bytes(parameter)).hexdigest()[:16]
        for name, parameter in parameters
        if not parameter.is_meta
    }


def run_identity(folder: Path, task: Any) -> dict[str, Any]:
    """Recipe, variant and seed, as in the folder's path."""
    recipe, variant, last = ("", "", "", *folder.absolute().parts)[-3:]
    number = re.fullmatch(r"s(\d+)", last)
    seed = int(number[1]) if number else int(getattr(task, "_seed", 0))
    return {"recipe": recipe, "variant": variant, "seed": seed}


def data_identity(trainer: Trainer) -> dict[str, str | None]:
    """The class of the data and the digest of its content."""
    module = getattr(trainer, "datamodule", None)
    fingerprint = getattr(module, "fingerprint", None)
    return {"class": type(module).__name__, "fingerprint": fingerprint() if callable(fingerprint) else None}


def training_setting(trainer: Any, task: Any) -> dict[str, Any]:
    """The settings of training that a fair comparison holds equal: precision, device, versions, steps."""
    device = trainer.strategy.root_device
    kernels = {repr(module.backend) for module in task.modules() if isinstance(module, Attention)}
    steps = trainer.estimated_stepping_batches
    return {
        "precision": str(trainer.precision),
        "device": device.type,
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "threads": torch.get_num_threads(),
        "processes": trainer.world_size,
        **({"gpu_share": share} if (share := os.environ.get("ZOO_GPU_SHARE")) else {}),
        "torch": str(torch.__version__).partition("+")[0],
        "zoo": __version__,
        "python": platform.python_version(),
        "accumulate": trainer.accumulate_grad_batches,
        "max_steps": int(steps) if math.isfinite(steps) else None,
        "kernel": "/".join(sorted(kernels)),
        **({"metrics": signatures} if (signatures := getattr(task, "metric_signatures", {})) else {}),
    }


def tokens_seen(task: Any) -> int:
    """Predictions trained on so far, over all processes."""
    return int(getattr(task, "tokens_seen", 0))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its digest atomically. Raises OSError where that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write_json(path, with_digest(json_value(value)), end="\n")
