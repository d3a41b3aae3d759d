"""One writer per run folder: a second process is refused, and a lock that nobody holds any more stops nobody."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path

from filelock import FileLock, Timeout

from zoo.errors import UsageError
from zoo.io import atomic_files


class RunLock:
    """The right to write into a folder, until ``release`` or the end of the process, however it ends.

    The lock is a file beside the folder, so that it outlives ``--overwrite``; the operating system frees it when its
    holder dies, and the file that stays then says nothing.
    """

    def __init__(self, folder: Path) -> None:
        """Raises UsageError that names the process which holds it."""
        self.path = folder.with_name(f".{folder.name}.lock")
        note = self.path.with_suffix(".holder")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(self.path)
            self.lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(
                f"{folder} is being written by {_holder(note)}.\nWait for it, end it, or keep both: --name NAME."
            ) from error
        except OSError as error:
            raise UsageError(
                f"cannot make {folder}: {error.strerror or error}. Choose another place: --runs DIR"
            ) from error
        except NotImplementedError as error:
            raise UsageError(f"the file system of {folder} has no locks. Choose another place: --runs DIR") from error
        self.note = note
        with contextlib.suppress(OSError):  # without it a second process is refused all the same
            atomic_files.write_json(note, {"pid": os.getpid(), "host": platform.node(), "since": time.time()})

    def release(self) -> None:
        """Let others write."""
        with contextlib.suppress(OSError):
            self.note.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it ends with the process in any case
            self.lock.release()


def _holder(note: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(note.read_text())
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(content["since"])))
        return f"process {int(content['pid'])} on {str(content['host'])[:80]} since {since}"
    return "another process"
