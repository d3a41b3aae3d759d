"""Which files a path option of texts means: by their names and columns, and which of their documents validate.

Imports no torch: `zoo prepare` (zoo-scale) starts a process for each core.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from zoo.data.library_files import library_files
from zoo.data.source_files import count_kinds, find_place, list_folder, match_files, missing_file, tell_left_out
from zoo.data.table_files import BINARY, COMPRESSIONS, find_splits, is_columnar, is_table
from zoo.errors import UsageError

RECIPES = "lm-tiny"
SUFFIXES = frozenset(
    ".txt .text .md .rst .tex .csv .json .jsonl .html .xml .py .c .h .cpp .js .java .rs .go .sh".split()
)
# what the library datasets and the hub write about texts that are elsewhere
METADATA = ("state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
RECORD_SUFFIXES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
STDLIB = "stdlib"  # the path that means the modules of Python's library
HELD_OUT = 1 << 64  # range of the hashes that choose documents


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


def document_files(path: str | list[str]) -> list[Path]:
    """The files that a path option means. Raises UsageError when there are none."""
    return text_files(path, is_document_file)


def is_document_file(name: str) -> bool:
    """By the end of its name, whether a folder's file is read."""
    return inner_suffix(name, COMPRESSIONS) in SUFFIXES | {*RECORD_SUFFIXES, PARQUET} and name.lower() not in METADATA


def stream_splits(path: str | list[str], by_column: bool, needed: str = "train") -> dict[str, list[Path]]:
    """The files of each split of a path option, one of them ``needed``; all of them to train on without tables."""
    if by_column or (
        path != STDLIB and is_columnar(path, lambda name: is_document_file(name) and not is_table(name, BINARY))
    ):
        return find_splits(path, RECIPES, needed)
    return {"train": stream_files(path)}


def stream_files(path: str | list[str]) -> list[Path]:
    """The files of a path option; `stdlib` means the modules of Python's library."""
    if path == STDLIB:
        return [file for file in library_files() if file.stat().st_size]
    files, seen_files = document_files(path), set()
    for file in files:
        if file.resolve() in seen_files:
            raise UsageError(f"{file} is named twice: each of its texts would count twice. Name each file once.")
        seen_files.add(file.resolve())
    return files


def held_out(text: str, fraction: float) -> bool:
    """Whether a document validates: its hash decides, so that one that occurs twice is on one side."""
    if not fraction:
        return False
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(key, "little") < fraction * HELD_OUT
