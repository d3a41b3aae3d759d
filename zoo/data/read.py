"""Read text files strictly: a wrong byte is an error that names its line, and nothing is replaced or left out."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from zoo.errors import UsageError

BOM = b"\xef\xbb\xbf"


def read_bytes(path: Path, recipes: str) -> bytes:
    """The bytes of a file, decompressed where its name ends in .gz.

    Raises UsageError when it is missing, damaged or not readable; `recipes` names those that need no file.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise missing(str(path), recipes) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is a damaged or truncated gzip file: {error}. Fetch or compress it again.") from error


def read_text(path: Path, recipes: str) -> str:
    r"""The text of a UTF-8 file without its byte-order mark, its line ends ``\r\n`` turned into ``\n``.

    Raises UsageError that names file and line of the first byte that is not UTF-8.
    """
    content = read_bytes(path, recipes).removeprefix(BOM)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = content[error.start]
        raise UsageError(
            f"{path}:{line}: byte 0x{wrong:02x} is not UTF-8.\n"
            f"Convert the file, for example from Latin-1: iconv -f LATIN1 -t UTF-8 {path.name} > new-file"
        ) from error
    return text.replace("\r\n", "\n")


def read_lines(path: Path, recipes: str) -> list[str]:
    r"""The lines of a file. Only ``\n`` ends a line: other separators of Unicode may stand inside a sentence."""
    text = read_text(path, recipes)
    return text.removesuffix("\n").split("\n") if text else []


def missing(what: str, recipes: str) -> UsageError:
    """The error for data that are not there."""
    return UsageError(f"{what} is not on disk. Recipes with embedded data: {recipes}")
