"""Read what strangers wrote within limits of size, depth and repetition: JSON, YAML, gzip, zip."""

from __future__ import annotations

import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import yaml

from zoo.errors import UsageError

RECIPE_BYTES, RECIPE_NODES, DEPTH = 1_000_000, 5_000, 40
JSON_BYTES = 64 * 2**20
# deflate shrinks at most 1,032 times; text seldom more than 20 times
FREE_BYTES, MOST_RATIO = 64 * 2**20, 200
CORE = "tag:yaml.org,2002:"


class TooMuchError(UsageError):
    """A file is larger, deeper or more repetitive than what it stands for can be."""


class Loader(yaml.SafeLoader):
    """YAML 1.2's few implicit types: `no` and `010` stay text, `3e-4` is a number. Deep and long texts end it."""

    yaml_implicit_resolvers: dict[str, list] = {}  # noqa: RUF012 - the attribute's form is PyYAML's

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.nodes = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        if self.depth > DEPTH + 1:
            raise TooMuchError(f"line {self.line + 1}: nested deeper than {DEPTH} levels.")
        if self.nodes > 2 * RECIPE_NODES + 1:  # keys count here, and not when values are built
            raise TooMuchError(f"line {self.line + 1}: the document has more than {RECIPE_NODES} values.")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
     "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):  # fmt: skip
    Loader.add_implicit_resolver(CORE + _tag, re.compile(f"^(?:{_pattern})$"), list(_first))


def content(path: Path, most: int) -> bytes:
    """The bytes of an ordinary file. Raises UsageError for a pipe, a device or more than `most`, OSError as usual."""
    known = path.stat()
    if stat.S_ISDIR(known.st_mode):
        raise IsADirectoryError(21, "it is a folder", str(path))
    if not stat.S_ISREG(known.st_mode):
        raise UsageError(f"{path} is no ordinary file: a pipe or a device may never end.")
    if known.st_size > most:
        raise TooMuchError(f"{path} has {known.st_size} bytes; at most {most} are read.")
    return path.read_bytes()


def text(path: Path, most: int) -> str:
    """The UTF-8 text of a file, without a byte-order mark. Raises UsageError that names the line of a wrong byte."""
    data = content(path, most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path} is not UTF-8 text: line {line} holds byte 0x{data[error.start]:02x}.") from error


def json_file(path: Path, most: int = JSON_BYTES) -> object:
    """The value of a JSON file. Raises UsageError that names what is wrong, OSError where there is no file."""
    return json_text(text(path, most), str(path))


def json_text(written: str, name: str) -> object:
    """The value of a JSON text. Raises UsageError for what is none, or is nested too deeply to be read."""
    try:
        return json.loads(written)
    except RecursionError as error:
        raise TooMuchError(f"{name} is nested too deeply.") from error
    except ValueError as error:
        raise UsageError(f"{name} is not valid JSON: {error}") from error


def yaml_file(path: Path) -> object:
    """The plain value of a YAML file. Raises UsageError for tags, bombs and what is no YAML, OSError as usual."""
    return yaml_text(text(path, RECIPE_BYTES), str(path))


def yaml_text(written: str, name: str) -> object:
    """The plain value of a YAML text; aliases count as what they stand for."""
    try:
        loader = Loader(written)
        try:
            top = loader.get_single_node()
            if top is None:
                return None
            _unfold(top, name)
            return loader.construct_document(top)
        finally:
            loader.dispose()
    except TooMuchError as error:
        raise error if name in str(error) else TooMuchError(f"{name}: {error}") from error
    except RecursionError as error:
        raise TooMuchError(f"{name} is nested deeper than {DEPTH} levels.") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{name} is not valid YAML: {' '.join(str(error).split())[:300]}") from error


def _unfold(top: yaml.Node, name: str) -> None:
    """Raise unless what the aliases of a document expand to stays within the limits."""
    count, waiting = 0, [(top, 0)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > RECIPE_NODES or depth > DEPTH:
            raise TooMuchError(f"{name}:{node.start_mark.line + 1}: the document expands to more than {RECIPE_NODES}"
                               f" values or {DEPTH} levels.")  # fmt: skip
        below = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        if not isinstance(node, yaml.ScalarNode):
            waiting += [(one, depth + 1) for one in below]


def gunzip(data: bytes, name: str) -> bytes:
    """What gzip members hold. Raises UsageError for damage and bombs, which no text of that size would shrink to."""
    pieces: list[bytes] = []
    size, rest, most = 0, data, max(FREE_BYTES, MOST_RATIO * len(data))
    while rest:
        member = zlib.decompressobj(wbits=31)
        waiting = rest
        while not member.eof:
            try:
                piece = member.decompress(waiting, 2**20)
            except zlib.error as error:
                raise UsageError(f"{name} is a damaged or truncated gzip file: {error}.") from error
            waiting = member.unconsumed_tail
            size += len(piece)
            if size > most:
                raise TooMuchError(f"{name} expands from {len(data)} to more than {most} bytes: no text shrinks so.")
            pieces.append(piece)
            if not member.eof and not piece and not waiting:
                raise UsageError(f"{name} is a damaged or truncated gzip file: it ends inside of its data.")
        rest = member.unused_data.lstrip(b"\0")  # zeros may follow the last member
    if not data:
        raise UsageError(f"{name} is a damaged or truncated gzip file: it is empty.")
    return b"".join(pieces)


def zip_members(path: Path, most: int | None = None) -> Mapping[str, zipfile.ZipInfo]:
    """The members of an archive by name. Raises UsageError for names that leave it, repeat, or expand like a bomb."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        raise UsageError(f"{path} is no whole zip archive: {error}") from error
    found: dict[str, zipfile.ZipInfo] = {}
    limit = most or max(FREE_BYTES, MOST_RATIO * os.path.getsize(path))
    for info in infos:
        pure = PurePosixPath(info.filename.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts or ":" in pure.parts[0][1:2]:
            raise UsageError(f"{path}: its member {info.filename!r:.80} would leave the archive's folder.")
        if info.filename in found:
            raise UsageError(f"{path}: its member {info.filename!r:.80} stands twice in the archive.")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise UsageError(f"{path}: its member {info.filename!r:.80} is a link.")
        limit -= info.file_size
        if limit < 0:
            raise TooMuchError(f"{path} expands to more than {most or 'two hundred times'} its size: it is a bomb.")
        found[info.filename] = info
    return found
