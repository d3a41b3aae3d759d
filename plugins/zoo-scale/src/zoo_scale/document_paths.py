"""Which files a path option of documents means: by their names and columns, and which documents validate.

Imports no torch: `zoo prepare` starts a process for each core.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from zoo.data.library_files import library_files
from zoo.data.table_files import BINARY, COMPRESSIONS, find_splits, is_columnar, is_table
from zoo.data.text_paths import METADATA, RECIPES, SUFFIXES, inner_suffix, text_files
from zoo.errors import UsageError

RECORD_SUFFIXES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
STDLIB = "stdlib"  # the path that means the modules of Python's library
HELD_OUT = 1 << 64  # range of the hashes that choose documents


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
