"""A folder has one writer; what stands in the way is said. Shared locks: tests/compare/test_parallel_runs.py."""

import errno
import json
import os

import pytest
from filelock import FileLock

from zoo.errors import StorageError, UsageError
from zoo.io.locks import Lock, RunLock


def test_one_writer_per_folder(tmp_path):
    folder = tmp_path / "runs/lm/s1"
    mine = RunLock(folder)
    child = os.fork()
    if not child:
        try:
            RunLock(folder)
        except UsageError as error:
            os._exit(0 if f"process {os.getppid()}" in str(error) and "--name" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    mine.release()
    child = os.fork()
    if not child:
        RunLock(folder)
        os._exit(0)  # dies with it
    os.waitpid(child, 0)
    assert json.loads((tmp_path / "runs/lm/.s1.holder").read_text())["pid"] == child
    RunLock(folder).release()


def test_a_note_that_cannot_be_read_names_no_process(tmp_path):
    folder = tmp_path / "s1"
    lock = RunLock(folder)
    lock.note.write_text("half a no")
    with pytest.raises(UsageError, match="is being written by another process"):
        RunLock(folder)
    lock.release()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "Read-only file system. Choose another place: --runs DIR"),
        (NotImplementedError(), "has no locks. Choose another place: --runs DIR"),
    ],
)
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, error, text):
    def acquire(self, timeout):
        raise error

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(UsageError, match=text):
        RunLock(tmp_path / "s1")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EINVAL, "Invalid argument"), "Invalid argument"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
        (NotImplementedError("flock"), "has no locks"),
    ],
)
def test_a_shared_lock_that_the_file_system_refuses_is_named(tmp_path, monkeypatch, error, text):
    def acquire(self, *args, **kwargs):
        raise error

    monkeypatch.setattr(FileLock, "acquire", acquire)
    lock = Lock(tmp_path / "s1.lock")
    with pytest.raises(StorageError, match=rf"\.locks cannot be locked: .*{text}"):
        lock.acquire()
    lock.release()  # of a lock that is not held: nothing to do
