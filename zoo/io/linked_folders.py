"""Files below folders, links to folders included."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def files_below(root: Path, reads: Callable[[str], bool]) -> list[Path]:
    """The files below a folder whose names are read, behind links too, each folder once; those that cannot be listed
    are left out.
    """
    files: list[Path] = []
    visited = {os.path.realpath(root)}
    for place, folders, names in os.walk(root, followlinks=True):
        real = {os.path.realpath(os.path.join(place, folder)): folder for folder in sorted(folders, reverse=True)}
        folders[:] = sorted(folder for path, folder in real.items() if path not in visited)
        visited |= set(real)
        files += [Path(place, name) for name in sorted(names) if reads(name)]
    return files
