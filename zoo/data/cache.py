"""The cache of prepared data: each entry is a folder named after the digest of its inputs.

Entries are in the folder of the environment variable ZOO_CACHE, or in ``~/.cache/zoo``. If that cannot be written, they
are in a temporary folder that is removed when the process ends.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from filelock import FileLock

from zoo.errors import StorageError
from zoo.io import atomic_files
from zoo.io.cache_folder import cache_root

MANIFEST = "manifest.json"
HASHED_BYTES = 64 * 2**20  # above this a file's length alone is compared, so that a start stays fast


def digest(value: object) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    # surrogatepass: names of files may not be UTF-8
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def cached_entry(name: str, key: object, build: Callable[[Path], None]) -> Path:
    """The cached folder for a key, filled by `build` if it is missing or damaged.

    Any number of processes may call it at once: one builds, the others wait. Entries appear complete or not at all. If
    the cache folder cannot be written, the entry is built for this process only, with a warning. Raises StorageError
    if that is impossible too.
    """
    title = f"{name}-{digest(key)[:24]}"
    try:
        entry = cache_root() / title
        if is_intact(entry):
            return entry
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            if not is_intact(entry):
                _make(entry, build)
        return entry
    except (OSError, NotImplementedError, StorageError) as error:  # the second: a file system without locks
        return _uncached(title, build, error)


def is_intact(entry: Path) -> bool:
    """Whether every file of an entry is as long as when it was written and, up to 64 MB, has the same content."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text("utf-8"))
        return all(_checksum(entry / name) == stamp for name, stamp in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def write_array(path: Path, array: np.ndarray) -> None:
    """Replace a file's content by an array, as numpy.save does."""
    with atomic_files.open_draft(path) as (draft, file):
        np.save(_Stream(file), array)
    atomic_files.publish_draft(draft, path)


def map_array(path: Path) -> np.ndarray:
    """A memory-mapped array of a file; read as a whole, with a warning, if the file system cannot map files."""
    try:
        return np.load(path, mmap_mode="r")
    except OSError as error:
        array = np.load(path)
        _warn_unmapped(error.strerror or str(error), path.parent)
        return array


@functools.cache
def _warn_unmapped(why: str, folder: Path) -> None:
    atomic_files.warn(f"the files in {folder} cannot be mapped into memory, and are read as a whole: {why}")


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Replace a file's content by arrays, as numpy.savez does."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    atomic_files.write_bytes(path, content.getvalue())


def write_json(path: Path, value: object) -> None:
    """Replace a file's content by JSON."""
    atomic_files.write_json(path, value)


class _Stream:
    """A file for numpy: into a real one it writes past Python, and does not say why that failed."""

    def __init__(self, file: atomic_files.HashingFile) -> None:
        self.write = file.write


def _make(entry: Path, build: Callable[[Path], None]) -> None:
    for leftover in entry.parent.glob(
        f"*{entry.name}.*{atomic_files.PARTIAL}"
    ):  # by a killed process: the lock is ours now
        shutil.rmtree(leftover, ignore_errors=True)
    with atomic_files.replace_folder(entry) as folder:
        build(folder)
        files = sorted(folder.iterdir())
        atomic_files.write_json(folder / MANIFEST, {file.name: _checksum(file) for file in files}, indent=None)


def _uncached(title: str, build: Callable[[Path], None], error: Exception) -> Path:
    """The entry in this process's own folder. Raises what stopped ``build`` where that was not the cache folder."""
    fault = atomic_files.storage_fault(error)
    why = atomic_files.reason(fault) if fault else str(error)
    neither = StorageError(
        f"neither the cache folder nor a temporary one can be written: {why}.\n"
        "Set the environment variable ZOO_CACHE to a folder that can."
    )
    try:
        folder = _temporary(os.getpid())
    except OSError as again:
        raise neither from again
    entry = folder / title
    try:
        if not is_intact(entry):
            _make(entry, build)
    except OSError as again:
        about = Path(os.fsdecode(again.filename or folder))
        if atomic_files.storage_fault(again) is None or not about.is_relative_to(folder):
            raise  # an error of the files that `build` reads
        raise neither from again
    _warn_cache(why)
    return entry


@functools.cache
def _temporary(process: int) -> Path:
    """A folder that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="zoo-", ignore_cleanup_errors=True)
    _temporary_folders.append(folder)
    return Path(folder.name)


_temporary_folders: list[tempfile.TemporaryDirectory] = []


@functools.cache
def _warn_cache(why: str) -> None:
    atomic_files.warn(
        f"the cache cannot be written, so that what is made now is made again next time: {why}. Set the environment "
        "variable ZOO_CACHE to a folder of yours"
    )


def _checksum(file: Path) -> list[object]:
    size = file.stat().st_size
    if size > HASHED_BYTES:
        return [size, None]
    return [size, hashlib.sha256(file.read_bytes()).hexdigest()]
