"""TensorBoard for comparing variants: one row of HParams per variant, one column per part."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

from zoo.console import printable
from zoo.errors import StorageError
from zoo.io import atomic_files
from zoo.logging.event_files import EVENTS, Events

LAYOUT = {
    "quality": {
        "loss": ["Multiline", ["val/loss", "train/loss"]],
        "by tokens seen": ["Multiline", ["val_by_tokens/.*"]],
        "best so far": ["Multiline", ["best/.*"]],
    },
    "cost": {"speed": ["Multiline", ["cost/tokens_per_s"]], "memory": ["Multiline", ["cost/peak_memory_mb"]]},
}


class RunLogger(TensorBoardLogger):
    """Writes one run into its folder.

    ``variant`` names what the seeds of one variant share: TensorBoard's HParams page shows one row for it, with the
    mean over its seeds. ``choices`` are its hyper-parameters, a part as one value.
    """

    def __init__(
        self, folder: Path, variant: str, choices: dict[str, str | float | bool], logged: dict[str, int] | None = None
    ):
        """``logged`` is what ``mark`` gave when the checkpoint was taken that a run goes on from.

        What was logged after that is cut off, when something is about to be logged: until then a run that has nothing
        left to do, or that another process is writing, stays as it is. TensorBoard's own way, purge_step, would also
        forget what was logged before it by another measure than steps.
        """
        super().__init__(save_dir=folder, name="", version="", default_hp_metric=False)
        self.variant, self.open, self.folder = printable(variant), False, folder
        self.choices = {
            printable(name): printable(value) if isinstance(value, str) else value for name, value in choices.items()
        }
        self.logged = logged
        self._events: Events | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> Events:
        """The writer, which survives a disk that fails; the first time it cuts off what a resume logs again."""
        if self._events is None:
            if self.logged is not None:
                self._cut(self.logged)
            self._events = Events(self.log_dir)
        return self._events

    def _cut(self, logged: dict[str, int]) -> None:
        """Raises StorageError: events that stayed would say other things than the run that follows."""
        try:
            for path in self.folder.glob(EVENTS):
                if path.name not in logged:
                    path.unlink()
                elif path.stat().st_size > logged[path.name]:
                    os.truncate(path, logged[path.name])
        except OSError as error:
            raise StorageError(
                "what was logged after the checkpoint cannot be removed from the event files: "
                f"{atomic_files.reason(error)}"
            ) from error

    @rank_zero_only
    def mark(self) -> dict[str, int]:
        """The length of each file of events, all of which is given to the operating system."""
        self.experiment.flush()
        return {path.name: path.stat().st_size for path in self.folder.glob(EVENTS)}

    def _start(self) -> None:
        """Announce the run. No experiment is declared: TensorBoard would take the columns of the first run for all."""
        self._add(summary_v2.hparams_pb(self.choices, trial_id=self.variant))
        self.experiment.add_custom_scalars(LAYOUT)
        self.open = True

    @rank_zero_only
    def log_hyperparams(self, params: Any = None, metrics: Any = None, step: int | None = None) -> None:
        """Nothing: the first metrics announce what differs between variants, and Lightning would add the rest."""

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Scalars at an optimiser step; Lightning's chart of the epoch number is left out."""
        if not self.open:
            self._start()
        scalars = {name: value for name, value in metrics.items() if name != "epoch"}
        if scalars:
            super().log_metrics(scalars, step)

    def save(self) -> None:
        """Nothing: the run's folder has its configuration already, and an empty hparams.yaml says less."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the session with what became of it."""
        if self.open:
            self._add(session_end(api_pb2.STATUS_SUCCESS if status == "success" else api_pb2.STATUS_FAILURE))
            self.open = False
        if self._events is not None:
            self._events.close()

    def _add(self, event: Any) -> None:
        self.experiment.add_summary(event)
        self.experiment.flush()


def session_end(status: int) -> Summary:
    """TensorBoard's own function for this message imports TensorFlow."""
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    content = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    event = Summary()
    event.value.add(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(content),
        tensor=metadata.NULL_TENSOR,
    )
    return event
