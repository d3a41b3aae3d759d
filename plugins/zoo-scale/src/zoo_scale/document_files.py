"""Documents in files of any size: plain text, JSON lines and Parquet, also compressed, a piece of them at a time."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from zoo.data.source_files import decode_text, refuse_bare_returns, strip_mark
from zoo.data.table_files import (
    BINARY,
    BLOCK,
    COMPRESSIONS,
    DELIMITERS,
    LONGEST_RECORD,
    Columns,
    damage,
    is_table,
    open_bytes,
    open_parquet,
    read_rows,
    require_pyarrow,
    text_of,
)
from zoo.data.text_paths import inner_suffix
from zoo.errors import UsageError
from zoo.io import limits
from zoo_scale.document_paths import PARQUET, RECORD_SUFFIXES

LONGEST = 2**18  # bytes, or characters of a record: a longer document is cut at a line's end
SPAN = 2**22  # bytes of a plain file that are one unit
PIECE = 2**20  # bytes at three places that stand for a large file
HASHED_BYTES = 2**30  # up to this sum files are hashed whole, beyond it three pieces of each
Place: TypeAlias = tuple[int, int]  # a byte of the decompressed file or a row, and the piece of a record


class Unit(NamedTuple):
    """What one reader reads at a time: a span of a plain file, a whole compressed one, a row group."""

    file: int
    start: int
    end: int | None  # None: until the file ends; of Parquet the start is the row group


class Document(NamedTuple):
    """A text, and where it stands in its unit."""

    place: Place
    text: str


@dataclass(frozen=True)
class Format:
    """How files hold documents: what separates them in plain text, the field or column of records, and whether CSV and
    TSV files are read by a column.
    """

    separator: str = ""
    field: str = "text"
    delimited: bool = False


class DocumentFiles:
    """Files, their units, and the documents of each. It can be pickled, and holds no text."""

    def __init__(self, paths: Sequence[Path], form: Format) -> None:
        """Raises UsageError for files that are missing, empty, or need a package that is not installed."""
        self.paths, self.form = list(paths), form
        self.stamps = [_stamp(path) for path in self.paths]
        for path, (size, _) in zip(self.paths, self.stamps, strict=True):
            if not size:
                raise UsageError(f"{path} is empty: it holds no document. Take it out of the path.")
            if _ending(path) in (".zst", *BINARY):
                require_pyarrow(path)

    def units(self) -> list[Unit]:
        """The units of all files, in the order of files."""
        result = []
        for number, path in enumerate(self.paths):
            if _ending(path) == PARQUET:
                with damage(path), open_parquet(path) as table:
                    groups = table.num_row_groups
                result += [Unit(number, group, group + 1) for group in range(groups)]
            elif _ending(path) in COMPRESSIONS or self._by_rows(path):
                result.append(Unit(number, 0, None))
            else:
                edges = self._edges(number)
                result += [Unit(number, *edge) for edge in itertools.pairwise(edges)]
        return result

    @functools.cached_property
    def digests(self) -> list[str]:
        """SHA-256 of each file; of three pieces and the length, where all have more than a GB."""
        whole = sum(size for size, _ in self.stamps) <= HASHED_BYTES
        return [_digest(path, whole) for path in self.paths]

    def read(self, unit: Unit, place: Place | None = None) -> Iterator[Document]:
        """The documents of a unit from a place on, none of them empty.

        Raises UsageError that names the file, where it is damaged, not UTF-8, or another one than it was.
        """
        path = self.paths[unit.file]
        if _stamp(path) != self.stamps[unit.file]:
            raise _changed(path)
        with damage(path):
            if self._by_rows(path):
                yield from self._rows(path, unit, place or (0, 0))
            elif inner_suffix(path.name, COMPRESSIONS) in RECORD_SUFFIXES:
                yield from self._records(unit, place or (unit.start, 0))
            else:
                for offset, content in self._pieces(unit, (place or (unit.start, 0))[0], self._mark(path), LONGEST):
                    if text := _decode(path, offset, content):
                        yield Document((offset, 0), text)

    # plain text and JSON lines

    def _mark(self, path: Path) -> bytes:
        """The separator in the bytes of a file: as its line ends are, CRLF or LF."""
        separator = self.form.separator.replace("\r\n", "\n")
        return (separator.replace("\n", "\r\n") if "\n" in separator and _has_crlf(path) else separator).encode()

    def _edges(self, number: int) -> list[int]:
        """Where a plain file is divided: at the first end of a document, or line, after every SPAN bytes."""
        path, size = self.paths[number], self.stamps[number][0]
        record = _ending(path) in RECORD_SUFFIXES
        mark, longest = (b"\n", LONGEST_RECORD) if record else (self._mark(path), LONGEST)
        edges = [0]
        with path.open("rb") as file:
            for position in range(SPAN, size, SPAN):
                if position > edges[-1]:
                    file.seek(position - len(mark))
                    window = file.read(len(mark) + LONGEST)
                    while record and b"\n" not in window[1:] and len(window) < longest and (more := file.read(BLOCK)):
                        window += more
                    edges.append(min(size, position - len(mark) + _end_of_document(window, len(mark), mark, longest)))
        return [*edges, size] if edges[-1] < size else edges

    def _pieces(self, unit: Unit, offset: int, mark: bytes, longest: int) -> Iterator[tuple[int, bytes]]:
        """The documents of a unit from a byte on, as bytes, and the byte at which each begins."""
        path = self.paths[unit.file]
        with open_bytes(path, offset) as file:
            buffer, begin, at_end, any_byte = b"", 0, False, offset > 0
            while True:
                while not at_end and len(buffer) - begin < longest + len(mark):
                    size_to_read = BLOCK if unit.end is None else min(BLOCK, unit.end - offset - len(buffer) + begin)
                    block = file.read(size_to_read) if size_to_read else b""
                    if size_to_read and not block and unit.end is not None:
                        raise _changed(path)
                    at_end, any_byte = not block, any_byte or bool(block)
                    buffer, begin = buffer[begin:] + block, 0
                if not any_byte:
                    raise UsageError(f"{path} is empty: it holds no document. Take it out of the path.")
                if begin == len(buffer):
                    return
                length, separator = _length(buffer, begin, mark, longest)
                yield offset, buffer[begin : begin + length]
                begin += length + separator
                offset += length + separator

    def _records(self, unit: Unit, place: Place) -> Iterator[Document]:
        """The texts of JSON lines."""
        path = self.paths[unit.file]
        for offset, line in self._pieces(unit, place[0], b"\n", LONGEST_RECORD):
            text = _decode(path, offset, line)
            if not text.strip():
                continue
            try:
                record: Any = limits.load_json(text)
            except (ValueError, RecursionError) as error:
                limits.refuse_other_kind(path, line)
                refuse_bare_returns(path, b"" if offset else line)
                raise UsageError(f"{path}:{_line(path, offset)} is not a line of JSON: {error}") from error
            value = record.get(self.form.field) if isinstance(record, dict) else None
            if not isinstance(value, str):
                raise UsageError(
                    f"{path}:{_line(path, offset)} has no text under {self.form.field!r}: a line is an object such as "
                    f'{{"{self.form.field}": "…"}}. Name another field behind the path: {path.name}#NAME'
                )
            start = place[1] if offset == place[0] else 0
            yield from _cut_text(value, offset, start)

    # tables

    def _by_rows(self, path: Path) -> bool:
        """Whether a file holds a document in a column of each row, and is no JSON lines, which can be divided."""
        return is_table(path.name, (*BINARY, *DELIMITERS, ".json") if self.form.delimited else BINARY)

    def _rows(self, path: Path, unit: Unit, place: Place) -> Iterator[Document]:
        """The texts of a column; those without a character are left out."""
        columns = Columns({"text": [self.form.field]}, "--data.path 'PATH#NAME'")
        group = unit.start if _ending(path) == PARQUET else None
        for number, row in enumerate(read_rows(path, columns, group, place[0]), place[0]):
            yield from _cut_text(text_of(row, "text"), number, place[1] if number == place[0] else 0)


def _ending(path: Path) -> str:
    return path.suffix.lower()


def _stamp(path: Path) -> tuple[int, int]:
    """Length and time of change. Raises UsageError where the file cannot be looked at."""
    try:
        about = path.stat()
        if not path.is_file():
            raise UsageError(f"{path} is no ordinary file: a pipe or a device cannot be read twice.")
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path} cannot be read: permission denied")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    return about.st_size, about.st_mtime_ns


def _changed(path: Path) -> UsageError:
    return UsageError(
        f"{path} changed while a run reads it, so that samples would be lost or repeated.\n"
        "Put the file back, or go on with the new one: --resume --accept-changes"
    )


def _digest(path: Path, whole: bool) -> str:
    content, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        if whole or size <= 3 * PIECE:
            while block := file.read(BLOCK):
                content.update(block)
        else:
            content.update(str(size).encode())
            for start in (0, (size - PIECE) // 2, size - PIECE):
                file.seek(start)
                content.update(file.read(PIECE))
    return content.hexdigest()


def _has_crlf(path: Path) -> bool:
    """Whether the first line of a file ends with CRLF, as far as its first block tells."""
    with open_bytes(path, 0) as file:
        return b"\r\n" in file.read(BLOCK)


def _end_of_document(content: bytes, begin: int, mark: bytes, longest: int) -> int:
    """The first byte not before ``begin`` where a document ends: after a mark, a line, or a character."""
    if mark and (mark_start := content.find(mark, begin - len(mark))) >= 0:
        return mark_start + len(mark)
    if (newline := content.find(b"\n", begin - 1 if begin else 0)) >= 0:
        return newline + 1
    return _whole_characters(content, min(len(content), longest))


def _length(content: bytes, begin: int, mark: bytes, longest: int) -> tuple[int, int]:
    """The bytes of the document at ``begin``, and of what separates it from the next."""
    if mark and (place := content.find(mark, begin, begin + longest + len(mark))) >= 0:
        return place - begin, len(mark)
    if len(content) - begin <= longest:
        return len(content) - begin, 0
    if (newline := content.rfind(b"\n", begin, begin + longest)) >= begin:
        return newline + 1 - begin, 0
    return _whole_characters(content, begin + longest) - begin, 0


def _whole_characters(content: bytes, end: int) -> int:
    """The same place, or up to three bytes before it, so that no character and no end of a line is divided."""
    for place in range(end, max(0, end - 4), -1):
        if place >= len(content) or (content[place] & 0xC0 != 0x80 and content[place - 1] != 0x0D):
            return place
    return end


def _cut_text(text: str, offset: int, start: int) -> Iterator[Document]:
    """The pieces of a record's text from number ``start`` on."""
    begin, piece = 0, 0
    while begin < len(text):
        end = len(text) if len(text) - begin <= LONGEST else text.rfind("\n", begin, begin + LONGEST) + 1
        end = end if end > begin else begin + LONGEST
        if piece >= start:
            yield Document((offset, piece), text[begin:end])
        begin, piece = end, piece + 1


def _decode(path: Path, offset: int, content: bytes) -> str:
    r"""The text of UTF-8 bytes, its line ends ``\r\n`` turned into ``\n``. Raises UsageError that names the line."""
    content = content if offset else strip_mark(path, content)
    text = decode_text(path, content, lambda place: _line(path, offset + place))
    if "\0" in text:
        place = offset + content.index(b"\0")
        raise UsageError(f"{path}:{_line(path, place)} holds a NUL: the file is no text, or UTF-16 without a mark.")
    return text.replace("\r\n", "\n")


def _line(path: Path, offset: int) -> int:
    """The number of the line that a byte stands in."""
    lines = 1
    with open_bytes(path) as file:
        while offset > 0 and (block := file.read(min(offset, BLOCK))):
            lines += block.count(b"\n")
            offset -= len(block)
    return lines
