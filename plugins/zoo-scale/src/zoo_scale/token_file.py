"""Token files: shards of token ids and documents' ends, mapped into memory, under a header that is written last."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zoo.errors import UsageError
from zoo.io import atomic_files

VERSION = 1
HEADER = "header.json"


class Shard(NamedTuple):
    """Token ids, and for each document the number of tokens of the shard up to its end."""

    tokens: np.ndarray
    ends: np.ndarray


def token_dtype(vocabulary: int) -> np.dtype:
    """Little-endian uint16 where all ids of a vocabulary fit, else uint32."""
    return np.dtype("<u2" if vocabulary <= 2**16 else "<u4")


def write_shard(folder: Path, index: int, documents: Iterable[Iterable[int]], vocabulary: int) -> None:
    """Write a shard's two files, the ends last, so that a shard with ends is complete.

    Raises UsageError for an id outside of the vocabulary.
    """
    arrays = [np.asarray(list(document), dtype=np.int64) for document in documents]
    tokens = np.concatenate([np.empty(0, np.int64), *arrays])
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
        wrong = tokens[(tokens < 0) | (tokens >= vocabulary)][0]
        raise UsageError(f"token id {wrong} is outside of the vocabulary of {vocabulary} tokens (shard {index})")
    ends = np.cumsum([len(array) for array in arrays], dtype="<i8")
    atomic_files.write_bytes(folder / f"{index:05}.tokens", tokens.astype(token_dtype(vocabulary)).tobytes())
    atomic_files.write_bytes(folder / f"{index:05}.ends", ends.tobytes())


def write_header(folder: Path, shards: int, vocabulary: int, tokenizer: str) -> None:
    """Declare a folder's shards complete; ``tokenizer`` is the fingerprint of the tokenizer that made the ids."""
    sizes = [[(folder / f"{i:05}.{kind}").stat().st_size for kind in ("tokens", "ends")] for i in range(shards)]
    header = {"format": "zoo tokens", "version": VERSION, "vocabulary": vocabulary, "tokenizer": tokenizer}
    atomic_files.write_json(folder / HEADER, header | {"bytes": sizes})


def open_shards(folder: Path, vocabulary: int, tokenizer: str) -> list[Shard]:
    """Map all shards, reading only the header, the files' sizes and each shard's last end.

    Raises UsageError, which names the file, where it is incomplete or torn, or has another version, vocabulary or
    tokenizer.
    """
    path = folder / HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        format_name, sizes = header["format"], [(int(a), int(b)) for a, b in header["bytes"]]
    except FileNotFoundError:
        raise UsageError(f"{path}: missing: the token file is incomplete") from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{path}: not the header of a token file") from None
    identity = {"version": VERSION, "vocabulary": vocabulary, "tokenizer": tokenizer}
    if format_name != "zoo tokens":
        raise UsageError(f"{path}: not the header of a token file")
    for name, value in identity.items():
        if header.get(name) != value:
            raise UsageError(f"{path}: {name} is {header.get(name)!r}, expected {value!r}")
    dtype = token_dtype(vocabulary)
    return [
        _open_shard(folder / f"{i:05}.tokens", folder / f"{i:05}.ends", size, dtype) for i, size in enumerate(sizes)
    ]


def _open_shard(tokens: Path, ends: Path, sizes: tuple[int, int], dtype: np.dtype) -> Shard:
    for path, size in zip((tokens, ends), sizes, strict=True):
        actual = path.stat().st_size if path.is_file() else None
        if actual != size:
            state = "missing" if actual is None else f"{actual} bytes"
            raise UsageError(f"{path}: {state}, expected {size} bytes: the token file is torn")
    shard = Shard(_map(tokens, dtype), _map(ends, np.dtype("<i8")))
    last = int(shard.ends[-1]) if len(shard.ends) else 0
    if last != len(shard.tokens):
        raise UsageError(f"{ends}: the last document ends at token {last}, expected {len(shard.tokens)}")
    return shard


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    """A file as a read-only array; numpy cannot map an empty file."""
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
