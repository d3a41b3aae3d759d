"""Find the files of a data source and read text strictly: whatever is left out is counted and named.

An invalid byte is an error that names its line, and nothing is replaced or skipped.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import glob
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from zoo.errors import UsageError
from zoo.io import limits

BOM = b"\xef\xbb\xbf"
LITTER = ("thumbs.db", "desktop.ini", "icon\r")  # what file managers leave
EMPTY = "empty"
VAL_NAMES = ("val", "valid", "validation", "dev")  # names of files and folders with validation data
SHOWN_KINDS = 40  # kinds of left-out files that a message lists
LONGEST_LINE = 1_000_000  # characters; no sentence has as many


class FolderFiles(NamedTuple):
    """The files below a folder that are read, and why each other one is not: its ending, or a few words."""

    files: list[Path]
    others: dict[Path, str]


def list_folder(
    folder: Path, reads: Callable[[str], bool], empty: bool = True, depth: int | None = None
) -> FolderFiles:
    """The files below a folder whose names are read, to a depth of folders if any is given, in the order of paths.

    Links are followed, and each folder and file is read once, however many links lead to it. Hidden files are left
    out, as are ``empty`` ones where they hold nothing that could be read. Raises UsageError for a folder that cannot
    be listed.
    """
    result = FolderFiles([], {})
    above = {*folder.absolute().parents, *folder.resolve().parents}
    identities: set[object] = {_identity(parent, parent.stat()) for parent in above}
    waiting = [(folder, 0)]
    while waiting:
        place, level = waiting.pop()
        try:
            identities.add(_identity(place, place.stat()))
            entries = sorted(os.scandir(place), key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            raise UsageError(f"the folder {place} cannot be read: {error.strerror or error}") from error
        inside = []
        for entry in entries:
            path = place / entry.name
            if entry.name.startswith(".") or entry.name.lower() in LITTER:
                result.others[path] = "hidden"
            elif not os.path.exists(path):
                if reads(entry.name):
                    result.files.append(path)  # reading it says what is wrong
                else:
                    result.others[path] = "a link to nothing"
            elif (identity := _identity(path, entry.stat())) in identities:
                result.others[path] = "a link to what is read already"
            elif entry.is_dir():
                if depth is not None and level >= depth:
                    result.others[path] = "a folder"
                else:
                    inside.append((path, level + 1))
            elif not entry.is_file():
                result.others[path] = "no ordinary file"
            elif not reads(entry.name):
                result.others[path] = path.suffix.lower() or "without an ending"
            elif not empty and not entry.stat().st_size:
                result.others[path] = EMPTY
            else:
                identities.add(identity)
                result.files.append(path)
        waiting += inside
    return FolderFiles(sorted(result.files), dict(sorted(result.others.items())))


def _identity(path: Path, status: os.stat_result) -> object:
    """What is the same for all names of a file, where the file system says so."""
    return (status.st_dev, status.st_ino) if status.st_ino else path


def match_files(pattern: str) -> list[Path]:
    """The files that a pattern with ``*``, ``?``, ``[…]`` or ``**`` means; a folder of that very name is itself meant.

    As in list_folder, links are followed without circles, and hidden names match no pattern.
    """
    parts = Path(pattern).expanduser().parts
    base = Path(parts[0]) if Path(parts[0]).is_absolute() else Path()
    patterns = list(parts[1:] if Path(parts[0]).is_absolute() else parts)
    while len(patterns) > 1 and (os.path.lexists(base / patterns[0]) or not glob.has_magic(patterns[0])):
        base /= patterns.pop(0)
    if not base.is_dir():
        return []
    depth = None if "**" in patterns else len(patterns) - 1
    files = list_folder(base, lambda name: True, depth=depth).files
    return [file for file in files if _matches(file.relative_to(base).parts, tuple(patterns))]


def _matches(names: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    """Whether the parts of a path match those of a pattern, of which ``**`` is any number of folders."""
    if not patterns or not names:
        return not patterns and not names
    if patterns[0] == "**":
        return _matches(names, patterns[1:] or ("*",)) or (len(names) > 1 and _matches(names[1:], patterns))
    return fnmatch.fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])


def named_file(folder: Path, *names: str) -> Path | None:
    """The file of a folder with the first of these names that there is, plain or with .gz, in small or capital letters.

    Exactly as it is written it comes before one in other letters.
    """
    for name in (*names, *(f"{name}.gz" for name in names)):
        if (folder / name).is_file():
            return folder / name
    if folder.is_dir():
        lower = {file.lower(): file for file in sorted(os.listdir(folder), reverse=True)}
        for name in (*names, *(f"{name}.gz" for name in names)):
            if name.lower() in lower and (folder / lower[name.lower()]).is_file():
                return folder / lower[name.lower()]
    return None


def count_kinds(others: Mapping[Path, str]) -> str:
    """How many files there are of each kind, with an example: ``3 .avif (a/b.avif, …), 1 hidden (.x)``."""
    examples: dict[str, list[Path]] = {}
    for path, kind in others.items():
        examples.setdefault(kind, []).append(path)
    kinds = sorted(examples.items(), key=lambda item: (-len(item[1]), item[0]))
    texts = [
        f"{len(paths)} {kind} ({os.path.join(*paths[0].parts[-2:])}{', …' * (len(paths) > 1)})" for kind, paths in kinds
    ]
    return ", ".join([*texts[:SHOWN_KINDS], *(["…"] if len(texts) > SHOWN_KINDS else [])])


def tell_left_out(folder: Path, others: Mapping[Path, str], reason: str = "") -> None:
    """Say once which files of a folder are not read, by their endings."""
    if others:
        are = f"{len(others)} file{'s are' if len(others) > 1 else ' is'} left out"
        tell_once(f"{folder}: {are}, {count_kinds(others)}{reason and f': {reason}'}")


@functools.cache
def tell_once(message: str) -> None:
    """A warning that a process gives once, and of several only the first."""
    from zoo.data.batches import log_once  # here: what is only read needs no torch

    log_once("%s", message)


def tell_unused(folder: Path, used: Iterable[Path]) -> None:
    """Say which files of a folder are none of those that are read there."""
    names = {file.name for file in used}
    if folder.is_dir():
        others = list_folder(folder, names.__contains__, depth=0).others
        tell_left_out(folder, {path: kind for path, kind in others.items() if path.name not in names})


def memory_size() -> int:
    """The bytes of this machine's memory, which a text is read into as a whole."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**36


def read_bytes(path: Path, recipes: str) -> bytes:
    """The bytes of a file, decompressed where its name ends in .gz.

    Raises UsageError when it is missing, damaged or not readable; `recipes` names those that need no file.
    """
    try:
        content = limits.read_bytes(path, memory_size())
    except IsADirectoryError as error:
        inside = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        example = f", such as {path / inside[0]}" if inside else ""
        raise UsageError(f"{path} is a folder, and a single file is read: name one{example}.") from error
    except FileNotFoundError as error:
        if path.is_symlink():
            raise UsageError(f"{path} is a link to {os.readlink(path)}, which is not there.") from error
        raise missing_file(str(path), recipes) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if path.suffix.lower() != ".gz":
        return content
    return limits.gunzip(content, str(path))


def raw_lines(path: Path, recipes: str) -> list[bytes]:
    r"""The lines of a file before they are decoded, without the byte-order mark and the ends ``\n`` and ``\r\n``."""
    content = strip_mark(path, read_bytes(path, recipes))
    refuse_bare_returns(path, content)
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    return [line.removesuffix(b"\r") for line in lines]


def refuse_bare_returns(path: Path, content: bytes) -> None:
    r"""Raise UsageError for lines that end with ``\r`` alone, as on old Macs: all would be one line."""
    if b"\n" not in content and content.count(b"\r") > 1:
        raise UsageError(
            f"{path}: its lines end with CR alone, as on old Macs.\nConvert it: tr '\\r' '\\n' < {path.name} > new-file"
        )


def strip_mark(path: Path, content: bytes) -> bytes:
    """The content without UTF-8's byte-order mark. Raises UsageError for that of UTF-16, and for no text at all."""
    limits.refuse_other_kind(path, content, ".html")  # a page is a text
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
    text = decode_text(path, content, lambda place: content.count(b"\n", 0, place) + 1)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{path}:{line} holds a NUL: the file is no text, or UTF-16 without a byte-order mark.")
    return text.replace("\r\n", "\n")


def decode_text(path: Path, content: bytes, line_of: Callable[[int], int]) -> str:
    """The text of UTF-8 bytes. Raises UsageError that names the line of the first wrong byte, from its place."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}:{line_of(error.start)}: byte 0x{content[error.start]:02x} is not UTF-8.\n"
            f"Convert the file, for example from Latin-1: iconv -f LATIN1 -t UTF-8 {path.name} > new-file"
        ) from error


def read_lines(path: Path, recipes: str) -> list[str]:
    r"""The lines of a file. Only ``\n`` ends a line: other separators of Unicode may stand inside a sentence."""
    text = read_text(path, recipes)
    refuse_bare_returns(path, text.encode())
    return text.removesuffix("\n").split("\n") if text else []


def find_place(path: str | Path) -> Path:
    """The path of a file or folder, spelled as on disk where that has another Unicode form: é as a letter, or e and ´.

    A path that is not there in any form stays as it is. Raises UsageError for an empty one, the current folder to
    pathlib.
    """
    if path == "":
        raise UsageError("the path of the data is empty: name a file or folder. Is a variable of the shell unset?")
    place = Path(path).expanduser()
    if os.path.lexists(place) or place.name.isascii() or not place.parent.is_dir():
        return place
    name = unicodedata.normalize("NFC", place.name)
    return next((entry for entry in place.parent.iterdir() if unicodedata.normalize("NFC", entry.name) == name), place)


def missing_file(path: str | Path, recipes: str, content: str = "") -> UsageError:
    """The error for data that are not there, or are not what a data source reads: ``content``, a noun phrase."""
    place = Path(path).expanduser()
    if place.is_dir() and content:
        others = list_folder(place, lambda name: False, depth=0).others
        state = f"{path} holds {count_kinds(others) or 'nothing'}, and not {content}."
    elif place.exists() and content:
        state = f"{path} is a file, and not {content}."
    else:
        names = os.listdir(place.parent) if place.parent.is_dir() else []
        alike = difflib.get_close_matches(place.name, names, 1, cutoff=0.8)
        near = f" Did you mean {alike[0]!r}?" if alike else ""
        state = f"{path} is not on disk{content and f': {content}'}.{near}"
    return UsageError(f"{state} Recipes with embedded data: {recipes}")


def file_state(path: str | Path) -> tuple[int, ...]:
    """Size, times of change, and place of a file, one of which is another after any change; zeros for no file.

    The time of the last change of anything cannot be set, as that of the content can.
    """
    try:
        status = os.stat(path)
    except OSError:  # which opening it will name
        return 0, 0, 0, 0, 0
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
