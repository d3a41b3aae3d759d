"""The only place that writes files, atomically: after a kill a name holds the old content or the new, never a part.

Everything is written as a draft, ``.<name>.<number>.partial`` beside its place, forced to the disk and renamed. An
error is an OSError that names the file; ``storage_fault`` finds it below the exceptions of libraries.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PARTIAL = ".partial"
DRAFT = re.compile(r"\.?(.+)\.\d+\.partial")
BLOCK = 1 << 20
WAITING = 32 * BLOCK  # bytes that a log holds in memory while its disk does not take them
NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}  # errors of a file system without fsync
# errors of a disk, whatever the operation
STORAGE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.EFBIG, errno.ENXIO, errno.ENODEV),
    *(errno.ETIMEDOUT, errno.ENOTCONN, errno.ENOLCK, errno.EHOSTDOWN, errno.EREMOTEIO),
}  # fmt: skip
# errors of a disk about one file
ABOUT_A_FILE = {errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOTSUP, errno.EBUSY, errno.EMFILE, errno.ENFILE}
HINTS = {
    errno.ENOSPC: "free some space", errno.EDQUOT: "free some of your quota",
    errno.EROFS: "the file system is read-only", errno.EACCES: "the folder is not yours to write",
    errno.EPERM: "the folder is not yours to write", errno.ESTALE: "the file server has lost it: try again",
    errno.EIO: "the disk or the file server fails: try again, or use another",
}  # fmt: skip
_without_fsync: list[str] = []  # the first folder whose file system has no fsync


class HashingFile:
    """A file open for writing that computes the sha256 and the length of its content."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sha256, self.bytes = file, hashlib.sha256(), 0
        self.failed: OSError | None = None  # the error of a write, whatever a library raises for it

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


def draft_of(path: Path) -> Path:
    """The path of the draft of a file or folder, different for each process of each machine.

    Raises OSError for a folder without a name, and for a device or pipe, which a rename would replace by a file.
    """
    if not path.name:  # "." and "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileExistsError(errno.EEXIST, "this is a device or a pipe, not a file", str(path))
    return path.with_name(f".{path.name}.{os.getpid()}{zlib.crc32(platform.node().encode()):010d}{PARTIAL}")


@contextlib.contextmanager
def open_draft(path: Path) -> Iterator[tuple[Path, HashingFile]]:
    """A draft beside ``path``, where a rename is one step, and on the disk when the block ends; removed on an error.

    Raises OSError, which names ``path``, where the disk refuses it.
    """
    draft = draft_of(path)
    hashed = None
    try:
        with draft.open("wb", buffering=BLOCK) as file:
            hashed = HashingFile(file)
            yield draft, hashed
            file.flush()
            _fsync(file.fileno(), draft)
    except BaseException as error:
        _remove(draft)
        if hashed is not None and hashed.failed and isinstance(error, RuntimeError):
            _name(hashed.failed, path)
            raise hashed.failed from error  # torch.save then fails to close its archive, and reports that
        _name(error, path)
        raise


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Replace a file by means of a library that opens files itself: it writes the draft whose path this yields.

    Raises OSError, which names ``path``, where the disk refuses it.
    """
    draft = draft_of(path)
    try:
        yield draft
        sync_to_disk(draft)
    except BaseException as error:
        _remove(draft)
        fault = storage_fault(error)
        if fault is None:
            raise
        _name(fault, path)
        raise fault from error
    publish_draft(draft, path)


def publish_draft(draft: Path, path: Path) -> None:
    """Rename a draft to its final name, and wait until the disk holds that."""
    try:
        os.replace(draft, path)
    except BaseException as error:
        _remove(draft)
        _name(error, path)
        raise
    sync_to_disk(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content."""
    with open_draft(path) as (draft, file):
        file.write(content)
    publish_draft(draft, path)


def create(path: Path, content: bytes) -> bool:
    """Write a file that must not exist, on any file system; False where it does."""
    try:
        with path.open("xb") as file:
            try:
                file.write(content)
                file.flush()
            except BaseException:
                _remove(path)
                raise
    except FileExistsError:
        return False
    except OSError as error:
        _name(error, path)
        raise
    return True


def discard(folder: Path) -> None:
    """Remove a folder at once for all readers; what cannot be removed now stays under the name of a draft."""
    for draft in folder.parent.glob(f".{folder.name}.*{PARTIAL}"):
        shutil.rmtree(draft, ignore_errors=True)
    draft = draft_of(folder)
    os.replace(folder, draft)
    shutil.rmtree(draft, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file's content by UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object, indent: int | None = 1, end: str = "") -> None:
    """Replace a file's content by JSON."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=indent) + end).encode())


def copy(source: Path, path: Path) -> None:
    """Replace a file's content by another's."""
    with source.open("rb") as content, open_draft(path) as (draft, file):
        while block := content.read(BLOCK):
            file.write(block)
    publish_draft(draft, path)


def link_file(source: Path, path: Path) -> None:
    """Give a file a second name, which may exist; a copy where the file system has no links."""
    draft = draft_of(path)
    try:
        draft.unlink(missing_ok=True)
        os.link(source, draft)
    except OSError:
        copy(source, path)
        return
    publish_draft(draft, path)
    _remove(draft)  # a rename between two names of one file does nothing, and leaves both


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Replace a folder by the one that the block fills, whose path this yields."""
    draft = draft_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        yield draft
        for file in [*sorted(draft.iterdir()), draft]:
            sync_to_disk(file)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)
        sync_to_disk(folder.parent)
    except BaseException as error:
        _name(error, folder)
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def replace_files(folder: Path, last: str, replaced: str = "") -> Iterator[Path]:
    """Add files to a folder, or replace them there, all or none: the block writes them to the path yielded, perhaps in
    folders of it.

    The folder is worth nothing without ``last``, which is removed first and written last: what is killed in between
    leaves no mixture of old files and new. Files that match the pattern ``replaced`` are removed, too.
    """
    draft = draft_of(folder / "all")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(folder)
        draft.mkdir()
        try:
            yield draft
            names = [file.relative_to(draft) for file in draft.rglob("*") if file.is_file()]
            for name in names:
                sync_to_disk(draft / name)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / last).unlink(missing_ok=True)
            for old in folder.glob(replaced) if replaced else ():
                old.unlink()
            for name in sorted(names, key=lambda name: str(name) == last):
                os.replace(draft / name, folder / name)
            for place in {folder / name.parent for name in names} | {folder}:
                sync_to_disk(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except BaseException as error:
        _name(error, folder, draft)
        raise


def sync_to_disk(path: Path) -> None:
    """Wait until the disk holds a file, or the names in a folder."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            _fsync(handle, path)
        finally:
            os.close(handle)
    except OSError as error:
        _name(error, path)
        raise


def remove_drafts(folder: Path) -> int:
    """Remove the drafts of a killed process from a folder that only this process writes to; their number."""
    drafts = [path for path in folder.glob(f"*{PARTIAL}") if DRAFT.fullmatch(path.name)]
    for path in drafts:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            _remove(path)
    return len(drafts)


class Log:
    """An append-only file; records wait in memory while its disk fails, and are lost only beyond WAITING bytes."""

    def __init__(self, path: Path) -> None:
        self.path, self.length = path, 0  # bytes that were written to the file
        self.waiting, self.lost_records = bytearray(), 0
        self._handle: int | None = None

    def append(self, record: bytes) -> None:
        """Keep a record for the next flush; one that exceeds WAITING bytes is dropped and counted."""
        if len(self.waiting) + len(record) > WAITING:
            self.lost_records += 1
        else:
            self.waiting += record

    def flush(self) -> None:
        """Write the waiting records to the file. Raises OSError that names the file; nothing is written twice."""
        try:
            while self.waiting:
                if self._handle is None:
                    self._handle = os.open(self.path, os.O_WRONLY | (0 if self.length else os.O_CREAT), 0o644)
                    os.lseek(self._handle, self.length, os.SEEK_SET)
                count = os.write(self._handle, self.waiting[:BLOCK])
                self.length += count
                del self.waiting[:count]
        except OSError as error:
            self.close()
            _name(error, self.path)
            raise

    def close(self) -> None:
        """Close the file; a later flush opens it again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.close(handle)


def storage_fault(error: BaseException | None) -> OSError | None:
    """The OSError of a disk that caused an error, whatever libraries raised for it; None for any other error."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        if isinstance(error, OSError) and not isinstance(error, (ConnectionError, ChildProcessError)):
            if error.errno in STORAGE or (error.errno in ABOUT_A_FILE and error.filename is not None):
                return error
            if error.errno is None and re.search(r"\d+ requested and \d+ written", str(error)):  # numpy
                return OSError(errno.EIO, "it took only a part of what was written")
        # libraries in Rust, such as safetensors and tokenizers, have exceptions of their own
        elif number := re.search(r"\(os error (\d+)\)", str(error)):
            code = int(number[1])
            if code in STORAGE | ABOUT_A_FILE:
                return OSError(code, os.strerror(code))
        error = error.__cause__ or error.__context__
    return None


def reason(error: OSError, place: Path | str = "") -> str:
    """Why a file could not be written, and what would help: ``No space left on device (FILE): free some space``."""
    name = error.filename if isinstance(error.filename, (str, os.PathLike)) else place
    hint = HINTS.get(error.errno or 0)
    return f"{error.strerror or error}" + (f" ({name})" if str(name) else "") + (f": {hint}" if hint else "")


def warn(text: str) -> None:
    """Print a warning to standard error, if that is possible."""
    with contextlib.suppress(OSError, ValueError):
        print(f"warning: {text}", file=sys.stderr, flush=True)


def _fsync(handle: int, path: Path) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_FSYNC:
            raise
        if not _without_fsync:
            _without_fsync.append(str(path))
            warn(
                f"the file system of {path.parent} has no fsync ({error.strerror}): files there are whole or "
                "not there, but the newest may be lost by a power cut"
            )


def _remove(draft: Path) -> None:
    """Remove a draft if possible; ``remove_drafts`` removes it later otherwise."""
    with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)


def _name(error: BaseException, path: Path, draft: Path | None = None) -> None:
    """Let the error of a disk name the file that it is about, not its draft."""
    if not isinstance(error, OSError) or error.errno is None:
        return
    name = error.filename
    about = path if name is None or isinstance(name, int) else Path(os.fsdecode(name))
    if draft is None and path.name:  # the working folder has none
        draft = draft_of(path)
    if draft is not None and draft in about.parents:
        about = path / about.relative_to(draft)
    elif DRAFT.fullmatch(about.name):
        about = path
    if error.filename2 is not None:
        del error.filename2
    error.filename = str(about)
