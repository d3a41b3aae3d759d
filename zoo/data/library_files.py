"""The modules of the running Python's library, which embedded texts are taken from."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from zoo.errors import UsageError

SKIPPED = frozenset(
    "site-packages dist-packages test tests idlelib lib2to3 turtledemo tkinter ensurepip pydoc_data __pycache__".split()
)
LEAST_FILES = 200


def library_folder() -> Path:
    """The folder of the running Python's library. Raises UsageError where it is none."""
    library = Path(sysconfig.get_paths()["stdlib"])
    if not library.is_dir():
        raise no_sources()
    return library


def library_sources(library: Path) -> list[Path]:
    """The modules below a library's folder, without tests and packages that were installed."""
    sources = []
    for folder, inside, files in os.walk(library):
        inside[:] = [name for name in inside if name not in SKIPPED]
        sources += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(sources)


def library_files() -> list[Path]:
    """The modules of the running Python's library. Raises UsageError when it has no sources."""
    files = library_sources(library_folder())
    if len(files) < LEAST_FILES:
        raise no_sources()
    return files


def no_sources() -> UsageError:
    """The error for a Python without its library's sources."""
    return UsageError(
        "this Python carries no sources of its standard library (it is zipped or frozen), so there are no docstrings.\n"
        "Use TextFiles with a text file of yours, or an ordinary Python installation."
    )
