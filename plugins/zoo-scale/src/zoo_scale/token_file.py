"""Token files: a folder of arrays of token ids, two for each text file, under a header that is completed last.

``header.json`` says what the arrays were made from, and from the moment all are there the length and sha256 of each;
``tokenizer.json`` is the tokenizer; ``00000.train.npy`` and ``00000.val.npy`` hold the tokens of the
first text file, <eos> behind each document.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo.data.cache import digest, map_array, write_array
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo_scale.document_files import DocumentFiles
from zoo_scale.document_paths import held_out

FORMAT, VERSION = "zoo tokens", 1
HEADER, TOKENIZER = "header.json", "tokenizer.json"
HASHED_BYTES = 2**30  # up to this sum arrays are read and compared when they are opened
SPLITS = ("val", "train")  # in the order of writing: a shard with its training tokens is complete


def token_dtype(vocabulary: int) -> np.dtype:
    """Little-endian uint16 where all ids of a vocabulary fit, else uint32."""
    return np.dtype("<u2" if vocabulary <= 2**16 else "<u4")


def array_path(folder: Path, shard: int, split: str) -> Path:
    """Where a shard's tokens of a split are."""
    return folder / f"{shard:05}.{split}.npy"


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """sha256 of a tokenizer and of its special tokens' names."""
    return digest([tokenizer.to_json(), tokenizer.names, tokenizer.splits_specials])


def describe(files: DocumentFiles, tokenizer: Tokenizer, val: float) -> dict[str, Any]:
    """The header of the tokens of these files, without the number of tokens."""
    sources = [[str(path), content] for path, content in zip(files.paths, files.digests, strict=True)]
    return {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary": tokenizer.vocab_size,
        "tokenizer": tokenizer_digest(tokenizer),
        "val": val,
        "column": [files.form.field, files.form.delimited],
        "files": sources,
    }


def begin(folder: Path, description: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """Write an incomplete header and the tokenizer into a new folder; whether the tokens are there already.

    Raises UsageError for a folder with other content.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / HEADER).exists())):
        raise UsageError(f"{folder} exists and is no token file. Choose another folder.")
    if (folder / HEADER).exists():
        header = _read_header(folder / HEADER)
        for name, value in description.items():
            if header.get(name) != value:
                difference = _difference(header.get(name), value)
                raise UsageError(
                    f"{folder} was made with another {name}: {difference}.\nChoose another folder, or remove this one."
                )
        complete = header["tokens"] is not None
    else:
        folder.mkdir(parents=True, exist_ok=True)
        complete = False
        atomic_files.write_json(folder / HEADER, {**description, "tokens": None})
    atomic_files.remove_drafts(folder)
    if not complete:
        tokenizer.save(folder / TOKENIZER)
    return complete


def write_shard(folder: Path, shard: int, files: DocumentFiles, tokenizer: Tokenizer, val: float) -> None:
    """Write the tokens of one text file, the training tokens last. Memory does not grow with the file."""
    dtype, end = token_dtype(tokenizer.vocab_size), tokenizer.end_of_document()
    with tempfile.TemporaryFile(dir=folder) as train, tempfile.TemporaryFile(dir=folder) as validation:
        streams = {"train": train, "val": validation}
        for unit in files.units():
            if unit.file != shard:
                continue
            for document in files.read(unit):
                stream = streams["val" if held_out(document.text, val) else "train"]
                stream.write(np.append(tokenizer.encode_array(document.text), end).astype(dtype).tobytes())
        for split in SPLITS:
            streams[split].flush()
            array = np.memmap(streams[split], dtype, mode="r") if streams[split].tell() else np.empty(0, dtype)
            write_array(array_path(folder, shard, split), array)


def complete(folder: Path) -> dict[str, int]:
    """Write the lengths and sha256 of all arrays into the header, which declares them complete; the tokens by split."""
    header = _read_header(folder / HEADER)
    count = len(header["files"])
    header["tokens"] = {split: [_stamp(array_path(folder, shard, split)) for shard in range(count)] for split in SPLITS}
    atomic_files.write_json(folder / HEADER, header)
    return {split: sum(length for length, _ in stamps) for split, stamps in header["tokens"].items()}


def _stamp(path: Path) -> list[Any]:
    """The length and the sha256 of an array's file."""
    length = len(_map(path))
    with path.open("rb") as file:
        return [length, hashlib.file_digest(file, "sha256").hexdigest()]


class TokenArray:
    """The arrays of a split as one that is indexed by arrays of places, mapped into memory where it is used."""

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], dtype: np.dtype) -> None:
        """Raises UsageError, which names the file, where one is missing, shorter, or of another type."""
        filled = [(path, count) for path, count in zip(paths, counts, strict=True) if count]
        self.paths = [path for path, _ in filled]
        self.edges = np.cumsum([0, *(count for _, count in filled)], dtype=np.int64)
        self.dtype = dtype
        for array, path, count in zip(self.maps, self.paths, np.diff(self.edges), strict=True):
            if array.shape != (count,) or array.dtype != dtype:
                raise UsageError(
                    f"{path}: {array.shape} of {array.dtype}, expected ({count},) of {dtype}: the token file is torn"
                )

    def __getstate__(self) -> dict[str, Any]:
        # a mapped array would be sent to a loading process with all its content
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> list[np.ndarray]:
        """The arrays, of which only what is read comes into memory."""
        return [_map(path) for path in self.paths]

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """The tokens at places of any shape."""
        owners = np.searchsorted(self.edges, places, side="right") - 1
        result = np.empty(places.shape, self.dtype)
        for owner in np.unique(owners):
            here = owners == owner
            result[here] = self.maps[owner][places[here] - self.edges[owner]]
        return result


class TokenFolder(NamedTuple):
    """A complete token file: its header, its tokenizer, and the tokens of each split."""

    header: dict[str, Any]
    tokenizer: Tokenizer
    splits: dict[str, TokenArray]


def open_tokens(folder: Path, expected: Tokenizer | None = None) -> TokenFolder:
    """Map a token file.

    Raises UsageError, which names the file, where it is incomplete or torn, or has another version, vocabulary or
    tokenizer than it should. Arrays that changed at the same length are found up to HASHED_BYTES of all.
    """
    path = folder / HEADER
    header = _read_header(path)
    if header["tokens"] is None:
        raise UsageError(f"{path}: the token file is incomplete. Go on with the same `zoo prepare {folder} …`")
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    for origin, candidate in ((folder / TOKENIZER, tokenizer), (expected and expected.source, expected)):
        if candidate is None:
            continue
        for name, value in (("vocabulary", candidate.vocab_size), ("tokenizer", tokenizer_digest(candidate))):
            if header[name] != value:
                raise UsageError(f"{path}: {name} is {header[name]}, and that of {origin} is {value}")
    dtype = token_dtype(tokenizer.vocab_size)
    splits: dict[str, TokenArray] = {}
    stamps: dict[Path, Any] = {}
    for split, members in header["tokens"].items():
        paths = [array_path(folder, shard, split) for shard in range(len(members))]
        splits[split] = TokenArray(paths, [length for length, _ in members], dtype)
        stamps |= dict(zip(paths, members, strict=True))
    if sum(map(len, splits.values())) * dtype.itemsize <= HASHED_BYTES:
        for file, stamp in stamps.items():
            if _stamp(file) != stamp:
                raise UsageError(f"{file}: its content is not that which was written: the token file is torn")
    return TokenFolder(header, tokenizer, splits)


def _read_header(path: Path) -> dict[str, Any]:
    """The header of a token file of this version. Raises UsageError for any other file."""
    try:
        header: Any = limits.read_json(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: missing: there is no token file. `zoo prepare` makes one.") from None
    wrong = UsageError(f"{path}: not the header of a token file")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise wrong
    if header.get("version") != VERSION:
        raise UsageError(f"{path}: version is {header.get('version')!r}, expected {VERSION}")
    files, tokens = header.get("files"), header.get("tokens")
    if not isinstance(files, list) or not {"vocabulary", "tokenizer", "val", "tokens"} <= header.keys():
        raise wrong
    if tokens is not None and not (
        isinstance(tokens, dict) and tokens.keys() == set(SPLITS) and all(_fit(tokens[s], files) for s in SPLITS)
    ):
        raise wrong
    return header


def _fit(stamps: object, files: list[Any]) -> bool:
    """Whether these are a length and a sha256 for each file."""
    return (
        isinstance(stamps, list)
        and len(stamps) == len(files)
        and all(
            isinstance(stamp, list) and len(stamp) == 2 and type(stamp[0]) is int and stamp[0] >= 0 for stamp in stamps
        )
    )


def _difference(before: Any, now: Any) -> str:
    """Two values in a sentence; of two lists the first members that differ."""
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return f"{len(before)} before, {len(now)} now"
        before, now = next((a, b) for a, b in zip(before, now, strict=True) if a != b)
    return f"{json.dumps(before)} before, {json.dumps(now)} now"


def _map(path: Path) -> np.ndarray:
    """An array in a file. Raises UsageError, which names the file, where it is missing or shorter than it says."""
    try:
        return map_array(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: missing: the token file is torn") from None
    except (ValueError, EOFError) as error:  # numpy advises to unpickle what is no array
        raise UsageError(f"{path}: the token file is torn: it is no array, or shorter than it says") from error
