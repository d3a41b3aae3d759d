"""Read untrusted files within limits of size and repetition: text, JSON, gzip, zip."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from zoo.errors import UsageError

JSON_BYTES = 64 * 2**20
# deflate shrinks at most 1,032 times; text seldom more than 20 times
FREE_BYTES, MOST_RATIO = 64 * 2**20, 200
# kinds of files that stand where another was expected, by their usual ending: pattern of the first bytes, noun, remedy
OTHER_KINDS = {
    "pointer": (
        rb"version https://git-lfs", "a pointer of Git LFS in the place of the file", "Fetch the file: git lfs pull",
    ),
    ".html": (rb"\s*<(?i:!doctype html|html)", "an HTML page", "Download the file itself in place of its page"),
    ".docx": (
        rb"PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|word/|xl/|mimetype)|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "a document of an office program", "Save it as plain text, or a table of it as CSV",
    ),
    ".zip": (rb"PK\x03\x04", "a ZIP archive", "Unpack it: unzip"),
    ".tar": (rb".{257}ustar", "a tar archive", "Unpack it: tar -xf"),
    ".7z": (rb"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "Unpack it: 7z x"),
    ".rar": (rb"Rar!\x1a\x07", "a RAR archive", "Unpack it: unrar x"),
    ".gz": (rb"\x1f\x8b\x08", "compressed by gzip", "Unpack it: gunzip, with a name that ends in .gz"),
    ".xz": (rb"\xfd7zXZ\0", "compressed by xz", "Unpack it: xz -d"),
    ".zst": (rb"\x28\xb5\x2f\xfd", "compressed by Zstandard", "Unpack it: zstd -d"),
    ".bz2": (rb".{4}1AY&SY", "compressed by bzip2", "Unpack it: bunzip2"),
    ".pdf": (rb"%PDF-", "a PDF document", "Make a text of it, such as by pdftotext"),
}  # fmt: skip
HEAD_BYTES = 512  # that tell these kinds


class TooMuchError(UsageError):
    """A file is larger, nested deeper or more repetitive than a genuine one of its kind."""


def refuse_other_kind(name: str | Path, head: bytes, own: str = "") -> None:
    """Raise UsageError for a file whose first bytes are those of another kind than its ``own``."""
    for kind, (pattern, noun, remedy) in OTHER_KINDS.items():
        if re.match(pattern, head[:HEAD_BYTES], re.DOTALL):
            if kind != own:
                raise UsageError(f"{name} is {noun}. {remedy}")
            return


def refuse_other_file(path: str | Path, own: str = "") -> None:
    """Raise UsageError where a file on disk is of another kind than its ``own``; its reader says what else is wrong."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        refuse_other_kind(path, file.read(HEAD_BYTES), own)


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of an ordinary file. Raises UsageError for a pipe, a device or more than `most`, OSError as usual."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "it is a folder", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is no ordinary file: a pipe or a device may never end.")
    if status.st_size > most:
        raise TooMuchError(f"{path} has {status.st_size} bytes; at most {most} are read.")
    return path.read_bytes()


def read_text(path: Path, most: int) -> str:
    """The UTF-8 text of a file, without a byte-order mark. Raises UsageError that names the line of a wrong byte."""
    data = read_bytes(path, most)
    refuse_other_kind(path, data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path} is not UTF-8 text: line {line} holds byte 0x{data[error.start]:02x}.") from error


def describe_damage(error: Exception) -> str:
    """What is wrong with the content of a file, in one line: an error's message, or the key that is missing."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return f"no {text}" if isinstance(error, KeyError) else text


def read_json(path: Path) -> object:
    """The value of a JSON file. Raises UsageError that names what is wrong, OSError where there is no file."""
    return parse_json(read_text(path, JSON_BYTES), str(path))


def parse_json(source: str, name: str) -> object:
    """The value of a JSON text. Raises UsageError for what is none, or is nested too deeply to be read."""
    try:
        return load_json(source)
    except RecursionError as error:
        raise TooMuchError(f"{name} is nested too deeply.") from error
    except ValueError as error:
        raise UsageError(f"{name} is not valid JSON: {error}") from error


def load_json(source: str) -> object:
    """The value of a JSON text. Raises ValueError also for an escape of half a character, which no file can hold."""
    value = json.loads(source)
    if "\\ud" in source or "\\uD" in source:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise ValueError(
                f"{half} is half a character, without its other half. Write it whole, or \\ufffd in its place"
            ) from error
    return value


def gunzip(data: bytes, name: str) -> bytes:
    """What gzip members hold. Raises UsageError for damage and bombs, which no text of that size would shrink to."""
    pieces: list[bytes] = []
    size, most = 0, max(FREE_BYTES, MOST_RATIO * len(data))
    if not data:
        raise UsageError(f"{name} is a damaged or truncated gzip file: it is empty.")
    refuse_other_kind(name, data, ".gz")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while piece := file.read(2**20):
                size += len(piece)
                if size > most:
                    raise TooMuchError(
                        f"{name} expands from {len(data)} to more than {most} bytes: no text shrinks so."
                    )
                pieces.append(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{name} is a damaged or truncated gzip file: {error}.") from error
    return b"".join(pieces)


def zip_members(path: Path) -> Mapping[str, zipfile.ZipInfo]:
    """The members of an archive by name. Raises UsageError for names that leave it, repeat, or expand like a bomb."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        refuse_other_file(path, ".zip")
        raise UsageError(f"{path} is no whole zip archive: {error}") from error
    members: dict[str, zipfile.ZipInfo] = {}
    limit = max(FREE_BYTES, MOST_RATIO * os.path.getsize(path))
    for info in infos:
        pure = PurePosixPath(info.filename.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts or ":" in pure.parts[0][1:2]:
            raise UsageError(f"{path}: its member {info.filename!r:.80} would leave the archive's folder.")
        if info.filename in members:
            raise UsageError(f"{path}: its member {info.filename!r:.80} stands twice in the archive.")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise UsageError(f"{path}: its member {info.filename!r:.80} is a link.")
        limit -= info.file_size
        if limit < 0:
            raise TooMuchError(f"{path} expands to more than two hundred times its size: it is a bomb.")
        members[info.filename] = info
    return members
