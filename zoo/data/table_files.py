"""Rows of table files by the names of columns: Parquet, Arrow, JSON lines, CSV and TSV, a piece of them in memory.

Data sources read these beside their own formats: folders of the library datasets, snapshots of data sets from the hub,
and what pandas writes. A value that is no text is an error that names the row.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import importlib.util
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from zoo.data.source_files import (
    BOM,
    VAL_NAMES,
    count_kinds,
    decode_text,
    find_place,
    list_folder,
    match_files,
    missing_file,
    refuse_bare_returns,
    strip_mark,
    tell_left_out,
    tell_once,
    tell_unused,
)
from zoo.errors import UsageError
from zoo.io import limits

BINARY = (".parquet", ".arrow")
RECORDS = (".jsonl", ".ndjson", ".json")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
COMPRESSIONS = (".gz", ".zst")
DATASET, DATASETS, INFO = "state.json", "dataset_dict.json", "dataset_info.json"  # of the library datasets
SPLITS = {"train": ("train", "training"), "val": VAL_NAMES, "test": ("test",)}
SPLIT_WORDS = {word for names in SPLITS.values() for word in names}
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\..*)")
BLOCK = 2**18  # bytes that are read at a time
ROWS = 64  # of Parquet and Arrow that are in memory
LONGEST_RECORD = 2**26  # bytes of a line or a field, which is parsed as a whole
KINDS = {bool: "a truth value", int: "a number", float: "a number", str: "a text", bytes: "bytes", list: "a list",
         dict: "an object", type(None): "null"}  # fmt: skip


WEIGHTS = ("sample_weight", "sample_weights", "loss_weight", "loss_weights")  # columns that say how much a row counts
# flags and weights, with the words for "learned like all else"
USUAL = {
    **dict.fromkeys((*WEIGHTS, "weight", "loss", "train", "training", "trainable"), ("1", "1.0", "true")),
    **dict.fromkeys(("mask", "masked", "prefix", "ignore"), ("0", "0.0", "false")),
}


class Row(NamedTuple):
    """Where a row stands, its values by what they are for, those of columns that are not read, as far as known, and the
    folder of its file, from which a row names others.
    """

    place: str
    values: dict[str, Any]
    others: Mapping[str, Any] = {}
    folder: Path = Path()


class ValueKindError(UsageError):
    """A value of a row cannot be used: ``kind`` says in a word why."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class Columns(NamedTuple):
    """By what it is for, the names that a column may have, of which the first in a file counts; the option for it.

    Columns that are ``refused`` would change what is learned from a row.
    """

    names: Mapping[str, Sequence[str]]
    option: str = "--data.columns.{role} NAME"
    refused: Sequence[str] = WEIGHTS


class Tables:
    """The table files of each split of a data set, of which some columns are read."""

    def __init__(
        self, paths: Mapping[str, str | list[str] | None], columns: Columns, recipes: str, names_files: bool = False
    ) -> None:
        """
        Args:
            paths: of "train", and of "val" and "test" where these are named apart.
            columns: what is read; ``a.b`` is the field b of an object a.
            recipes: recipes that need no files, for errors.
            names_files: rows may name files beside the tables, and ``tell_unused`` says later which files are not read.

        Raises UsageError where there are no training files.
        """
        self.columns = columns
        place = find_place(str(paths["train"]))
        self.is_folder = place.is_dir() and not any((place / name).is_file() for name in (DATASETS, DATASET))
        self.splits: dict[str, list[Path]] = {}
        for split, path in paths.items():
            if path is not None and split == "train":
                self.splits = find_splits(path, recipes, tells=not names_files)
            elif path is not None:
                own = find_splits(path, recipes, split)
                if split not in own and own.keys() != {"train"}:
                    raise UsageError(f"{path} has the splits {', '.join(own)}, and no {split}. Name the files of one.")
                self.splits[split] = own.get(split) or own["train"]

    def digests(self) -> dict[str, list[str]]:
        """SHA-256 of every file and its ending, by which it is read, by split."""
        result: dict[str, list[str]] = {}
        for split, files in self.splits.items():
            for path in files:
                with damage(path), path.open("rb") as file:
                    result.setdefault(split, []).append(hashlib.file_digest(file, "sha256").hexdigest() + _ending(path))
        return result

    def tell_unused(self, references: Iterable[Path]) -> None:
        """Say which files beside the tables are neither tables nor ``references`` in one."""
        used = {place for path in references for place in (path, path.parent)}
        tables = {path for files in self.splits.values() for path in files}
        for folder in sorted({path.parent for path in tables if self.is_folder}):
            tell_unused(folder, {*used, *tables})

    def rows(self, split: str) -> Iterator[Row]:
        """The rows of a split; columns that are not read are named.

        Raises UsageError for a split without any row, and for a value that would change what is learned, were it read.
        """
        empty, unread = True, dict[str, Any]()
        for path in self.splits[split]:
            for row in read_rows(path, self.columns):
                empty = False
                for name in row.others.keys() & {*self.columns.refused}:
                    value = row.others[name]
                    if not is_usual(name, value) and (name != "label" or value is False):  # others are of classes
                        raise UsageError(
                            f"{row.place} has {name}: {value!r:.40}, which is not read and would change what is "
                            f"learned. Leave out {name}, or the row."
                        )
                unread |= row.others
                yield row._replace(folder=path.parent)
        if empty:
            raise UsageError(f"{self.splits[split][0]} holds no row. Take it out of the path.")
        if unread:
            tell_once(f"{self.splits[split][0]}: not read are the columns {', '.join(sorted(unread))}")


def is_usual(name: str, value: Any) -> bool:
    """Whether a value under a name that is not read leaves what is learned as it is: nothing, or a flag's usual one."""
    return value in (None, "", [], {}, "[]") or str(value).lower() in USUAL.get(name, ())


def is_table(name: str, endings: Sequence[str] = (*BINARY, *RECORDS, *DELIMITERS)) -> bool:
    """Whether a file has the ending of a table."""
    return _ending(Path(name)) in endings


def holds_tables(folder: Path) -> bool:
    """Whether a folder is a data set of tables: one of the library datasets, or files in it, or in its ``data``."""
    if is_columnar(folder, lambda name: True):
        return True
    return any(list_folder(place, is_table, depth=0).files for place in (folder, folder / "data") if place.is_dir())


def is_columnar(path: str | Path | list[str], native: Callable[[str], bool]) -> bool:
    """Whether a path can only be read by columns: a Parquet or Arrow file, a folder of the library datasets, or one
    with such files and none that is ``native`` by its name.
    """
    if isinstance(path, list):
        return any(is_columnar(place, native) for place in path)
    place = find_place(path)
    if not place.is_dir():
        return _ending(Path(path)) in BINARY
    if (place / DATASETS).is_file() or ((place / DATASET).is_file() and _entry(place / DATASET, "_data_files")):
        return True
    folders = [folder for folder in (place, place / "data") if folder.is_dir()]
    tables = any(list_folder(folder, _is_binary, depth=0).files for folder in folders)
    return tables and not list_folder(place, native, empty=False).files


def read_header(path: Path) -> list[str]:
    """The fields of the first line of a TSV file."""
    with damage(path):
        return [cell.strip() for cell in next((text for _, text in _lines(path)), "").split("\t")]


def split_columns(path: str | list[str]) -> tuple[str | list[str], set[str]]:
    """A path option without the columns that stand behind ``#`` in its paths, and these."""
    columns, places = set(), []
    for place in [path] if isinstance(path, str) else path:
        base, mark, column = place.rpartition("#")
        is_name = _ending(Path(f"a{column}")) in (
            ".txt",
            ".md",
            *BINARY,
            *RECORDS,
            *DELIMITERS,
        )  # of a file, "notes #1.txt"
        if mark and column and not find_place(place).exists() and not is_name:
            columns.add(column)
            place = base
        places.append(place)
    if len(columns) > 1:
        raise UsageError(f"path names the columns {', '.join(sorted(columns))}: one is read, the same in every table.")
    return places[0] if isinstance(path, str) else places, columns


def find_splits(
    path: str | list[str], recipes: str, needed: str = "train", tells: bool = True
) -> dict[str, list[Path]]:
    """The table files of each split that a path has; those of a path without splits are the training files.

    A path is a file, a pattern, a list of these, a folder that datasets' save_to_disk writes, or one with files such as
    ``train.csv`` and ``data/validation-00000-of-00002.parquet``. Raises UsageError where files lack or are no tables,
    and where a path with splits lacks the one ``needed``. It ``tells`` which files of a folder are not read.
    """
    if isinstance(path, list):
        joined: dict[str, list[Path]] = {}
        for item in path:
            for split, own in find_splits(item, recipes, needed, tells).items():
                joined.setdefault(split, []).extend(own)
        if not joined:
            raise UsageError("path is an empty list: name at least one file")
        return joined
    place = find_place(path)
    if not place.exists() and glob.has_magic(str(place)):
        files = match_files(path)
        if not files:
            raise UsageError(f"no file matches {path}. Recipes with embedded data: {recipes}")
        return {"train": [_check_table(file) for file in files]}
    if not place.exists():
        raise missing_file(path, recipes)
    if place.is_file():
        return {"train": [_check_table(place)]}
    if (place / DATASETS).is_file():
        names = _entry(place / DATASETS, "splits")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"{place / DATASETS} has no list of splits: the folder is damaged.")
        return _by_split(place, {name: _saved_files(place / name) for name in names}, needed)
    if (place / DATASET).is_file():
        return {"train": _saved_files(place)}
    tables: dict[Path, dict[str, list[Path]]] = {}
    for folder in (place, place / "data"):
        listing = list_folder(folder, is_table, empty=False, depth=0) if folder.is_dir() else None
        if listing is not None and (by_name := _by_name(listing.files)):
            tables[folder] = by_name
            if tells:
                tell_left_out(folder, {file: why for file, why in listing.others.items() if why != "a folder"})
    if tables:
        folder = next((folder for folder, by_name in tables.items() if SPLIT_WORDS & by_name.keys()), min(tables))
        for other in tables.keys() - {folder}:
            tell_left_out(other, {file: _ending(file) for files in tables[other].values() for file in files})
        by_name = tables[folder]
        if not SPLIT_WORDS & by_name.keys():
            by_name = {"train": [file for files in by_name.values() for file in files]}
        return _by_split(place, {name: _whole(files) for name, files in by_name.items()}, needed)
    inside = list_folder(place, lambda name: is_table(name, (*BINARY, *RECORDS[:2], *DELIMITERS)))
    deeper = sorted({str(file.parent) for file in inside.files})
    near = f"\nName a folder with tables: {', '.join(deeper[:5])}" if deeper else ""
    raise UsageError(
        f"the folder {path} holds {count_kinds(inside.others) or 'no file'}, and no table in itself.{near}"
    )


def choose_columns(
    columns: Mapping[str, str] | None, names: Mapping[str, Sequence[str]], refused: Sequence[str] = ()
) -> Columns:
    """The columns that an option names by role, and the usual ``names`` for other roles. Raises UsageError."""
    columns = columns or {}
    if strange := sorted(columns.keys() - names.keys()):
        raise UsageError(f"columns has {strange[0]!r}: it names the columns of {', '.join(names)}, by these words")
    names_of = {role: [columns[role]] if role in columns else usual for role, usual in names.items()}
    return Columns(names_of, refused=(*WEIGHTS, *refused))


def read_rows(path: Path, columns: Columns, group: int | None = None, start: int = 0) -> Iterator[Row]:
    """The rows of a file, of a row group alone where it is named, from number ``start`` on.

    A label that the library datasets numbers is the name of its class. Raises UsageError for damage, and where a column
    lacks: it lists those there are.
    """
    with damage(path):
        if _ending(path) in BINARY:
            yield from _binary_rows(path, columns, group, start)
        elif _ending(path) in RECORDS:
            yield from _record_rows(path, columns, start)
        else:
            yield from _delimited_rows(path, columns, start)


def text_of(row: Row, role: str) -> str:
    r"""The text of a row, its line ends ``\r\n`` turned into ``\n``. Raises ValueKindError for what is no text."""
    value = row.values[role]
    if not isinstance(value, str):
        kind = KINDS.get(type(value), type(value).__name__)
        raise ValueKindError(f"{row.place}: the {role} is {kind} and not a text", kind)
    if "\0" in value:
        raise ValueKindError(f"{row.place}: the {role} holds a NUL, which no text does", "with NUL")
    return value.replace("\r\n", "\n")


def label_of(row: Row, role: str) -> str:
    """The name of a class: a text, or a whole number. Raises ValueKindError for another value, or an empty one."""
    value = row.values[role]
    if isinstance(value, int):
        if value < 0:
            raise ValueKindError(f"{row.place}: the {role} is {value}, which stands for none", "without a label")
        return str(value)
    if not (text := text_of(row, role).strip()):
        raise ValueKindError(f"{row.place}: the {role} is blank", "blank")
    return text


# files


def open_bytes(path: Path, offset: int = 0) -> Any:
    """The decompressed content of a file, from a byte on."""
    file: Any
    if path.suffix.lower() == ".gz":
        file = gzip.open(path, "rb")  # noqa: SIM115 - the caller closes it
    elif path.suffix.lower() == ".zst":
        require_pyarrow(path)
        import pyarrow

        file = pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd")
    else:
        file = path.open("rb")
        file.seek(offset)
        return file
    while offset:
        block = file.read(min(offset, BLOCK))
        if not block:
            raise EOFError(f"it ends {offset} bytes too early")
        offset -= len(block)
    return file


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Raise UsageError that names a file which is damaged or cannot be read."""
    ending = path.suffix.lower()
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        limits.refuse_other_file(path, ending)
        raise UsageError(f"{path} is a damaged or truncated gzip file: {error}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        binary = ending in (".zst", *BINARY)
        if binary and not isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            limits.refuse_other_file(path, ending)
            raise UsageError(f"{path} is a damaged or truncated {ending[1:]} file: {error}") from error
        if isinstance(error, OSError):
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
        raise


def require_pyarrow(path: Path) -> None:
    """Raise UsageError where pyarrow, which reads such a file, is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"{path} needs the package pyarrow: pip install 'zoo-transformers[data]'")


def open_parquet(path: Path) -> Any:
    """A Parquet file, whose row groups are read one at a time."""
    require_pyarrow(path)
    from pyarrow import parquet

    return parquet.ParquetFile(path)


def open_arrow(path: Path) -> Any:
    """The record batches of an Arrow file, in the stream format, as the library datasets writes, or the file format."""
    require_pyarrow(path)
    import pyarrow
    from pyarrow import ipc

    source = pyarrow.memory_map(str(path))
    if source.read(6) == b"ARROW1":
        source.seek(0)
        return ipc.open_file(source)
    source.seek(0)
    return ipc.open_stream(source)


def _ending(path: Path) -> str:
    """The ending of a table's name, in small letters and without that of a compression."""
    if path.suffix.lower() in COMPRESSIONS:
        inner = Path(path.stem).suffix.lower()
        return "" if inner in BINARY else inner  # which are compressed in themselves
    return path.suffix.lower()


def _is_binary(name: str) -> bool:
    return _ending(Path(name)) in BINARY


def _check_table(path: Path) -> Path:
    if not is_table(path.name):
        endings = " ".join((*BINARY, *RECORDS, *DELIMITERS))
        raise UsageError(f"{path} is no table: columns are read from files that end in {endings}")
    return path


def _entry(path: Path, name: str) -> Any:
    content = limits.read_json(path)
    return content.get(name) if isinstance(content, dict) else None


def _saved_files(folder: Path) -> list[Path]:
    """The files of a data set that the library datasets saved, in its order."""
    if not folder.is_dir() or not (folder / DATASET).is_file():
        raise UsageError(f"{folder / DATASET} is not there: the folder of a data set is not whole.")
    if _entry(folder / DATASET, "_indices_data_files") or _entry(folder / DATASET, "_indices_files"):
        raise UsageError(f"{folder} selects rows by an index. Save the rows: flatten_indices().save_to_disk(…)")
    members: Any = _entry(folder / DATASET, "_data_files")
    names: list[Any] = [member["filename"] for member in members] if isinstance(members, list) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UsageError(f"{folder / DATASET} names no file of data: the folder is damaged.")
    for name in names:
        if not (folder / name).is_file():
            raise UsageError(f"{folder / name} is not there, which {DATASET} names: the folder is not whole.")
    return [folder / name for name in names]


def _whole(files: list[Path]) -> list[Path]:
    """The same files. Raises UsageError where one of those lacks that their names count: ``-00001-of-00003``."""
    shards = [match for file in files if (match := SHARD.fullmatch(file.name))]
    for shard in shards:
        present = {other[2] for other in shards if (other[1], other[3], other[4]) == (shard[1], shard[3], shard[4])}
        lacking = [number for number in range(int(shard[3])) if f"{number:05}" not in present]
        if lacking:
            name = f"{shard[1]}-{lacking[0]:05}-of-{shard[3]}{shard[4]}"
            raise UsageError(f"{files[0].parent / name} is not there: {len(present)} of {int(shard[3])} parts are.")
    return files


def _by_name(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Table files by the word of a split in their names, between signs and digits, or by their first word.

    Raises UsageError for a name with the words of two splits, and for two tables of one name.
    """
    result: dict[str, list[Path]] = {}
    for file in files:
        pieces = re.split(r"[^a-z]+", file.name.lower())
        words = [piece for piece in pieces if piece in SPLIT_WORDS]
        if len({split for split, names in SPLITS.items() if {*words} & {*names}}) > 1:
            raise UsageError(f"{file} has the words of several splits in its name. Name the files of each by a path.")
        if words or _ending(file) != ".json":  # others are settings
            result.setdefault(words[0] if words else pieces[0], []).append(file)
    stems: dict[str, Path] = {}
    for file in (file for own in result.values() for file in own):
        twin = stems.setdefault(file.name.partition(_ending(file))[0], file)
        if twin is not file:
            raise UsageError(f"{twin} and {file.name} have one name: perhaps the same rows. Name one by its path.")
    return result


def _by_split(folder: Path, files: Mapping[str, list[Path]], needed: str) -> dict[str, list[Path]]:
    """Files by zoo's names of splits; other splits are named. Raises UsageError without the one that is needed."""
    result: dict[str, list[Path]] = {}
    for split, words in SPLITS.items():
        names = [name for name in files if name.lower() in words]
        if len(names) > 1:
            raise UsageError(f"{folder} has {' and '.join(names)}, both the {split} split. Name one by its path.")
        if names:
            result[split] = files[names[0]]
    others = [name for name in files if files[name] not in result.values()]
    if needed not in result and not (needed != "train" and result.keys() == {"train"}):
        what = "none to train on" if needed == "train" else f"no {needed}"
        raise UsageError(f"{folder} has the splits {', '.join(files)} and {what}. Name the files of one.")
    if others:
        from zoo.data.batches import log_once  # here: what is only read needs no torch

        log_once("%s: the splits %s are left out", folder, ", ".join(others))
    return result


# rows


def _choose(path: Path | str, names: Sequence[str], columns: Columns) -> dict[str, list[str]]:
    """The path of each role's column: its name, and those of fields inside it. Raises UsageError where one lacks."""
    result = {}
    for role, candidates in columns.names.items():
        for name in candidates:
            parts = [name] if name in names else name.split(".")
            if parts[0] in names:
                result[role] = parts
                break
        else:
            name_list = ", ".join(map(repr, names[:40])) + (", …" if len(names) > 40 else "")
            several = any(mark in names[0] for mark in ";\t|") if len(names) == 1 else False
            divided = " Its columns are divided by another character than its ending says." * several
            raise UsageError(
                f"{path} has no column {candidates[0]!r}; it has {name_list or 'none'}.{divided}\n"
                f"Name one: {columns.option.format(role=role)}"
            )
        if list(names).count(result[role][0]) > 1:
            raise UsageError(f"{path} has several columns of the name {result[role][0]!r}. Rename all but one.")
    return result


def _inside(value: Any, fields: Sequence[str], place: str) -> Any:
    """The value of a field inside of objects."""
    for field in fields:
        if not isinstance(value, dict) or field not in value:
            has = f"it has {', '.join(map(repr, value))}" if isinstance(value, dict) else "it is no object"
            raise UsageError(f"{place} has no field {field!r} inside of the column; {has}.")
        value = value[field]
    return value


def _binary_rows(path: Path, columns: Columns, group: int | None, start: int) -> Iterator[Row]:
    """The rows of Parquet or Arrow, ROWS of them in memory."""
    parquet = _ending(path) == ".parquet"
    with (open_parquet if parquet else open_arrow)(path) as table:
        schema = table.schema_arrow if parquet else table.schema
        paths = _choose(path, schema.names, columns)
        names = {role: _class_names(schema.metadata, parts) for role, parts in paths.items()}
        tops = list(dict.fromkeys(parts[0] for parts in paths.values()))
        others = dict.fromkeys(name for name in schema.names if name not in tops)
        watched = [name for name in others if name in columns.refused]
        number, before = 0, 0
        if parquet:
            groups = range(table.num_row_groups) if group is None else [group]
            before = sum(table.metadata.row_group(index).num_rows for index in range(groups[0] if groups else 0))
            batches = table.iter_batches(batch_size=ROWS, row_groups=list(groups), columns=tops + watched)
        elif hasattr(table, "num_record_batches"):
            batches = map(table.get_batch, range(table.num_record_batches))
        else:
            batches = table
        for batch in batches:
            for begin in range(0, len(batch), ROWS):
                part = batch.slice(begin, ROWS)
                if number + len(part) > start:
                    lists = {
                        name: part.column(part.schema.get_field_index(name)).to_pylist() for name in tops + watched
                    }
                    for row in range(max(0, start - number), len(part)):
                        place = f"{path}, row {before + number + row + 1}"
                        values = {}
                        for role, (top, *fields) in paths.items():
                            values[role] = _class_name(_inside(lists[top][row], fields, place), names[role], place)
                        yield Row(place, values, others | {name: lists[name][row] for name in watched})
                number += len(part)


def _class_names(metadata: Mapping[bytes, bytes] | None, parts: Sequence[str]) -> list[str]:
    """The names of classes that the library datasets notes for a column of numbers, or of lists of these."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        for part in parts:
            feature = feature[part]
        while isinstance(feature, list) or "feature" in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return [str(name) for name in feature.get("names") or ()]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):  # written by another library
        return []


def _class_name(value: Any, names: Sequence[str], place: str) -> Any:
    """A number, or a list of numbers, as the names of their classes; other values as they are."""
    if not names:
        return value
    if isinstance(value, list):
        return [_class_name(member, names, place) for member in value]
    if not isinstance(value, int) or value < 0:
        return value
    if value >= len(names):
        raise UsageError(f"{place} has the class {value}, and there are names of {len(names)} classes.")
    return names[value]


def _record_rows(path: Path, columns: Columns, start: int) -> Iterator[Row]:
    """The rows of JSON lines, or of a JSON file that is a list of objects."""
    records: Iterator[tuple[str, Any]]
    with path.open("rb") as file:
        is_list = path.suffix.lower() == ".json" and file.read(BLOCK).removeprefix(BOM).lstrip()[:1] == b"["
    if is_list:
        whole: Any = limits.read_json(path)
        records = ((f"{path}, row {number}", record) for number, record in enumerate(whole, 1))
    else:
        records = _json_lines(path)
    for number, (place, record) in enumerate(records):
        if number < start:
            continue
        if not isinstance(record, dict):
            raise UsageError(
                f"{place} is {KINDS.get(type(record))}: a row is an object, a name and a value per column."
            )
        paths = _choose(place, list(record), columns)
        values = {role: _inside(record[top], fields, place) for role, (top, *fields) in paths.items()}
        for top in {parts[0] for parts in paths.values()}:
            del record[top]
        yield Row(place, values, record)


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in _lines(path):
        if line.strip():
            try:
                yield f"{path}:{number}", limits.load_json(line.strip())
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{path}:{number} is no line of JSON: {error}") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their ends, and their numbers. Raises UsageError for what is not UTF-8, or endless."""
    with open_bytes(path) as file:
        waiting, number, at_end = b"", 0, False
        while not at_end:
            block = file.read(BLOCK)
            limits.refuse_other_kind(path, b"" if number or waiting else block)
            at_end = not block
            *lines, waiting = (waiting + block).split(b"\n") if block else (waiting, b"")
            if len(waiting) > LONGEST_RECORD:
                raise UsageError(
                    f"{path}:{number + 1} has more than {LONGEST_RECORD} bytes, and a line is read as a whole."
                )
            for line in lines:
                number += 1
                if number == 1:
                    line = strip_mark(path, line)
                    refuse_bare_returns(path, line if at_end else b"")
                text = decode_text(path, line, lambda _: number)  # noqa: B023 (called at once)
                if text or not at_end:
                    yield number, text + "\n"


def _is_quoted(cell: str) -> bool:
    """Whether a field is quoted as CSV quotes one that has quotation marks."""
    inside = cell[1:-1]
    return cell[:1] == cell[-1:] == '"' and '""' in inside and '"' not in inside.replace('""', "")


def _delimited_rows(path: Path, columns: Columns, start: int) -> Iterator[Row]:
    """The rows of CSV, whose quoted fields may hold commas and line ends, or of TSV, which knows no quotes."""
    line = 0

    def texts() -> Iterator[str]:
        nonlocal line
        for line, text in _lines(path):
            if "\0" in text:
                raise UsageError(f"{path}:{line} holds a NUL: the file is no text.")
            yield text

    quoting = {"quoting": csv.QUOTE_NONE} if _ending(path) == ".tsv" else {"strict": True}
    csv.field_size_limit(LONGEST_RECORD)
    reader = csv.reader(texts(), delimiter=DELIMITERS[_ending(path)], **cast(Any, quoting))
    names: list[str] | None = None
    paths: dict[str, list[str]] = {}
    number, begin, quoted = 0, 1, 0
    try:
        for cells in reader:
            place, begin = f"{path}:{begin}", line + 1
            if not cells:
                continue
            if names is None:
                names = [name.strip() for name in cells]
                paths = _choose(path, names, columns)
                continue
            if len(cells) != len(names):
                hint = " A field of .tsv cannot hold a tab or a line end: save it as .csv." * (_ending(path) == ".tsv")
                raise UsageError(f"{place} has {len(cells)} fields, and the header has {len(names)}.{hint}")
            if quoted == 0 and "quoting" in quoting and any(map(_is_quoted, cells)):
                quoted = line
                tell_once(f"{place}: fields in quotes keep these in .tsv. If a program quoted them, save it as .csv.")
            number += 1
            if number > start:
                cells_by_name = dict(zip(names, cells, strict=True))
                values = {role: _inside(cells_by_name[top], fields, place) for role, (top, *fields) in paths.items()}
                for top in {parts[0] for parts in paths.values()}:
                    del cells_by_name[top]
                yield Row(place, values, cells_by_name)
    except csv.Error as error:
        has_return = "a line of it ends with CR alone" if str(error).startswith("new-line character") else error
        raise UsageError(f"{path}:{begin} is no row of CSV: {has_return}") from error
    if names is None:
        raise UsageError(f"{path} is empty: it must begin with the names of its columns.")
