"""Read text files strictly: an invalid byte is an error that names its line, and nothing is replaced or skipped."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.errors import UsageError
from zoo.io import limits

BOM = b"\xef\xbb\xbf"
LONGEST_LINE = 1_000_000  # characters; no sentence has as many


def memory_size() -> int:
    """The bytes of this machine's memory, which a text is read into as a whole."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**36


def read_bytes(path: Path, recipes: str) -> bytes:
    """The bytes of a file, decompressed where its name ends in .gz.

    Raises UsageError when it is missing, damaged or not readable; `recipes` names those that need no file.
    """
    try:
        content = limits.read_bytes(path, memory_size())
    except FileNotFoundError as error:
        raise missing_file(str(path), recipes) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if path.suffix != ".gz":
        return content
    return limits.gunzip(content, str(path))


def raw_lines(path: Path, recipes: str) -> list[bytes]:
    r"""The lines of a file before they are decoded, without the byte-order mark and the ends ``\n`` and ``\r\n``."""
    content = strip_mark(path, read_bytes(path, recipes))
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    return [line.removesuffix(b"\r") for line in lines]


def strip_mark(path: Path, content: bytes) -> bytes:
    """The content without UTF-8's byte-order mark. Raises UsageError for that of UTF-16."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UsageError(
            f"{path}:1: the file is UTF-16 and not UTF-8.\nConvert it: iconv -f UTF-16 -t UTF-8 {path.name} > new-file"
        )
    return content.removeprefix(BOM)


def read_text(path: Path, recipes: str) -> str:
    r"""The text of a UTF-8 file without its byte-order mark, its line ends ``\r\n`` turned into ``\n``.

    Raises UsageError that names file and line of the first byte that is not UTF-8, or of a NUL.
    """
    content = strip_mark(path, read_bytes(path, recipes))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = content[error.start]
        raise UsageError(
            f"{path}:{line}: byte 0x{wrong:02x} is not UTF-8.\n"
            f"Convert the file, for example from Latin-1: iconv -f LATIN1 -t UTF-8 {path.name} > new-file"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{path}:{line} holds a NUL: the file is no text, or UTF-16 without a byte-order mark.")
    return text.replace("\r\n", "\n")


def read_lines(path: Path, recipes: str) -> list[str]:
    r"""The lines of a file. Only ``\n`` ends a line: other separators of Unicode may stand inside a sentence."""
    text = read_text(path, recipes)
    return text.removesuffix("\n").split("\n") if text else []


def missing_file(what: str, recipes: str) -> UsageError:
    """The error for data that are not there."""
    return UsageError(f"{what} is not on disk. Recipes with embedded data: {recipes}")
