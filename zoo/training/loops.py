"""Lightning's loops, changed so that a run stops between two optimiser steps and resumes exactly there.

Lightning saves from within its hooks, where some of its counters have moved and others have not, and infers on a
resume what was in progress. Here a checkpoint is taken at one kind of moment only: after a step, its validation and its
bookkeeping. The one exception is a validation that a signal cut short; it is run again, whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer

from zoo.errors import UsageError
from zoo.training.lightning_internals import BatchLoop, EpochsLoop, replace_loops


class ValidationInterrupted(BaseException):
    """A validation is left because a signal came."""


class Saver(Protocol):
    """What the loops require of the callback that saves checkpoints."""

    def on_loop_start(self) -> None:
        """Before the first batch of an epoch, or the validation at the end of a run."""

    def on_batch_boundary(self) -> None:
        """After every batch, its validation and its bookkeeping."""


class EpochLoop(BatchLoop):
    """The batches of an epoch."""

    saver: Saver
    pending = False  # the validation after the newest batch was cut short
    due = False  # a validation waits for the end of the step
    was_stopping = False
    validated_step = -1  # whose weights the newest validation has measured

    @property
    def done(self) -> bool:
        """Whether no batch and no validation is left; a run that is asked to stop ends its step first."""
        waits = self.trainer.should_stop and not self.between_steps
        return not self.pending and not waits and super().done

    def reset(self) -> None:
        """Start an epoch, or continue the one of the checkpoint."""
        resumed = self.is_resuming
        self.on_iteration_done()  # nothing is left to infer
        self.val_loop.on_iteration_done()
        if resumed and self.trainer.fit_loop.restarted_mid_epoch:
            settle_progress(self.batch_progress)
            self.logged_batches = self.global_step - (1 if self.pending and self.between_steps else 0)
        else:
            self.pending = False
            super().reset()

    def on_run_start(self, data_fetcher: Any) -> None:
        """Restore the random state of a resumed run, or take the first checkpoint."""
        super().on_run_start(data_fetcher)
        self.saver.on_loop_start()

    def advance(self, data_fetcher: Any) -> None:
        """Train on a batch, unless a validation was cut short, which comes first."""
        if not self.pending:
            super().advance(data_fetcher)

    def should_validate(self, data_fetcher: Any) -> bool:
        """Whether to validate now: between two optimiser steps only."""
        self.due = self.pending or self.due or super().should_validate(data_fetcher)
        if not self.between_steps:
            return False  # until then the weights are those of the step before, and the gradients half of a step's
        validates = self.due or (self.ends_run and self.trainer.enable_validation)
        self.pending = self.due = False
        if validates:
            self.validated_step = self.global_step
        return validates

    def on_advance_end(self, data_fetcher: Any) -> None:
        """Validate where it is time to; then let the saver save or stop."""
        with self.interruptible_validation():
            super().on_advance_end(data_fetcher)
        self.saver.on_batch_boundary()

    def validate_end(self) -> None:
        """Validate what a run ends with, where it was stopped after an epoch's last batch: every other end is due."""
        if not self.trainer.enable_validation or self.validated_step == self.global_step:
            return
        self.saver.on_loop_start()
        self.pending, self.validated_step = False, self.global_step
        with self.interruptible_validation():
            self.trainer.validating = True
            self.val_loop.run()
            self.trainer.training = True
        self.saver.on_batch_boundary()

    @contextlib.contextmanager
    def interruptible_validation(self) -> Iterator[None]:
        """Put back what a validation has changed where a signal cuts it short; it is pending then."""
        try:
            yield
        except ValidationInterrupted:
            self.trainer.training = True
            self.pending, self.validated_step = True, -1
            uncount_batches(self.val_loop.batch_progress)

    def on_save_checkpoint(self) -> dict:
        """Lightning's state, whether a validation was cut short, and whether a callback has stopped the run.

        A Timer stops a resumed run by itself, unless that has more time.
        """
        timers = [callback for callback in self.trainer.callbacks if isinstance(callback, Timer)]  # type: ignore[attr-defined]
        late = any(seconds is not None and seconds <= 0 for seconds in (timer.time_remaining() for timer in timers))
        here = {"pending": self.pending, "should_stop": self.trainer.should_stop and not late}
        return {**super().on_save_checkpoint(), **here, "validated_step": self.validated_step}

    def on_load_checkpoint(self, state_dict: dict) -> None:
        """Continue from what ``on_save_checkpoint`` gave."""
        super().on_load_checkpoint(state_dict)
        self.pending = bool(state_dict.get("pending"))
        self.was_stopping = bool(state_dict.get("should_stop"))
        self.validated_step = state_dict.get("validated_step", -1)


class FitLoop(EpochsLoop):
    """The epochs of a run."""

    epoch_loop: EpochLoop
    mid_epoch = False  # whether the run continues the epoch of its checkpoint

    @property
    def done(self) -> bool:
        """Whether no step is left, and no validation within an epoch."""
        return not (self.epoch_loop.pending and self.mid_epoch) and super().done

    @property
    def skip(self) -> bool:
        """Whether there is nothing to run: a run without a step is validated and saved as any other is."""
        return self.trainer.limit_train_batches == 0

    def reset(self) -> None:
        """Continue within the epoch of a resumed run."""
        torch.set_grad_enabled(True)
        progress: Any = self.epoch_progress.current
        if self.is_resuming and progress.started > progress.processed:
            self.mid_epoch = True
        self.trainer.should_stop = self.trainer.should_stop or (self.is_resuming and self.epoch_loop.was_stopping)

    def on_load_checkpoint(self, state_dict: dict) -> None:
        """Have the loader made anew, so that it goes on where it stood."""
        super().on_load_checkpoint(state_dict)
        self.drop_loader()

    def on_run_start(self) -> None:
        """Check the batches of a step, which ends with its epoch. Raises UsageError where no step would have all."""
        batches, step = self.trainer.num_training_batches, self.trainer.accumulate_grad_batches
        if batches < step and not getattr(self.trainer, "fast_dev_run", False):
            raise UsageError(
                f"a step of trainer.accumulate_grad_batches={step} batches does not fit an epoch of {batches}, with "
                f"which it ends. Set at most {batches}, and larger batches"
            )
        if batches != float("inf") and batches % step and self.trainer.is_global_zero:
            print(f"the last step of each epoch has {batches % step} batches instead of {step}: an epoch has {batches}")
        super().on_run_start()

    def on_run_end(self) -> None:
        """Validate what has not been validated, then end the run."""
        self.epoch_loop.validate_end()
        super().on_run_end()

    def reset_restart_stage(self) -> None:
        """The epoch ends: the next one begins with its first batch."""
        super().reset_restart_stage()
        self.mid_epoch = False

    @property
    def restarted_mid_epoch(self) -> bool:
        """Lightning's name of ``mid_epoch``: whether it continues an epoch without starting it again."""
        return self.mid_epoch


def settle_progress(progress: Any) -> None:
    """Count a processed batch as completed, at whatever moment another callback saved."""
    parts: tuple[Any, Any] = progress.total, progress.current
    for part in parts:
        part.ready = part.started = part.completed = part.processed


def uncount_batches(progress: Any) -> None:
    """Take back the counts of an interrupted validation, which is run again."""
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress.total, name, getattr(progress.total, name) - getattr(progress.current, name))
    progress.reset_on_run()


def install_loops(trainer: Trainer, saver: Saver) -> None:
    """Give a trainer these loops; ``saver`` is called between two batches."""
    replace_loops(trainer, FitLoop, EpochLoop)
    trainer.fit_loop.epoch_loop.saver = saver  # type: ignore[attr-defined]
