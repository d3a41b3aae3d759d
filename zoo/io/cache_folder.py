"""The folder of what is made once and read by later processes."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.errors import StorageError


def cache_root() -> Path:
    """The folder of the environment variable ZOO_CACHE, or ``~/.cache/zoo``.

    Raises StorageError where none is named and the user has no home.
    """
    folder = os.environ.get("ZOO_CACHE")
    try:
        return Path(folder).expanduser() if folder else Path.home() / ".cache" / "zoo"
    except RuntimeError as error:
        raise StorageError("no cache folder: set the environment variable ZOO_CACHE, or HOME, to a folder.") from error
