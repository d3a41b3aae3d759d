"""The private names of Lightning that zoo needs, all of them; tests/training/test_lightning_internals.py watches each.

Each class and function says which name it stands for and why no public one does. The rest of zoo derives from these
classes and calls these functions.
"""

from __future__ import annotations

from typing import Any, Protocol

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from zoo.errors import UsageError


class BatchLoop(_TrainingEpochLoop):
    """Lightning's loop over the batches of an epoch, which no public class or hook lets save between two of them."""

    @property
    def between_steps(self) -> bool:
        """Whether no gradient waits for an optimiser step: `_should_accumulate`, which knows strategy and epoch."""
        return not self._should_accumulate()

    @property
    def logged_batches(self) -> int:
        """What Lightning's own logging counts: `_batches_that_stepped`."""
        return self._batches_that_stepped

    @logged_batches.setter
    def logged_batches(self, count: int) -> None:
        """Set the count."""
        self._batches_that_stepped = count

    def should_validate(self, data_fetcher: Any) -> bool:
        """Whether to validate after this batch; a subclass may decide otherwise (`_should_check_val_fx`)."""
        return super()._should_check_val_fx(data_fetcher)

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        return self.should_validate(data_fetcher)

    @property
    def ends_run(self) -> bool:
        """Whether the run ends after this batch: by steps, by epochs, or as a callback asks (`_can_stop_early`)."""
        epochs: Any = self.trainer.fit_loop
        by_steps = -1 < self.max_steps <= self.global_step
        by_epochs = -1 < (epochs.max_epochs or -1) <= epochs.epoch_progress.current.processed + 1
        by_request = bool(self.trainer.should_stop and epochs._can_stop_early)
        return by_steps or by_request or (by_epochs and self._num_ready_batches_reached())

    def _broadcast_sigterm_tensor(self) -> None:
        """Nothing: Lightning asks the first process before each step; zoo's saver lets all of them agree instead."""


class Fetcher(_PrefetchDataFetcher):
    """Lightning's fetcher of batches, `_PrefetchDataFetcher`, for loaders that say themselves if more follows.

    Without a length it would fetch one batch ahead, which the loader's state would count as trained on.
    """

    def __init__(self) -> None:
        super().__init__(prefetch_batches=0)

    def __next__(self) -> Any:
        batch = super().__next__()
        self.done = self.done or not all(loader.has_more for loader in self.combined_loader.flattened)
        return batch


class EpochsLoop(_FitLoop):
    """Lightning's loop over epochs; its class is private, and it alone makes the loop over batches."""

    fetcher: Any = None

    def drop_loader(self) -> None:
        """Have the next `setup_data` make the loader, which `_combined_loader` holds once steps have been counted.

        Lightning gives the state of a checkpoint only to a loader that it makes after it has read the checkpoint.
        """
        self._combined_loader = None

    @property
    def _data_fetcher(self) -> Any:
        """The fetcher of batches, `_data_fetcher`, that Lightning has chosen; no argument of its loop chooses one."""
        return self.fetcher

    @_data_fetcher.setter
    def _data_fetcher(self, fetcher: Any) -> None:
        loaders = self._combined_loader.flattened if self._combined_loader is not None else []
        without_length = loaders and all(hasattr(loader, "has_more") for loader in loaders)
        self.fetcher = Fetcher() if fetcher is not None and without_length else fetcher


def replace_loops(trainer: Trainer, epochs: type[EpochsLoop], batches: type[BatchLoop]) -> None:
    """Make a trainer's loops those of other classes; they keep what Lightning has put into them.

    `Trainer.fit_loop` can be set in public, but a new loop would not have the limits that Trainer's constructor sets.
    """
    trainer.fit_loop.__class__ = epochs
    trainer.fit_loop.epoch_loop.__class__ = batches


def option_between_validations(callback: ModelCheckpoint | EarlyStopping, trainer: Trainer) -> str:
    """The option with which a callback looks at its figure when no validation has just measured it; empty without any.

    `_every_n_train_steps`, `_train_time_interval`, `_save_on_train_epoch_end`, `_check_on_train_epoch_end`: the options
    have no public attribute, and a subclass may set them where no configuration shows them.
    """
    after_each_epoch = trainer.check_val_every_n_epoch == 1 and trainer.val_check_interval == 1.0
    if isinstance(callback, EarlyStopping):
        return "check_on_train_epoch_end" if callback._check_on_train_epoch_end and not after_each_epoch else ""
    if callback._every_n_train_steps:
        return "every_n_train_steps"
    if callback._train_time_interval is not None:
        return "train_time_interval"
    return "save_on_train_epoch_end" if callback._save_on_train_epoch_end and not after_each_epoch else ""


class SignalHandlers(Protocol):
    """What a trainer requires of its signal handlers."""

    received_sigterm: bool

    def register_signal_handlers(self) -> None:
        """Handle signals from now on."""

    def teardown(self) -> None:
        """Put back the handlers that were there before."""


def replace_signal_handlers(trainer: Trainer, handlers: SignalHandlers) -> None:
    """Let a trainer register these handlers in the place of its own.

    `Trainer._signal_connector`: a public hook comes either before Lightning's handlers, which then take the place of
    its own, or after the moment in which a signal already has reached them.
    """
    trainer._signal_connector = handlers  # type: ignore[assignment]


class ScriptLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher of processes, `_SubprocessScriptLauncher`: a strategy makes it, and takes no other."""

    def start_children(self) -> None:
        """Start one process for each further device: `_call_children_scripts`.

        The public `launch` starts, beside them, an observer that kills the first process too, whatever that writes.
        """
        self._call_children_scripts()


def replace_launcher(strategy: Strategy, launcher: type[ScriptLauncher]) -> None:
    """Make a strategy's launcher of processes, if it has Lightning's, one of another class.

    Raises UsageError where it is Lightning's `_MultiProcessingLauncher`, whose processes hand back weights alone.
    """
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        raise UsageError(
            "'trainer.strategy' starts processes by spawn or fork, which leaves the figures of a run in them. "
            "Take ddp, which starts the command once for each device."
        )
    if type(strategy.launcher) is _SubprocessScriptLauncher:
        strategy.launcher.__class__ = launcher
