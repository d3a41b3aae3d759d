"""Which files a path option of texts means, by their names.

Imports no torch: `zoo prepare` (zoo-scale) starts a process for each core.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from zoo.data.source_files import count_kinds, find_place, list_folder, match_files, missing_file, tell_left_out
from zoo.errors import UsageError

RECIPES = "lm-tiny"
SUFFIXES = frozenset(
    ".txt .text .md .rst .tex .csv .json .jsonl .html .xml .py .c .h .cpp .js .java .rs .go .sh".split()
)
# what the library datasets and the hub write about texts that are elsewhere
METADATA = ("state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")


def inner_suffix(name: str, compressions: Sequence[str] = (".gz",)) -> str:
    """The ending of a name, in small letters, without that of a compression."""
    stem, ending = os.path.splitext(name.lower())
    return os.path.splitext(stem)[1] if ending in compressions else ending


def is_text_file(name: str) -> bool:
    """By the end of its name, whether a language model reads a folder's file."""
    return inner_suffix(name) in SUFFIXES and name.lower() not in METADATA


def text_files(path: str | list[str], reads: Callable[[str], bool] = is_text_file) -> list[Path]:
    """The files that a path option means, of a folder those whose names are read; the others are counted and named.

    Raises UsageError when there are none.
    """
    if isinstance(path, list):
        if not path:
            raise UsageError("path is an empty list: name at least one file")
        return [file for place in path for file in text_files(place, reads)]
    here = find_place(path)
    if here.is_dir():
        inside = list_folder(here, reads, empty=False)
        if not inside.files:
            others = f": it holds {count_kinds(inside.others)}, which are not read" if inside.others else ""
            raise UsageError(f"the folder {path} has no text file with content, such as *.txt, *.md or *.py{others}")
        tell_left_out(here, inside.others)
        return inside.files
    if here.exists() or here.is_symlink() or not glob.has_magic(str(here)):
        if not (here.exists() or here.is_symlink()):
            raise missing_file(path, RECIPES)
        return [here]
    if not (matches := match_files(path)):
        raise UsageError(f"no file matches {path}. Recipes with embedded data: {RECIPES}")
    return matches
