"""Text data for language models: blocks of consecutive tokens."""

from __future__ import annotations

import functools
import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from zoo.data.batches import BatchDataset, generator, sample_sentence
from zoo.data.cache import cached_entry, map_array, write_array, write_json
from zoo.data.data import Data, at_least, log_once, require_fraction, tell_repeated
from zoo.data.source_files import (
    VAL_NAMES,
    find_place,
    read_bytes,
    read_text,
)
from zoo.data.table_files import DELIMITERS, RECORDS, Columns, Tables, is_columnar, is_table, split_columns, text_of
from zoo.data.text_paths import RECIPES, is_text_file, text_files
from zoo.data.tokenizer import CLS, EOS, PART, Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.registry import suggest

SCHEMES = ("chars", "bytes", "bpe")
Scheme: TypeAlias = Literal["chars", "bytes", "bpe"] | str  # or a run's folder, or a tokenizer.json
IGNORE = -100


def check_scheme(tokenizer: str, schemes: Sequence[str]) -> None:
    """Raise UsageError unless a ``tokenizer`` option is one of ``schemes``, or a path where there is something."""
    if tokenizer not in schemes and not Path(tokenizer).expanduser().exists():
        raise UsageError(
            f"tokenizer is {tokenizer!r}: it must be {', '.join(schemes)}, a run's folder or a tokenizer.json, and "
            f"there is no such file or folder.{suggest(tokenizer, schemes)}"
        )


class Corpus(NamedTuple):
    """The documents of "train", "val" and perhaps "test", and whether <eos> stands between two documents."""

    splits: dict[str, list[str]]
    separate: bool


class Blocks(BatchDataset):
    """Rows of `length` tokens and the tokens that follow them.

    In evaluation (`seed` is None) row i starts at token i × length, so that every token but the first is predicted
    exactly once; the last row is padded. In training the first row starts at a token drawn from (seed, epoch), so that
    every epoch cuts elsewhere; up to two rows' worth of tokens at the ends are not used in an epoch.
    """

    def __init__(self, tokens: np.ndarray, byte_lengths: np.ndarray, length: int, seed: int | None) -> None:
        self.tokens, self.byte_lengths, self.length, self.seed = tokens, byte_lengths, length, seed
        predicted = len(tokens) - 1
        whole = max(1, predicted // length - (predicted >= 2 * length))
        self.slack = min(length - 1, max(0, predicted - whole * length))
        self.rows = -(-predicted // length) if seed is None else whole

    def __len__(self) -> int:
        return self.rows

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``inputs`` and ``targets`` (B, T), -100 where there is nothing to predict, and ``bytes`` (B,) of targets."""
        # the 1 makes these numbers other than those of the order
        offset = 0 if self.seed is None else int(generator(self.seed, epoch, 1).integers(0, self.slack + 1))
        places = (offset + indices * self.length)[:, None] + np.arange(self.length + 1)
        last = len(self.tokens) - 1
        window = torch.from_numpy(self.tokens[np.minimum(places, last)].astype(np.int64))
        real = torch.from_numpy(places[:, 1:] <= last)
        sizes = torch.from_numpy(self.byte_lengths)[window[:, 1:]]
        return {
            "inputs": window[:, :-1].contiguous(),
            "targets": window[:, 1:].masked_fill(~real, IGNORE),
            "bytes": (sizes * real).sum(1),
        }


class TokenizedData(Data):
    """Data of texts with one tokenizer, which `load` makes or reads."""

    tokenizer: Tokenizer

    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary."""
        self.ready()
        return {"vocab_size": self.tokenizer.vocab_size}

    def save(self, folder: Path) -> None:
        """Write the tokenizer into a folder."""
        self.ready()
        self.tokenizer.save(folder / "tokenizer.json")


class TextData(TokenizedData):
    """Documents packed into one stream of tokens per split."""

    gives = "texts"

    def __init__(
        self,
        tokenizer: Scheme,
        vocab_size: int,
        max_length: int,
        batch_size: int,
        val_fraction: float,
        num_workers: int,
        seed: int | None,
        test_fraction: float | None = None,
    ) -> None:
        """
        Args:
            tokenizer: how text becomes tokens: characters, bytes, BPE that is learned here, or the tokenizer of a
                run's folder or of a tokenizer.json.
            vocab_size: number of tokens, for bpe alone.
            max_length: tokens of a row: the model's context length.
            batch_size: rows per batch and process.
            val_fraction: share of the text, its end, that validates.
            seed: of the order and of where rows start; the run's unless given.
            test_fraction: share of the training text, its end, that neither trains nor validates: an untouched test
                split for comparisons. None leaves the training text whole; then the test split is what the data say.
        """
        super().__init__(batch_size, num_workers, seed)
        check_scheme(tokenizer, SCHEMES)
        at_least(1, max_length=max_length)
        require_fraction(val_fraction=val_fraction)
        self.scheme, self.vocab_size = tokenizer, vocab_size
        self.max_length, self.val_fraction = max_length, val_fraction
        if test_fraction is not None:
            require_fraction(test_fraction=test_fraction)
        self.test_fraction = test_fraction

    @abstractmethod
    def source(self) -> dict[str, Any]:
        """What the documents depend on: JSON that is cheap to find."""

    @abstractmethod
    def documents(self) -> Corpus:
        """The text of each split."""

    def load(self) -> None:
        """Read the text, train the tokenizer, and encode the splits once."""
        source = self.source()
        run_tokenizer = None if self.scheme in SCHEMES else Tokenizer.of_run(self.scheme)

        def pack(folder: Path) -> None:
            self._pack(folder, run_tokenizer)
            if self.source() != source:  # it would be kept under the name of what was there before
                raise UsageError(f"the files of {type(self).__name__} changed while they were read. Start again.")

        key = {"format": 1, "source": source, "tokenizer": self.scheme, "val_fraction": self.val_fraction}
        if self.scheme == "bpe":
            key["vocab_size"] = self.vocab_size
        if run_tokenizer is not None:
            key["tokenizer"] = [run_tokenizer.identity(), run_tokenizer.names]
            key["format"] = 2 if run_tokenizer.published else 1
        if self.test_fraction is not None:
            key["test_fraction"] = self.test_fraction
        entry = cached_entry("text", key, pack)
        self.tokenizer = run_tokenizer or Tokenizer.load(entry / "tokenizer.json")
        meta = json.loads((entry / "meta.json").read_text("utf-8"))
        self._fingerprint, scales = meta["fingerprint"], meta.get("bytes_by_counted", {})
        sizes = self.tokenizer.byte_lengths()
        streams = {file.stem: map_array(file) for file in sorted(entry.glob("*.npy"))}
        for split, stream in streams.items():
            if len(stream) < 2:
                raise UsageError(
                    f"the {split} split has {len(stream)} tokens: at least 2 are needed.\n"
                    "Give more text, another val_fraction or a val_path."
                )
            if len(stream) <= self.max_length:
                log_once(
                    f"the {split} split has {len(stream) - 1} tokens to predict, fewer than one row of "
                    f"max_length={self.max_length}: what is learned from it, or measured on it, says little"
                )
        rows = {
            split: Blocks(
                stream,
                (sizes * scales[split]).astype(np.float32) if split in scales else sizes,
                self.max_length,
                self.seed if split == "train" else None,
            )
            for split, stream in streams.items()
        }
        self.datasets = {"test": rows["val"], **rows}

    def _pack(self, folder: Path, run_tokenizer: Tokenizer | None) -> None:
        documents, separate = self.documents()
        if self.test_fraction is not None:
            documents = documents | split_test(documents["train"], self.test_fraction, separate)
        tokenizer = run_tokenizer or self._train_tokenizer(documents, separate)
        kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
        end = np.array([tokenizer.end_of_document()] if separate else [], kind)
        # what a published decoder's documents begin with; rows of encoders get their special tokens later
        begin = np.array(tokenizer.template[0] if tokenizer.special(CLS) is None else [], kind)
        content = hashlib.sha256(tokenizer.identity().encode())
        scales, sizes = {}, tokenizer.byte_lengths()
        for split, texts in sorted(documents.items()):
            pieces: list[np.ndarray] = []
            size = 0
            for text in texts:
                pieces += [*([end] if pieces else []), begin, *tokenizer.encode_parts(text, kind)]
                content.update(f"{split} {len(text)} ".encode())
                for place in range(0, len(text), PART):
                    part = text[place : place + PART].encode()
                    content.update(part)
                    size += len(part)
            stream = np.concatenate(pieces) if pieces else np.zeros(0, kind)
            write_array(folder / f"{split}.npy", stream)
            parts = range(0, len(stream) if tokenizer.published else 0, PART)
            of_tokens = sum(int(sizes[stream[place : place + PART]].sum()) for place in parts)
            if of_tokens and of_tokens != size:  # spaces and what a normaliser removes are in no token
                scales[split] = size / of_tokens
        tokenizer.save(folder / "tokenizer.json")
        write_json(folder / "meta.json", {"fingerprint": content.hexdigest(), "bytes_by_counted": scales})

    def _train_tokenizer(self, documents: dict[str, list[str]], separate: bool) -> Tokenizer:
        """Characters are those of all splits, since an unknown one could not be scored; BPE learns from training."""
        specials = (EOS,) if separate else ()
        if self.scheme == "chars":
            return Tokenizer.chars((text for texts in documents.values() for text in texts), specials)
        if self.scheme == "bytes":
            return Tokenizer.bytes(specials)
        return Tokenizer.bpe(documents["train"], self.vocab_size)


class TextFiles(TextData):
    r"""Text files, one document each, or a column of tables, a document in each row.

    Files must be UTF-8. A byte-order mark is removed and ``\r\n`` becomes ``\n``; all else stays as it is. The last
    `val_fraction` of the characters, files in order, is the validation split unless `val_path` is given; the test split
    is the validation split unless `test_path` is given; a folder of tables may have both. Between two files or rows
    stands the token ``<eos>``.
    """

    def __init__(
        self,
        path: str | list[str],
        tokenizer: Scheme = "chars",
        vocab_size: int = 8192,
        max_length: int = 64,
        batch_size: int = 12,
        val_fraction: float = 0.1,
        val_path: str | None = None,
        test_path: str | None = None,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            path: a file, a glob pattern, a list of these, or a folder of text files. ``PATH#NAME`` reads the column of
                this name from tables, a folder or file of JSON lines, CSV, TSV, Parquet or the library datasets.
            val_path: files that validate, instead of a share of the text.
            test_path: files that test; the validation files unless given.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, val_fraction, num_workers, seed)
        self.paths = {"train": path, "val": val_path, "test": test_path}

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write a folder of random texts per split; the options that read them."""
        for number, split in enumerate(("train", "val", "test")):
            (folder / split).mkdir()
            for part in range(2):
                draw = generator(seed, number, part)
                lines = [sample_sentence(draw) for _ in range(40 if split == "train" else 12)]
                atomic_files.write_text(folder / split / f"{part}.txt", "\n".join(lines) + "\n")
        return {"path": str(folder / "train"), "val_path": str(folder / "val"), "test_path": str(folder / "test")}

    def source(self) -> dict[str, Any]:
        """SHA-256 of every file, by split, and the column that is read."""
        if self.tables is not None:
            return {**self.tables.digests(), "columns": list(self.tables.columns.names["text"])}
        return {
            split: [hashlib.sha256(read_bytes(file, RECIPES)).hexdigest() for file in files]
            for split, files in self._files().items()
        }

    def documents(self) -> Corpus:
        """The texts of each split; validation is cut from training texts where it has no files."""
        if self.tables is not None:
            documents = {split: _column(self.tables, split) for split in self.tables.splits}
        else:
            documents = {split: [_text(file) for file in files] for split, files in self._files().items()}
        what = "files" if self.tables is None else "rows"
        if repeated := len(documents["train"]) - len(set(documents["train"])):
            log_once(f"{repeated} of {len(documents['train'])} training {what} have the text of another one")
        separate = any(len(texts) > 1 for texts in documents.values())
        if "val" not in documents:
            documents |= split_validation(documents["train"], self.val_fraction)
        tell_repeated(documents, what)
        return Corpus(documents, separate)

    @functools.cached_property
    def tables(self) -> Tables | None:
        """The tables, where a path names a column of one, or can be read by columns alone."""
        places = {split: split_columns(path) for split, path in self.paths.items() if path is not None}
        columns = places["train"][1]
        for split, (_, own) in places.items():
            if own - columns:
                raise UsageError(
                    f"{split} names the column {', '.join(own)}, and train {', '.join(columns) or 'none'}: one column "
                    "is read, the same in every table. Name it in data.path."
                )
        if not columns and not any(is_columnar(path, is_text_file) for path, _ in places.values()):
            return None
        names = Columns({"text": [*columns] or ["text"]}, "--data.path 'PATH#NAME'")
        return Tables({split: path for split, (path, _) in places.items()}, names, RECIPES)

    def _files(self) -> dict[str, list[Path]]:
        """The files of each split. Raises UsageError for a folder to train on whose files are named as splits."""
        files = {split: text_files(path) for split, path in self.paths.items() if path is not None}
        if rows := [file for file in files["train"] if is_table(file.name, (*RECORDS, *DELIMITERS))]:
            log_once(
                f"{rows[0]} is read as it stands, names and quotes too. For one of its columns: --data.path PATH#NAME"
            )
        path = self.paths["train"]
        if isinstance(path, str) and (folder := find_place(path)).is_dir():
            names = {file.name.lower().partition(".")[0]: file.name for file in files["train"] if file.parent == folder}
            held_out = [names[word] for word in (*VAL_NAMES, "test") if word in names]
            if "train" in names and held_out:
                raise UsageError(
                    f"the folder {path} has files that are named as splits, {names['train']} and "
                    f"{', '.join(held_out)}, and all of them would train.\nName the training file: "
                    f"--data.path {folder / names['train']}, and the others with data.val_path and data.test_path"
                )
        return files


def split_validation(texts: list[str], fraction: float) -> Mapping[str, list[str]]:
    """Texts up to the last `fraction` of their characters, and that last part."""
    remaining = int(sum(map(len, texts)) * (1 - fraction))
    train, val = [], []
    for text in texts:
        train.append(text[:remaining])
        val.append(text[remaining:])
        remaining = max(0, remaining - len(text))
    return {"train": [text for text in train if text], "val": [text for text in val if text]}


def split_test(texts: list[str], fraction: float, separate: bool) -> dict[str, list[str]]:
    """Training texts without the last `fraction` of their characters, and that last part as "test".

    Of texts that are ``separate`` documents, more than one, whole ones are taken, so that none is in both.
    """
    if not separate or len(texts) < 2:
        parts = split_validation(texts, fraction)
        return {"train": parts["train"], "test": parts["val"]}
    least, boundary, size = fraction * sum(map(len, texts)), len(texts), 0
    while size < least and boundary > 1:
        boundary -= 1
        size += len(texts[boundary])
    return {"train": texts[:boundary], "test": texts[boundary:]}


def _column(tables: Tables, split: str) -> list[str]:
    """The texts of a column, those without a character left out and counted. Raises UsageError where none has any."""
    texts = [text_of(row, "text") for row in tables.rows(split)]
    if empty := texts.count(""):
        log_once(f"{empty} of {len(texts)} {split} rows hold no text and are left out")
    if len(texts) == empty:
        raise UsageError(f"the {split} split has no row with a text: a language model needs text")
    return [text for text in texts if text]


def _text(file: Path) -> str:
    text = read_text(file, RECIPES)
    if not text:
        raise UsageError(f"{file} is empty: a language model needs text")
    return text
