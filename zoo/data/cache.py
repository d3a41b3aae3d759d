"""Files made once and kept: each entry is a folder whose name is the digest of what it was made from.

Everything lies under the folder that the environment variable ZOO_CACHE names, else under ``~/.cache/zoo``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from zoo.errors import UsageError

MANIFEST = "manifest.json"
HASHED_BYTES = 64 * 2**20  # above this a file's length alone is compared, so that a start stays fast


def root() -> Path:
    """The cache folder."""
    named = os.environ.get("ZOO_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "zoo"


def digest(value: object) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def cached(name: str, key: object, build: Callable[[Path], None]) -> Path:
    """The folder that `build` filled for this key; it is built when missing, and built again when damaged.

    Any number of processes may ask at once: one builds, the others wait. A reader never sees a half-made entry.
    Raises UsageError when the cache folder cannot be written.
    """
    entry = root() / f"{name}-{digest(key)[:24]}"
    if intact(entry):
        return entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            if not intact(entry):
                _make(entry, build)
    except PermissionError as error:
        raise UsageError(
            f"the cache folder {entry.parent} cannot be written: {error.strerror}.\n"
            "Set the environment variable ZOO_CACHE to a folder of yours."
        ) from error
    return entry


def intact(entry: Path) -> bool:
    """Whether every file of an entry is as long as when it was written and, up to 64 MB, has the same content."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text("utf-8"))
        return all(_stamp(entry / name) == stamp for name, stamp in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    temporary.write_bytes(content)
    _sync(temporary)
    os.replace(temporary, path)


def write_json(path: Path, value: object) -> None:
    """The same for a JSON value."""
    write_file(path, json.dumps(value, ensure_ascii=False, indent=1).encode())


def _make(entry: Path, build: Callable[[Path], None]) -> None:
    for left in entry.parent.glob(f"{entry.name}.*.partial"):  # by a killed process: the lock is ours now
        shutil.rmtree(left, ignore_errors=True)
    temporary = entry.with_name(f"{entry.name}.{os.getpid()}.partial")
    temporary.mkdir()
    try:
        build(temporary)
        files = sorted(temporary.iterdir())
        (temporary / MANIFEST).write_text(json.dumps({file.name: _stamp(file) for file in files}), "utf-8")
        for file in [*files, temporary / MANIFEST, temporary]:
            _sync(file)
        shutil.rmtree(entry, ignore_errors=True)
        os.replace(temporary, entry)
        _sync(entry.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _stamp(file: Path) -> list[object]:
    size = file.stat().st_size
    if size > HASHED_BYTES:
        return [size, None]
    return [size, hashlib.sha256(file.read_bytes()).hexdigest()]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
