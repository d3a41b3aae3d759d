"""TensorBoard's event files without its thread: a disk that fails neither ends nor hangs a run.

TensorBoard's own writer gives up at the first error of a disk, in a thread whose exception appears at a later call or
when the process ends.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import FileWriter, SummaryWriter

from zoo.io import atomic_files
from zoo.logging.best_effort import BestEffort

EVENTS = "events.out.tfevents.*"
SECONDS = 5.0  # between two flushes
FIRST_RECORDS = 4  # the version of the format, and what a logger begins with
_numbers = itertools.count()


class EventLog:
    """An event writer for torch: appends events to one file in order, and holds them back while the disk fails."""

    def __init__(self, folder: Path, prepare: Callable[[], None] = lambda: None) -> None:
        """``prepare`` is called before the first event: until then nothing in ``folder`` changes."""
        self.folder, self.prepare = folder, prepare
        self.log: atomic_files.Log | None = None
        self._records = RecordWriter(self)
        self._flushed = time.monotonic()

    def _begin(self) -> atomic_files.Log:
        """Create the file."""
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        # TensorBoard reads files in the order of their names, which begin with the second: a clock that was set back
        # would change the order, and the same second and process number would name the same file
        begin = following_second(path.name for path in folder.glob(EVENTS))
        stamp = f"{begin:010d}.{platform.node()}.{os.getpid()}.{next(_numbers)}"
        self.log = log = atomic_files.Log(folder / f"events.out.tfevents.{stamp}")
        self.effort = BestEffort(
            f"TensorBoard's event file in {folder}",
            "what was logged since then is missing from it",
            "what was logged in between has been added",
        )
        self.add_event(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        self.flush()
        return log

    def get_logdir(self) -> str:
        """The folder."""
        return str(self.folder)

    def write(self, record: bytes) -> None:
        """Append a packed record."""
        (self.log or self._begin()).append(record)

    def add_event(self, event: Any) -> None:
        """Hold an event for the next flush, which is soon."""
        self._records.write(event.SerializeToString())
        if time.monotonic() - self._flushed > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all events to the file, or warn that the disk fails."""
        self._flushed = time.monotonic()
        if self.log is not None:
            with self.effort.attempt():
                self.log.flush()

    def close(self) -> None:
        """Flush a last time and close; warns of events that are missing."""
        if self.log is None:
            return
        self.flush()
        self.log.close()
        self.effort.end()
        if self.log.lost_records:
            atomic_files.warn(
                f"{self.log.lost_records:,} events did not fit into memory and are missing from {self.log.path}"
            )

    def reopen(self) -> None:
        """Nothing: the next event opens a closed file again."""


class Events(SummaryWriter):
    """torch's SummaryWriter on an EventLog."""

    file_writer: Any
    all_writers: Any

    def __init__(self, folder: str, prepare: Callable[[], None] = lambda: None) -> None:
        """``prepare`` is called before the first event."""
        self.prepare = prepare
        super().__init__(folder)

    def add_summary(self, summary: Any, step: int | None = None) -> None:
        """Write a Summary message of TensorBoard unchanged."""
        self._get_file_writer().add_summary(summary, step)

    def _get_file_writer(self) -> Any:
        if self.all_writers is None or self.file_writer is None:
            self.file_writer = _File(self.log_dir, self.prepare)
            self.all_writers = {self.file_writer.get_logdir(): self.file_writer}
        return self.file_writer


class _File(FileWriter):
    """torch's packing of summaries into events."""

    def __init__(self, folder: str, prepare: Callable[[], None]) -> None:
        self.event_writer = EventLog(Path(folder), prepare)


def replace_in_record(path: Path, old: bytes, new: bytes) -> None:
    """Replace bytes by as many others in the record that has them among the first of a file, whose length stays."""
    with path.open("r+b") as file:
        for _ in range(FIRST_RECORDS):
            content = file.read(int.from_bytes(file.read(12)[:8], "little"))
            if old in content:
                content = content.replace(old, new)
                file.seek(-len(content), os.SEEK_CUR)
                file.write(content + masked_crc32c(content).to_bytes(4, "little"))
                return
            file.seek(4, os.SEEK_CUR)


def following_second(names: Iterable[str]) -> int:
    """The second for the name of the next event file: the present one, or the one after the latest of ``names``."""
    return max([int(time.time()), *(second(name) + 1 for name in names)])


def second(name: str) -> int:
    """The second in the name of an event file; 0 for other files."""
    part = (name.removeprefix(EVENTS.rstrip("*")).split(".") or [""])[0]
    return int(part) if part.isdecimal() else 0
