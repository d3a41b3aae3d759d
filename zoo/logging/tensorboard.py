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
from zoo.logging.event_files import EVENTS, Events, replace_in_record
from zoo.logging.trackers import FIGURES

CHOICES = metadata.SESSION_START_INFO_TAG.encode()
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

    ``variant`` is the name that all seeds of one variant share: TensorBoard's HParams page has one row for it, with the
    mean over its seeds, and shows the first 15 characters of the name. ``choices`` are its hyper-parameters, a part as
    one value.
    """

    def __init__(
        self, folder: Path, variant: str, choices: dict[str, str | float | bool], logged: dict[str, int] | None = None
    ):
        """``logged``: bytes of each event file at the checkpoint that a run resumes from, as ``mark`` returned them.

        Later events are cut off just before the first new one is written: until then a run that has nothing left to do,
        or that another process is writing, stays as it is. TensorBoard's own way, purge_step, would also remove earlier
        points whose x-axis is tokens instead of steps.
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
        """The writer, which survives a failing disk."""
        if self._events is None:
            self._events = Events(self.log_dir, self._truncate_events)
        return self._events

    def _truncate_events(self) -> None:
        """Truncate event files to ``logged``, and rename their choices: TensorBoard keeps a tag's first content.

        Raises StorageError where that fails: later events would be wrong.
        """
        logged = self.logged
        if logged is None:
            return
        try:
            for path in self._files():
                if path.name not in logged:
                    path.unlink()
                elif path.stat().st_size > logged[path.name]:
                    os.truncate(path, logged[path.name])
                if path.match(EVENTS) and path.name in logged:
                    replace_in_record(path, CHOICES, CHOICES.replace(b"info", b"past"))
        except OSError as error:
            raise StorageError(
                "what was logged after the checkpoint cannot be removed from the event files or from metrics.csv: "
                f"{atomic_files.reason(error)}"
            ) from error
        self.logged = None

    @rank_zero_only
    def mark(self) -> dict[str, int]:
        """Flush, and return the length in bytes of each event file by its name."""
        if self.logged is not None:  # nothing was logged since the checkpoint
            return self.logged
        self.experiment.flush()
        return {path.name: path.stat().st_size for path in self._files()}

    def _files(self) -> list[Path]:
        """The event files, and the figures as CSV where there are any."""
        return [*self.folder.glob(EVENTS), *self.folder.glob(FIGURES)]

    def _start(self) -> None:
        """Write choices and layout. No HParams experiment is declared: its columns would be those of the first run."""
        self._add(summary_v2.hparams_pb(self.choices, trial_id=self.variant))
        self.experiment.add_custom_scalars(LAYOUT)
        self.open = True

    @rank_zero_only
    def log_hyperparams(self, params: Any = None, metrics: Any = None, step: int | None = None) -> None:
        """Nothing: the first metrics write the choices of the variant, and Lightning would add every other option."""

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Scalars at an optimiser step; Lightning's chart of the epoch number is left out."""
        if not self.open:
            self._start()
        scalars = {name: value for name, value in metrics.items() if name != "epoch"}
        if scalars:
            super().log_metrics(scalars, step)

    def save(self) -> None:
        """Nothing: config.yaml in the run's folder holds more than Lightning's hparams.yaml."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write how the run ended, and close the writer."""
        if self.open:
            self._add(session_end(api_pb2.STATUS_SUCCESS if status == "success" else api_pb2.STATUS_FAILURE))
            self.open = False
        if self._events is not None:
            self._events.close()

    def _add(self, event: Any) -> None:
        self.experiment.add_summary(event)
        self.experiment.flush()


def session_end(status: int) -> Summary:
    """The HParams event that a run has ended with ``status``; TensorBoard's own function for it imports TensorFlow."""
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    content = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    event = Summary()
    event.value.add(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(content),
        tensor=metadata.NULL_TENSOR,
    )
    return event
