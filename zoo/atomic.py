"""Write files so that whatever kills the process, a name holds the old content or the new one, never a part of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PARTIAL = ".partial"


class Hashed:
    """A file open for writing that knows the sha256 and the length of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sha256, self.bytes = file, hashlib.sha256(), 0
        self.failed: OSError | None = None  # why a write failed, whatever a writer makes of it

    def write(self, content: bytes | memoryview) -> int:
        """Append, as a file does."""
        self.sha256.update(content)
        self.bytes += len(content)
        try:
            return self.file.write(content)
        except OSError as error:
            self.failed = error
            raise

    def flush(self) -> None:
        """As a file does."""
        self.file.flush()


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[tuple[Path, Hashed]]:
    """A draft beside ``path``, where a rename is one step, and on the disk when the block ends; removed on an error."""
    draft = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    hashed = None
    try:
        with draft.open("wb") as file:
            hashed = Hashed(file)
            yield draft, hashed
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if hashed is not None and hashed.failed and isinstance(error, RuntimeError):
            raise hashed.failed from error  # torch.save tries to end its archive then, and complains of that
        raise


def publish(draft: Path, path: Path) -> None:
    """Give a draft its name, and wait until the disk knows it."""
    try:
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write(path: Path, content: bytes) -> None:
    """Replace a file's content."""
    with drafted(path) as (draft, file):
        file.write(content)
    publish(draft, path)


def link(source: Path, path: Path) -> None:
    """Give a file a second name, which may exist; a copy where the file system knows no links."""
    draft = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    draft.unlink(missing_ok=True)
    try:
        os.link(source, draft)
    except OSError:
        write(path, source.read_bytes())
        return
    publish(draft, path)
    draft.unlink(missing_ok=True)  # a rename between two names of one file does nothing, and leaves both


def sync(path: Path) -> None:
    """Wait until the disk holds a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> int:
    """Remove the drafts that a killed process left in a folder of which we are the only writer; how many they were."""
    left = list(folder.glob(f".*{PARTIAL}"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)
