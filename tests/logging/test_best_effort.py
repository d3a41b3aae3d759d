"""What is only a record of a run: a disk that refuses it costs a warning, not the run."""

import errno
import json
import os

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.test_resume import fit
from zoo.errors import StorageError
from zoo.io import atomic_files
from zoo.logging.best_effort import BestEffort
from zoo.logging.run_record import Ledger
from zoo.logging.tensorboard import EVENTS, RunLogger


@pytest.fixture
def refused(monkeypatch):
    """Names; a file whose name has one of them cannot be opened for writing, nor written, while the set holds it."""
    names = set()
    opened, real_write = os.open, os.write
    path_open = atomic_files.Path.open

    def check(path):
        if any(name in str(path) for name in names):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def open_path(self, mode="r", *args, **kwargs):
        if mode != "r":
            check(self)
        return path_open(self, mode, *args, **kwargs)

    def open_os(path, flags, *args, **kwargs):
        if flags & os.O_WRONLY:
            check(path)
        return opened(path, flags, *args, **kwargs)

    def write(handle, content):
        check(os.readlink(f"/proc/self/fd/{handle}"))
        return real_write(handle, content)

    monkeypatch.setattr(atomic_files.Path, "open", open_path)
    monkeypatch.setattr(os, "open", open_os)
    monkeypatch.setattr(os, "write", write)
    return names


def scalars(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("a")]


def test_a_failure_is_said_once_and_again_when_it_works(capsys):
    effort = BestEffort("the file", "its end is missing", "nothing is missing")
    for fails in (True, True, False, False, True):
        with effort.attempt():
            if fails:
                raise OSError(errno.EIO, "broken", "file")
    effort.end()
    effort.end()
    message = capsys.readouterr().err.splitlines()
    assert [("cannot" in line, "again: nothing" in line, "until the end: its end" in line) for line in message] == [
        (True, False, False), (False, True, False), (True, False, False), (False, False, True),
    ]  # fmt: skip


def test_a_mistake_is_no_failure_of_a_disk():
    with pytest.raises(KeyError), BestEffort("a", "b", "c").attempt():
        raise KeyError("x")


def test_events_wait_while_the_disk_is_full_and_are_there_once(tmp_path, refused, capsys):
    logger = RunLogger(tmp_path, "a/b", {})
    for step in range(6):
        refused.clear()
        if step in (0, 2, 3):
            refused.add("tfevents")
        logger.log_metrics({"a": float(step)}, step)
        logger.mark()
    logger.finalize("success")
    assert scalars(tmp_path) == [(step, float(step)) for step in range(6)]
    message = capsys.readouterr().err
    assert (message.count("cannot be written"), message.count("can be written again")) == (2, 2)


def test_events_that_a_disk_never_took_are_said_at_the_end(tmp_path, refused, capsys):
    refused.add("tfevents")
    logger = RunLogger(tmp_path, "a/b", {})
    for step in range(50):
        logger.log_metrics({"a": 1.0}, step)
    logger.finalize("success")
    assert not list(tmp_path.glob(EVENTS))
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_run_without_its_record_is_trained_and_says_what_is_missing(tmp_path, refused, capsys):
    refused.add("ledger.json")
    ends = [fit("lm", tmp_path / "a", [Ledger(tmp_path / "a", {})])[0]]
    message = capsys.readouterr().err
    assert message.count("cannot be written") == 1
    assert "ledger.json" in message
    assert "could not be written until the end" in message
    assert not (tmp_path / "a/ledger.json").exists()
    refused.clear()
    ends.append(fit("lm", tmp_path / "b", [Ledger(tmp_path / "b", {})])[0])
    assert ends[0] == ends[1]
    assert json.loads((tmp_path / "b/ledger.json").read_text())["finished"]


def test_what_was_logged_after_a_checkpoint_must_be_removable(tmp_path, monkeypatch):
    first = RunLogger(tmp_path, "a/b", {})
    first.log_metrics({"a": 1.0}, 1)
    logged = first.mark()
    first.log_metrics({"a": 2.0}, 2)
    first.finalize("failed")

    def truncate(path, length):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "truncate", truncate)
    with pytest.raises(StorageError, match="read-only"):
        RunLogger(tmp_path, "a/b", {}, logged).log_metrics({"a": 3.0}, 2)
    monkeypatch.undo()
    again = RunLogger(tmp_path, "a/b", {}, logged)
    again.log_metrics({"a": 3.0}, 2)
    again.finalize("success")
    assert scalars(tmp_path) == [(1, 1.0), (2, 3.0)]
