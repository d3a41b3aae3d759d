"""Text for language models from files of any size, of which only a window is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.data.batches import generator, sample_sentence
from zoo.data.cache import cached_entry, digest, map_array, write_array, write_json
from zoo.data.data import at_least, log_once, require_fraction
from zoo.data.streams import Sample, ShardReader, Stream
from zoo.data.table_files import split_columns
from zoo.data.text import IGNORE, Blocks, TokenizedData, check_scheme
from zoo.data.tokenizer import EOS, Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo_scale.document_files import DocumentFiles, Format, Unit
from zoo_scale.document_paths import STDLIB, held_out, stream_splits

SAMPLE_BYTES = 2**23  # bytes of text that BPE is learned from


@dataclass(frozen=True)
class StreamOptions:
    """Options that are seldom changed.

    `separator`: what stands between two documents of a plain file, such as a blank line; empty: a file is a document.
    `field`: where the text of a JSON line or of a row of Parquet stands. `window`: rows of a shard that are shuffled
    and held in memory. `shards`: parts that are read side by side, a multiple of the processes. `val_bytes`: of text
    that validate at most.
    """

    separator: str = ""
    field: str = "text"
    window: int = 512
    shards: int = 8
    val_bytes: int = 2**21


class TextRows(Stream):
    """Rows of `length` tokens of the documents that do not validate, and the tokens that follow them.

    A document ends with <eos>, and every token of an epoch is predicted once. The units of the files are shuffled in
    every epoch and dealt to the shards; each packs its documents into rows and shuffles `window` of these at a time.
    """

    content = "targets"

    def __init__(
        self,
        files: DocumentFiles,
        tokenizer: Tokenizer,
        length: int,
        seed: int,
        options: StreamOptions,
        held_out: float,
    ) -> None:
        """`held_out` is the share of documents that are left out, since they validate."""
        self.files, self.length, self.seed = files, length, seed
        self.shards, self.window, self.held_out = options.shards, options.window, held_out
        self.units = files.units()
        self.byte_lengths = tokenizer.byte_lengths()
        self.eos = tokenizer.end_of_document()
        self._tokenizer, names = tokenizer, tokenizer.names if tokenizer.published else None
        self._arguments = (tokenizer.to_json(), names, tokenizer.splits_specials)
        self.source = digest([files.digests, tokenizer.identity(), held_out, files.form.separator, files.form.field])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokenizer": None}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, made anew in a process that this was sent to."""
        if self._tokenizer is None:
            import tokenizers

            content, *others = self._arguments
            self._tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(content), *others)
        return self._tokenizer

    def check_processes(self, world: int) -> None:
        """Raise UsageError where a process would get no shard, or nothing to read."""
        if self.shards % world:
            raise UsageError(
                f"{self.shards} shards cannot be dealt to {world} processes: set data.options.shards to a multiple of "
                f"{world}."
            )
        if len(self.units) < world:
            first_names = ", ".join(path.name for path in self.files.paths[:3])
            raise UsageError(
                f"the files can be divided into {len(self.units)} parts, fewer than {world} processes: {first_names}.\n"
                "A compressed file and a row group of Parquet are one part: give more files, or plain ones."
            )

    def open(self, shard: int, epoch: int) -> RowReader:
        """The rows of a shard."""
        return RowReader(self, shard, epoch)

    def shard_units(self, shard: int, epoch: int) -> list[Unit]:
        """The units of a shard in the order of an epoch."""
        order = generator(self.seed, epoch).permutation(len(self.units))
        return [self.units[number] for number in order[shard :: self.shards]]

    def sample(self, row: np.ndarray) -> Sample:
        """``inputs`` and ``targets`` (T,), -100 behind the row's end, and ``bytes`` () of the targets."""
        tokens = torch.zeros(self.length + 1, dtype=torch.int64)
        tokens[: len(row)] = torch.from_numpy(row.astype(np.int64))
        targets = tokens[1:].clone()
        targets[max(0, len(row) - 1) :] = IGNORE
        return {
            "inputs": tokens[:-1].clone(),
            "targets": targets,
            "bytes": torch.tensor(int(self.byte_lengths[row[1:]].sum())),
        }

    def blank(self) -> Sample:
        """A row without anything to predict."""
        return self.sample(np.zeros(0, np.int32))

    def identity(self) -> list[Any]:
        """Files, tokenizer, options and seed."""
        return [self.source, self.length, self.window, self.shards, self.seed]


class RowReader(ShardReader):
    """The rows of a shard, a shuffled window of them at a time.

    Its state is that of the first row of the window, and how many rows of the window were given: after a resume the
    window is read again.
    """

    def __init__(self, stream: TextRows, shard: int, epoch: int) -> None:
        self.stream, self.shard, self.epoch = stream, shard, epoch
        self.packer = Packer(stream, stream.shard_units(shard, epoch))
        self.number, self.row_count = -1, 0
        self.rows: list[np.ndarray] = []
        self.window_state = self.packer.state()

    def __next__(self) -> Sample:
        if self.row_count == len(self.rows):
            self._fill()
            if not self.rows:
                raise StopIteration
        self.row_count += 1
        return self.stream.sample(self.rows[self.row_count - 1])

    def _fill(self) -> None:
        self.window_state = self.packer.state()
        self.number, self.row_count = self.number + 1, 0
        rows = [row for _, row in zip(range(self.stream.window), self.packer, strict=False)]
        order = generator(self.stream.seed, self.epoch, 1, self.shard, self.number).permutation(len(rows))
        self.rows = [rows[place] for place in order]

    def state_dict(self) -> dict[str, Any]:
        """The window and the rows of it that were given."""
        return {"window": self.window_state, "number": self.number, "row_count": self.row_count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Read the window again, and leave out what was given."""
        self.packer = Packer(self.stream, self.packer.units, state_dict["window"])
        self.number, self.rows = state_dict["number"], []
        self.window_state = self.packer.state()
        if self.number >= 0:
            self.number -= 1
            self._fill()
        self.row_count = state_dict["row_count"]


class Packer:
    """Documents of some units, packed into rows of tokens, from a state on."""

    def __init__(self, stream: TextRows, units: list[Unit], state: Mapping[str, Any] | None = None) -> None:
        self.stream, self.units = stream, units
        state = state or {
            "unit": 0,
            "place": None,
            "first_row": 0,
            "carry": torch.tensor([stream.eos], dtype=torch.int32),
        }
        self.unit, self.place = state["unit"], tuple(state["place"]) if state["place"] is not None else None
        self.first_row, self.carry = state["first_row"], state["carry"].numpy()
        self.rows = self._rows()

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.rows

    def state(self) -> dict[str, Any]:
        """The document at hand, the tokens before it, and the rows that were cut since."""
        carry = torch.from_numpy(self.carry.copy())
        return {"unit": self.unit, "place": self.place, "first_row": self.first_row, "carry": carry}

    def _rows(self) -> Iterator[np.ndarray]:
        length, tokens = self.stream.length, self.carry
        end = np.array([self.stream.eos], np.int32)
        place, done = self.place, self.first_row  # place, and rows of the document that were cut before
        for unit in range(self.unit, len(self.units)):
            for document in self.stream.files.read(self.units[unit], place):
                if held_out(document.text, self.stream.held_out):
                    continue
                encoded = self.stream.tokenizer.encode_array(document.text).astype(np.int32)
                self.unit, self.place, self.first_row, self.carry = unit, document.place, done, tokens
                tokens = np.concatenate([tokens, encoded, end])
                whole = (len(tokens) - 1) // length
                for number in range(done, whole):
                    self.first_row = number + 1
                    yield tokens[number * length : (number + 1) * length + 1]
                tokens, done = tokens[whole * length :], 0
            place = None
        self.unit, self.place, self.first_row, self.carry = len(self.units), None, done, tokens
        if len(tokens) > 1 and not self.first_row:
            self.first_row = 1
            yield tokens


class TextStream(TokenizedData):
    r"""Text files that are read while a model trains: no more than a window of each shard is in memory.

    Plain text and JSON lines, also as ``.gz`` and ``.zst``, and tables, by ``PATH#COLUMN``.
    Files must be UTF-8; a byte-order mark is removed and ``\r\n`` becomes ``\n``. A document of more than 256 KB is cut
    at the end of a line. Validation has files of its own, or the documents whose hash falls into `val_fraction`, which
    are never trained with; of these at most `options.val_bytes` are used. A stream has no length: set max_steps.
    """

    gives = "texts"

    def __init__(
        self,
        path: str | list[str],
        tokenizer: str = "bpe",
        vocab_size: int = 8192,
        max_length: int = 64,
        batch_size: int = 12,
        val_fraction: float = 0.05,
        val_path: str | None = None,
        num_workers: int = 0,
        seed: int | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        """
        Args:
            path: a file, a glob pattern, a list of these, a folder, or `stdlib`: the sources of Python's library. Of
                tables, ``PATH#NAME`` reads a column.
            tokenizer: bytes, bpe that is learned from 8 MB of the text, a run's folder or a tokenizer.json.
            vocab_size: number of tokens, for bpe alone.
            max_length: tokens of a row: the model's context length.
            batch_size: rows per batch and process.
            val_fraction: share of the documents that are held out of training and validate.
            val_path: files that validate, instead of such a share.
            num_workers: processes that read and tokenize; 0 does that in the training process.
            seed: of the order; the run's unless given.
            options: how documents are divided, shuffled and dealt.
        """
        super().__init__(batch_size, num_workers, seed)
        self.options = options or StreamOptions()
        at_least(1, max_length=max_length, vocab_size=vocab_size)
        for name in ("window", "shards", "val_bytes"):
            at_least(1, **{f"options.{name}": getattr(self.options, name)})
        require_fraction(val_fraction=val_fraction)
        if tokenizer == "chars":
            raise UsageError("tokenizer is 'chars': a stream never sees all characters at once. Use bytes or bpe.")
        check_scheme(tokenizer, ("bytes", "bpe"))
        self.path, self.val_path, self.scheme, self.vocab_size = path, val_path, tokenizer, vocab_size
        self.max_length, self.val_fraction = max_length, val_fraction

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write a folder of random texts per split; the options that read them."""
        for number, split in enumerate(("train", "val")):
            (folder / split).mkdir()
            for part in range(9 if split == "train" else 1):
                draw = generator(seed, number, part)
                lines = [sample_sentence(draw) for _ in range(8)]
                atomic_files.write_text(folder / split / f"{part}.txt", "\n".join(lines) + "\n")
        return {"path": str(folder / "train"), "val_path": str(folder / "val"), "tokenizer": "bytes"}

    def load(self) -> None:
        """Look at the files, learn the tokenizer, and encode what validates, once; training reads its files later."""
        path, columns = (self.path, set()) if self.path == STDLIB else split_columns(self.path)
        form = Format(self.options.separator, next(iter(columns), self.options.field), bool(columns))
        paths = stream_splits(path, form.delimited)
        if self.val_path is not None:
            place, own_columns = split_columns(self.val_path)
            if own_columns - columns:
                raise UsageError("path and val_path name one column, the same in every table: PATH#COLUMN in both.")
            own = stream_splits(place, form.delimited, "val")
            paths["val"] = own.get("val") or own["train"]
        self.files = {split: DocumentFiles(paths[split], form) for split in ("train", "val") if split in paths}
        if "val" in self.files:
            refuse_common_files(self.files["train"], self.files["val"])
        key = {"format": 1, "files": {split: files.digests for split, files in self.files.items()}}
        key |= {"separator": form.separator, "field": [form.field, form.delimited], "val_bytes": self.options.val_bytes}
        key["val_fraction"] = None if "val" in self.files else self.val_fraction
        key |= {"tokenizer": self.scheme, "vocab_size": self.vocab_size if self.scheme == "bpe" else None}
        more: dict[str, Any] = {
            "endings": ["".join(path.suffixes) for files in self.files.values() for path in files.paths]
        }
        if self.scheme not in ("bpe", "bytes"):
            tokenizer = Tokenizer.of_run(self.scheme)
            key["tokenizer"], more["names"] = tokenizer.identity(), tokenizer.names
        entry = cached_entry("stream", key | more, self._build)
        self.tokenizer = Tokenizer.load(entry / "tokenizer.json")
        self._fingerprint = digest([key, self.tokenizer.identity()])
        if json.loads((entry / "meta.json").read_text("utf-8"))["more"]:
            log_once(
                f"of the text that validates, the first {self.options.val_bytes} bytes are used (options.val_bytes); "
                "nothing of the rest is trained with"
            )
        train = TextRows(
            self.files["train"], self.tokenizer, self.max_length, self.seed, self.options, self._held_out()
        )
        val = Blocks(map_array(entry / "val.npy"), self.tokenizer.byte_lengths(), self.max_length, None)
        self.streams, self.datasets = {"train": train}, {"val": val, "test": val}

    def _held_out(self) -> float:
        return 0.0 if "val" in self.files else self.val_fraction

    def _build(self, folder: Path) -> None:
        """Learn the tokenizer, and encode the text that validates."""
        if self.scheme == "bytes":
            tokenizer = Tokenizer.bytes((EOS,))
        elif self.scheme == "bpe":
            tokenizer = Tokenizer.bpe(self._sample(), self.vocab_size)
        else:
            tokenizer = Tokenizer.of_run(self.scheme)
        end = np.array([tokenizer.end_of_document()], np.int32)
        pieces, more = [end], False
        size = 0
        for text in self._validation():
            more = size >= self.options.val_bytes
            if more:
                break
            size += len(text.encode())
            pieces += [tokenizer.encode_array(text).astype(np.int32), end]
        if len(pieces) == 1:
            raise UsageError(
                f"no document validates: none of the files falls into val_fraction={self.val_fraction}, or val_path "
                "holds no text.\nRaise val_fraction, set data.options.separator to what divides documents, or val_path."
            )
        write_array(folder / "val.npy", np.concatenate(pieces))
        tokenizer.save(folder / "tokenizer.json")
        write_json(folder / "meta.json", {"more": more})

    def _validation(self) -> Iterator[str]:
        """The documents that validate."""
        files = self.files.get("val", self.files["train"])
        everything = "val" in self.files
        for unit in files.units():
            for document in files.read(unit):
                if everything or held_out(document.text, self.val_fraction):
                    yield document.text

    def _sample(self) -> Iterator[str]:
        """Documents of training, of units in a fixed random order, up to SAMPLE_BYTES."""
        files = self.files["train"]
        units, size = files.units(), 0
        for number in generator(0).permutation(len(units)):
            for document in files.read(units[number]):
                if not held_out(document.text, self._held_out()):
                    size += len(document.text.encode())
                    yield document.text
                    if size >= SAMPLE_BYTES:
                        return

    def file_digests(self) -> dict[str, str]:
        """Short digests of the files by their paths: a resume names the one that changed."""
        self.ready()
        return {
            str(path): digest[:16]
            for files in self.files.values()
            for path, digest in zip(files.paths, files.digests, strict=True)
        }


def refuse_common_files(train: DocumentFiles, val: DocumentFiles) -> None:
    """Raise UsageError where a file validates and is trained with, or one with the same content."""
    contents = dict(zip(train.digests, train.paths, strict=True))
    for path, content in zip(val.paths, val.digests, strict=True):
        if content in contents:
            raise UsageError(f"{path} of val_path has the content of {contents[content]}, which is trained with.")
