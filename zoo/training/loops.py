"""Lightning's loops, which stop between two optimiser steps and go on there as if nothing had happened.

Lightning saves from within its hooks, where some of its counters have moved and others have not, and guesses on a
resume what was under way. Here a checkpoint is taken at one kind of moment only: after a step, its validation, and its
bookkeeping. The one exception is a validation that a signal cut short; it is run again, whole.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.progress import _BatchProgress
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

if TYPE_CHECKING:
    from zoo.training.checkpoint import CheckpointSaver

MID_EPOCH = "restarted_mid_epoch"


class ValidationInterrupted(BaseException):
    """A validation is left because a signal came."""


class EpochLoop(_TrainingEpochLoop):
    """The batches of an epoch."""

    saver: CheckpointSaver
    pending = False  # the validation after the newest batch was cut short
    due = False  # a validation waits for the end of the step
    was_stopping = False
    _numbered: bool | None = None  # whether the task's training_step wants the number of the batch

    @property
    def between_steps(self) -> bool:
        """Whether no gradient waits for an optimiser step."""
        return not self._should_accumulate()

    @property
    def done(self) -> bool:
        return not self.pending and super().done

    @property
    def _is_validation_done(self) -> bool:
        return True

    def reset(self) -> None:
        """Start an epoch, or go on in the one that a checkpoint was taken in."""
        resumed = self._loaded_from_state_dict
        self.on_iteration_done()  # nothing is left to guess
        self.val_loop.on_iteration_done()
        if resumed and self.trainer.fit_loop.restarted_mid_epoch:
            settle_progress(self.batch_progress)
            self._batches_that_stepped = self.global_step - (1 if self.pending and self.between_steps else 0)
        else:
            super().reset()

    def on_run_start(self, data_fetcher: Any) -> None:
        super().on_run_start(data_fetcher)
        self._numbered = None
        selector: Any = self.trainer._data_connector._datahook_selector
        selector.get_instance = cache(selector.get_instance)  # who moves batches is asked three times a step
        self.saver.begin()

    def _build_kwargs(self, kwargs: OrderedDict, batch: Any, batch_idx: int) -> OrderedDict:
        """Lightning inspects the signature at every step; it does not change."""
        if self._numbered is None:
            built = super()._build_kwargs(kwargs, batch, batch_idx)
            self._numbered = "batch_idx" in built
            return built
        kwargs["batch"] = batch
        if self._numbered:
            kwargs["batch_idx"] = batch_idx
        return kwargs

    def _broadcast_sigterm_tensor(self) -> None:
        """Nothing: `Saver.boundary` asks."""

    def advance(self, data_fetcher: Any) -> None:
        if not self.pending:
            super().advance(data_fetcher)

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        if self.pending:
            self.pending = False
            return True
        self.due = self.due or super()._should_check_val_fx(data_fetcher)
        if not self.between_steps:
            return False  # until then the weights are those of the step before, and the gradients half of a step's
        now, self.due = self.due, False
        return now

    def on_advance_end(self, data_fetcher: Any) -> None:
        try:
            super().on_advance_end(data_fetcher)
        except ValidationInterrupted:
            self.trainer.training = True
            self.pending = True
            for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, WeightAveraging):  # it has put its averages into the place of the weights
                    callback.on_validation_epoch_end(self.trainer, self.trainer.lightning_module)
            forget(self.val_loop.batch_progress)
        self.saver.boundary()

    def on_save_checkpoint(self) -> dict:
        here = {"pending": self.pending, "should_stop": bool(self.trainer.should_stop)}
        return {**super().on_save_checkpoint(), **here}

    def on_load_checkpoint(self, state_dict: dict) -> None:
        super().on_load_checkpoint(state_dict)
        self.pending = bool(state_dict.get("pending"))
        self.was_stopping = bool(state_dict.get("should_stop"))


class FitLoop(_FitLoop):
    """The epochs of a run."""

    epoch_loop: EpochLoop

    @property
    def done(self) -> bool:
        return not self.epoch_loop.pending and super().done

    @property
    def skip(self) -> bool:
        """A run that was stopped after its last step still says that it has ended."""
        return self.trainer.limit_train_batches == 0 or (not self.is_resuming and self.done)

    def reset(self) -> None:
        torch.set_grad_enabled(True)
        progress: Any = self.epoch_progress.current
        if self._loaded_from_state_dict and progress.started > progress.processed:
            self._restart_stage = MID_EPOCH
            self.trainer.should_stop = self.epoch_loop.was_stopping

    @property
    def restarted_mid_epoch(self) -> bool:
        return self._restart_stage == MID_EPOCH


def settle_progress(progress: _BatchProgress) -> None:
    """A batch that was processed is done with, whatever moment another callback saved at."""
    parts: tuple[Any, Any] = progress.total, progress.current
    for part in parts:
        part.ready = part.started = part.completed = part.processed


def forget(progress: _BatchProgress) -> None:
    """The batches of a validation that is run again count once."""
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress.total, name, getattr(progress.total, name) - getattr(progress.current, name))
    progress.reset_on_run()


def install_loops(trainer: Trainer, saver: CheckpointSaver) -> None:
    """Give a trainer these loops; they keep what Lightning has put into its own."""
    trainer.fit_loop.__class__ = FitLoop
    trainer.fit_loop.epoch_loop.__class__ = EpochLoop
    trainer.fit_loop.epoch_loop.saver = saver  # type: ignore[attr-defined]
