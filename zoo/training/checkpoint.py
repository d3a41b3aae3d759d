"""Saves a run so that it can be killed at any moment and resumed to the bit.

``last.ckpt`` is the newest state, ``previous.ckpt`` the one before it, kept until the newest is whole, ``best.ckpt``
the best by the task's first goal. A checkpoint is taken before the first step, after each validation, every ``every``
steps or ten minutes, at the end, and when a signal asks training to stop; always between two optimiser steps.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import errno
import io
import os
import sys
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from zoo.errors import CheckpointError, NonFiniteError, UsageError
from zoo.inference import weight_files
from zoo.inference.find_run import FINISHED, STARTING
from zoo.io import atomic_files, checkpoint_manifest
from zoo.io.checkpoint_manifest import BEST, LAST, PREVIOUS, SHARDS
from zoo.tasks.task import Task
from zoo.training import changed_options, distributed, loops, rng_state
from zoo.training.ema import CURRENT
from zoo.training.lightning_internals import replace_signal_handlers
from zoo.training.nonfinite import all_finite
from zoo.training.signals import Agreement, Signals, StopRequested

MINUTES = 10.0
DONE: Future[None] = Future()
DONE.set_result(None)
FAILURES_ALLOWED = 3  # checkpoints in a row that could not be written
# ways to save: one file; a file beside what each process writes of its tensors, at once; or while training goes on
WAYS = WHOLE, SHARDED, ASYNC = "whole", "sharded", "async"
RETRY = 60.0  # seconds after one
ATTEMPTS = 2  # to write a checkpoint


@dataclass
class SaverState:
    """Everything about the checkpoints of a run that changes while it trains."""

    best: float | None = None  # the best value of the first monitored metric
    saved_best: float | None = None  # of a state that a checkpoint holds
    improved: bool = False  # `best` belongs to a state that no checkpoint holds yet
    validated: bool = False  # since the newest checkpoint
    step: int = -1  # step of the newest checkpoint
    count: int = 0  # checkpoints of the run, before a resume too: their order, independent of clocks
    failures: int = 0  # checkpoints in a row that could not be written
    time: float = field(default_factory=time.monotonic)  # when the newest checkpoint was saved or attempted
    other_data: bool = False  # the resumed checkpoint was trained with other data, whose best values count no more
    other_recipe: bool = False  # the resumed checkpoint was trained with other options, which hold no more
    other_callbacks: bool = False  # and with other callbacks: whether they would stop the run is decided anew
    loaded: dict[str, Any] | None = None  # then: the checkpoint, until the optimiser has taken its state
    unwritten_best: bytes | None = None  # the best state, where the disk refused it
    before_validation: dict[str, Any] | None = None  # the random state when the present validation began
    # per process of the resumed checkpoint: random state, unreported losses
    processes: list[dict[str, Any]] | None = None
    metrics: dict[str, Tensor] = field(default_factory=dict)  # Lightning's, of the checkpoint that is resumed
    digests: dict[tuple[int, int], str] = field(default_factory=dict)  # digests of files, by inode and time of change


@dataclass
class Unpublished:
    """A state that is being written: all of it but tensors in shards, and whether it is the best so far."""

    content: dict[str, Any]
    improved: bool
    best: float | None  # value of the first monitored metric
    step_before: int  # of the checkpoint before it
    problem: str | None = None  # why it could not be published, empty where it was; None as long as it was not tried

    def waits(self) -> bool:
        """Whether nothing but publishing it is left to do."""
        return self.problem is None and bool(self.content[SHARDS].done())


class CheckpointSaver(Checkpoint):
    """Checkpoints of one run in ``folder``; ``facts`` describes it in their manifests. ``state`` is what changes."""

    def __init__(
        self,
        folder: Path,
        goal: tuple[str, str] = ("loss", "min"),
        every: int = 0,
        facts: Mapping[str, Any] | None = None,
        way: str = WHOLE,
    ) -> None:
        self.folder, self.goal, self.every, self.way = folder, goal, every, way
        self.unpublished: Unpublished | None = None
        self.io = AtomicCheckpointIO({} if facts is None else facts)
        self.state = SaverState()

    # installation

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Replace Lightning's loops, signal handlers and writer of checkpoint files."""
        if stage != "fit":
            return
        self.trainer, self.task = trainer, pl_module
        self.disabled = bool(getattr(trainer, "fast_dev_run", False))
        self.replicated = distributed.gathers_state(trainer.strategy)
        if self.way != WHOLE and not hasattr(trainer.strategy, "write_shards"):
            raise UsageError(
                f"--save {self.way} needs a trainer.strategy in which each process has a share of the weights and "
                f"writes it, such as fsdp2 of zoo-scale; {type(trainer.strategy).__name__} does not. Take --save whole."
            )
        loops.install_loops(trainer, self)
        if isinstance(trainer.precision_plugin, DoublePrecision):
            pl_module.double()  # Lightning loads a checkpoint first, and would round it to 32 bits
        self.signals = Signals()
        self.signals.register_signal_handlers()
        replace_signal_handlers(trainer, self.signals)
        self.agreement = Agreement(trainer)
        if self.replicated:
            trainer.strategy.checkpoint_io = self.io
        if trainer.is_global_zero and not self.disabled:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder, os.O_RDONLY)  # as long as it is open, no new folder gets this one's number
            weakref.finalize(self, os.close, handle)
            self.inode = os.fstat(handle).st_ino
            for folder in (self.folder, self.folder.parent, self.folder / checkpoint_manifest.FOLDER):
                atomic_files.remove_drafts(folder)

    # content besides Lightning's

    def state_dict(self) -> dict[str, Any]:
        """The best value of the first monitored metric, and the metrics that Lightning has."""
        metrics = {name: value.detach().cpu() for name, value in self.trainer.callback_metrics.items()}
        return {"best": self.state.best, "metrics": metrics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` gave."""
        if not self.state.other_data:
            self.state.best, self.state.metrics = state_dict["best"], state_dict.get("metrics", {})
            self.state.saved_best = self.state.best

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the random state and the losses that are not logged yet, of every process."""
        pending = trainer.fit_loop.epoch_loop.pending  # type: ignore[attr-defined]
        before = self.state.before_validation
        generators = before if pending and before else rng_state.capture(trainer.strategy.root_device)
        unreported = pl_module.loss_log.state() if isinstance(pl_module, Task) else []
        marks = [logger.mark() for logger in trainer.loggers if hasattr(logger, "mark")]
        checkpoint["logs"] = marks[0] if marks else None
        checkpoint["saves"] = self.state.count
        checkpoint["ranks"] = self.agreement.gather({"chance": generators, "unreported": unreported})

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take step, count, and every process's random state and unreported losses.

        Where the data are others than the checkpoint's, forget what was the best: values of two data sets do not
        compare. Callbacks that monitor a metric, such as early stopping, start anew for the same reason.
        """
        self.state.processes = checkpoint.get("ranks")
        self.state.step, self.state.count = int(checkpoint["global_step"]), int(checkpoint.get("saves", 0))
        self.state.loaded = checkpoint if self.replicated else None
        if CURRENT in checkpoint and self.replicated and trainer.training:  # the others are averages
            pl_module.load_state_dict(checkpoint[CURRENT])
        if self.state.other_callbacks:
            checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]["should_stop"] = False
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, EarlyStopping) and (state := checkpoint["callbacks"].get(callback.state_key)):
                    fresh = callback.state_dict()
                    state.update({name: fresh[name] for name in fresh if name not in ("wait_count", "best_score")})
        if self.state.other_data:
            if isinstance(pl_module, Task):
                pl_module.best, pl_module.measured = {}, {}
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if hasattr(callback, "monitor"):
                    checkpoint["callbacks"].pop(callback.state_key, None)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before Lightning restores optimisers from a checkpoint of another recipe: the options are those of now.

        Raises UsageError for a checkpoint of another version that has other groups of parameters.
        """
        loaded, self.state.loaded = self.state.loaded, None
        if loaded is not None and not self.state.other_recipe:
            changed_options.check_groups(trainer.optimizers, loaded)
        elif loaded is not None:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            for sentence in changed_options.keep_options(trainer.optimizers, schedulers, loaded):
                if trainer.is_global_zero:
                    print(sentence)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore Lightning's metrics after a resume: early stopping and the summary at the end read them."""
        if self.replicated and not self.disabled:
            self._leave_abandoned(pl_module)
        metrics, self.state.metrics = self.state.metrics, {}
        trainer.callback_metrics.update({name: value.to(pl_module.device) for name, value in metrics.items()})

    def _leave_abandoned(self, task: LightningModule) -> None:
        """Where an older checkpoint is resumed than the run's newest: what was saved after it counts no more.

        Later checkpoints get higher numbers than the abandoned ones, and a best one among these is forgotten.
        """
        loaded, best, best_count = self.state.count, self.folder / BEST, 0
        if self.trainer.is_global_zero:
            self.state.count = max(loaded, checkpoint_manifest.saves_so_far(self.folder))
            if self.state.count > loaded and best.is_file():
                with contextlib.suppress(CheckpointError):
                    best_count = int(checkpoint_manifest.verify(best).get("save", 0))
        if self.agreement.gather(best_count)[0] > loaded:
            self.state.best = self.state.saved_best = None
            if isinstance(task, Task):
                task.best = {}

    def on_loop_start(self) -> None:
        """At the first batch of an epoch: restore the random state of the checkpoint, or take the first checkpoint."""
        if self.state.processes is not None:
            ranks, self.state.processes = self.state.processes, None
            here, world = self.trainer.global_rank, self.trainer.world_size
            if isinstance(self.task, Task):
                # each loss once, however many processes there were: the log's next line is a sum over all of them
                parts = [rank["unreported"] for rank in ranks[here::world] if rank["unreported"]]
                self.task.loss_log.load([torch.cat(part) for part in zip(*parts, strict=True)], self.task.device)
            if len(ranks) == world:
                rng_state.restore(ranks[here]["chance"], self.trainer.strategy.root_device)
            elif self.trainer.is_global_zero:
                same = "the batches stay the same, random numbers such as those of dropout do not"
                if getattr(self.trainer.train_dataloader, "anew", False):
                    share = f"{len(ranks)} / {world}"
                    same = f"the batches are others; data.batch_size or data.max_tokens times {share} keeps them"
                print(f"warning: from {len(ranks)} processes to {world}: {same}", file=sys.stderr)
        elif self.state.step < 0 and self.trainer.global_step == 0:
            self.save(initial=True)

    # when to save

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the random state: an interrupted validation is run again, with the same numbers."""
        if not trainer.sanity_checking:
            self.state.before_validation = rng_state.capture(trainer.strategy.root_device)
        # processes can only agree at a batch that all of them have
        batches = sum(int(count) for count in trainer.num_val_batches if count != float("inf"))
        loaders = trainer.val_dataloaders if isinstance(trainer.val_dataloaders, list) else [trainer.val_dataloaders]
        if any(getattr(getattr(loader, "batch_sampler", None), "is_empty", False) for loader in loaders):
            batches = 0
        most, least = self.agreement.maximum(batches, -batches)
        self._together = most == -least

    def on_validation_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Raises StopRequested or ValidationInterrupted where a process has received a signal."""
        if not self._together:
            return
        (signal_number,) = self.agreement.maximum(self.signals.signum)
        if signal_number and trainer.sanity_checking:
            raise StopRequested(signal_number, 0, False)
        if signal_number:
            raise loops.ValidationInterrupted

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note whether the first monitored metric is better than ever before."""
        if trainer.sanity_checking:
            return
        self.state.validated, self.state.before_validation = True, None
        name, aim = self.goal
        if (value := trainer.callback_metrics.get(f"val/{name}")) is not None:
            figure = float(value)
            best = self.state.best
            better = best is None or (figure < best if aim == "min" else figure > best)
            if better and figure == figure:
                self.state.best, self.state.improved = figure, True

    def on_batch_boundary(self) -> None:
        """After a batch, between two steps: save where it is time to. Raises StopRequested where a signal came."""
        if self.unpublished is not None and self.unpublished.waits():
            self._publish(self.unpublished)
        steps = self.trainer.fit_loop.epoch_loop
        if not steps.between_steps:  # type: ignore[attr-defined]
            return
        state, step = self.state, self.trainer.global_step
        late = time.monotonic() - state.time > 60 * MINUTES
        signal_number, late_somewhere = self.agreement.maximum(self.signals.signum, int(late))
        regular = self.every and step % self.every == 0 and step != state.step
        ends = steps.ends_run  # type: ignore[attr-defined]
        if state.validated or regular or late_somewhere or signal_number or ends:
            self.save(again=bool(state.validated or steps.pending))  # type: ignore[attr-defined]
        if signal_number:
            self.settle()
            raise StopRequested(signal_number, step, state.step == step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what has no checkpoint yet. Raises CheckpointError where that fails."""
        last = self.folder / LAST
        if self.state.step != trainer.global_step:
            self.save()
        self.settle()
        if self.state.step != trainer.global_step and not self.disabled:
            raise CheckpointError(f"the state after the last step, {trainer.global_step}, could not be saved.")
        if trainer.is_global_zero and self.replicated and not self.disabled and last not in self.io.digests:
            self._restore_last()

    # writing

    def save(self, initial: bool = False, again: bool = True) -> None:
        """Write ``last.ckpt`` and, after a better validation, ``best.ckpt``; training survives a full disk for a while.

        ``initial``: nothing was trained yet, and whatever prevents writing is an error. A state that is on disk already
        is written only ``again``. Raises NonFiniteError where a weight is not finite, CheckpointError where the disk
        has refused the first checkpoint or FAILURES_ALLOWED in a row.
        """
        state, step = self.state, self.trainer.global_step
        state.time = time.monotonic()
        if self.disabled or (state.step == step and not again):
            return
        if not self.replicated:
            self.trainer.save_checkpoint(self.folder / LAST)
            state.step, state.validated, state.improved = step, False, False
            return
        if bad := [name for name, p in self.task.named_parameters() if not all_finite(p)]:
            raise NonFiniteError(
                f"step {step}: the weight {bad[0]} is not finite, and such a state is not saved.\n"
                f"Go on from step {state.step} with a smaller model.lr: --resume --accept-changes"
            )
        self.settle()
        state.count += 1
        content, improved = collect_state(self.trainer, self.way != WHOLE), state.improved
        if self.way != WHOLE:
            shards = self.trainer.strategy.write_shards(content, self.folder, self.way == ASYNC)  # type: ignore[attr-defined]
            content = {**copy.deepcopy(content), SHARDS: shards}  # callbacks go on to change what they have given
        self.unpublished = Unpublished(content, improved, state.best, state.step)
        state.step, state.validated, state.improved = step, False, False
        if self.way != ASYNC or initial:
            self.settle(initial)

    def settle(self, initial: bool = False) -> None:
        """Wait until the state that is being written is saved. Every process must call it; raises as ``save``."""
        pending, self.unpublished, state = self.unpublished, None, self.state
        if pending is None:
            return
        problem = self.agreement.gather(self._publish(pending))[0]
        step = pending.content.get("global_step", state.step)
        if not problem:
            state.failures, state.saved_best = 0, pending.best
            return
        state.step = pending.step_before
        if pending.improved and not state.improved and state.unwritten_best is None:
            state.best = state.saved_best  # the better state is gone with its shards
        state.failures += 1
        state.time = time.monotonic() - 60 * MINUTES + RETRY
        if initial or state.failures >= FAILURES_ALLOWED:
            raise CheckpointError(f"no checkpoint of step {step}: {problem}")
        if self.trainer.is_global_zero:
            newest = f"the newest is that of step {state.step}" if state.step >= 0 else "there is none"
            print(f"warning: no checkpoint of step {step}: {problem}; {newest}", file=sys.stderr, flush=True)

    def _publish(self, pending: Unpublished) -> str:
        """Make a checkpoint of a state whose shards are written, with one more attempt after a failure.

        Returns the reason if both fail, else an empty text.
        """
        content, problems = pending.content, list[str]()
        if pending.problem is not None:
            return pending.problem
        if not self.trainer.is_global_zero:
            concurrent.futures.wait([content.get(SHARDS, DONE)])
            pending.problem = ""
            return ""
        while len(problems) < ATTEMPTS:
            try:
                if self.folder.stat().st_ino != self.inode:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder))
                if isinstance(content.get(SHARDS), Future):
                    content[SHARDS] = content[SHARDS].result()
                self._write(content, pending.improved)
                break
            except FileNotFoundError as error:
                raise CheckpointError(f"{self.folder} was removed or moved while its run was training.") from error
            except OSError as error:
                problems.append(atomic_files.reason(error, self.folder))
        pending.problem = problems[-1] if len(problems) == ATTEMPTS else ""
        if pending.problem:
            if pending.improved and not isinstance(content.get(SHARDS), Future):  # there are shards, or none are needed
                self.state.unwritten_best = serialize(content)
        elif problems:
            atomic_files.warn(f"step {content['global_step']} was saved at the second attempt: {problems[0]}")
        return pending.problem

    def _write(self, content: dict[str, Any], improved: bool) -> None:
        last = self.folder / LAST
        if last.exists():
            atomic_files.link_file(last, self.folder / PREVIOUS)
        if self.state.unwritten_best is not None and not improved:
            # before a state whose record of the best refers to it
            earlier = torch.load(io.BytesIO(self.state.unwritten_best), map_location="cpu", weights_only=True)
            self.io.save_checkpoint(earlier, self.folder / BEST)
        if improved:
            # the best first: after a kill in between, the newest does not refer to a best that is missing
            self.io.save_checkpoint(content, self.folder / BEST)
            atomic_files.link_file(self.folder / BEST, last)
            self.io.digests[last] = self.io.digests[self.folder / BEST]
        else:
            self.io.save_checkpoint(content, last)
        self.state.unwritten_best = None
        # a best one that belongs to other data or was abandoned: the newest is the only candidate
        if self.state.best is None:
            (self.folder / BEST).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the checkpoint is complete; the next one removes leftover files
            for name in (STARTING, FINISHED):  # what was finished goes on
                (self.folder.parent / name).unlink(missing_ok=True)
            self._keep_manifests()

    def _restore_last(self) -> None:
        """Give the best checkpoint the last one's name too, if a kill after the last step left only the former."""
        best, last = self.folder / BEST, self.folder / LAST
        if checkpoint_manifest.newest_intact(self.folder).path != best:
            return
        with contextlib.suppress(OSError):
            if last.exists():
                atomic_files.link_file(last, self.folder / PREVIOUS)
            atomic_files.link_file(best, last)

    def _keep_manifests(self) -> None:
        """Remove the manifests of checkpoints that no longer exist; a file that others wrote is hashed once."""
        digests = set()
        for path in self.folder.glob("*.ckpt"):
            about = path.stat()
            key = about.st_ino, about.st_mtime_ns
            if key not in self.state.digests:
                ours = self.io.digests.get(path) if path.name == LAST else None
                self.state.digests[key] = ours or checkpoint_manifest.sha256(path)
            digests.add(self.state.digests[key])
        checkpoint_manifest.prune(self.folder, digests)


def serialize(content: dict[str, Any]) -> bytes:
    """A checkpoint as the bytes of a file: training changes the tensors of the content itself."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's own writes beside TMPDIR and moves: across file systems that is a copy, which a kill cuts short."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts  # facts of the run, in every manifest
        self.digests: dict[Path, str] = {}  # digests of the files that this process has written
        self.empty: weight_files.Empty = torch.empty  # for what tensors in shards are read into

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint and its manifest. Raises OSError where the disk refuses one of them."""
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_files.open_draft(place) as (draft, file):
            torch.save(checkpoint, cast(IO[bytes], file))
        where = {
            "step": checkpoint["global_step"], "save": checkpoint.get("saves", 0), "epoch": checkpoint["epoch"],
            "logs": checkpoint.get("logs"),
            **({SHARDS: checkpoint[SHARDS]} if SHARDS in checkpoint else {}),
        }  # fmt: skip
        digest = file.sha256.hexdigest()
        try:
            checkpoint_manifest.write_manifest(place.parent, digest, file.bytes, {**where, **self.facts})
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        atomic_files.publish_draft(draft, place)
        self.digests[place] = digest

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        """The content of a file on this machine, verified first. Raises CheckpointError."""
        if "://" in str(path):
            raise CheckpointError(
                f"{path} is no file on this machine: copy it here first, from a source that you trust."
            )
        checkpoint_manifest.verify(Path(path))
        return weight_files.read_checkpoint(Path(path), map_location, self.empty)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file, if it is there."""
        Path(path).unlink(missing_ok=True)


class StateCollector(TorchCheckpointIO):
    """Takes the state of a run from Lightning instead of writing it."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Keep the content; ``path`` is not used."""
        self.content = checkpoint


def collect_state(trainer: Trainer, divided: bool = False) -> dict[str, Any]:
    """The content of a checkpoint of now; empty in all processes but the first, unless each has its share of tensors.

    Every process must call it. Only some strategies can give ``divided`` tensors.
    """
    writer, collector = trainer.strategy.checkpoint_io, StateCollector()
    trainer.strategy.checkpoint_io = collector
    try:
        with trainer.strategy.divided_state() if divided else contextlib.nullcontext():  # type: ignore[attr-defined]
            trainer.save_checkpoint("", weights_only=False)
    finally:
        trainer.strategy.checkpoint_io = writer
    return collector.content
