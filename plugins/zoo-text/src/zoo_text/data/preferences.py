"""Pairs of answers of which one is preferred: made from a text, or read from files of JSON lines."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from zoo.data.batches import BatchDataset, generator, round_up, sample_sentence
from zoo.data.data import at_least, log_once, require_fraction, split_by_content, tell_repeated
from zoo.data.stdlib import StdlibDocs
from zoo.data.table_files import Tables, choose_columns, text_of
from zoo.data.text import TextData, TokenizedData
from zoo.data.tokenizer import EOS, Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo_text.data.derived import FromText, Stream
from zoo_text.data.dialogue import REFUSED

RECIPES = "dpo-tiny"
SPLIT = 20180111  # fixed seed of the split
KEYS = ("prompt", "chosen", "rejected")


class Preference(NamedTuple):
    """Tokens of a prompt, of the preferred answer and of the other one, (T,) each."""

    prompt: np.ndarray
    chosen: np.ndarray
    rejected: np.ndarray


class PreferenceRows(BatchDataset):
    """Pairs of texts with one prompt, padded on the right; a subclass has the pairs."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    @abstractmethod
    def pair(self, index: int, epoch: int) -> Preference:
        """One sample as it looks in an epoch."""

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``chosen`` and ``rejected`` (B, T): prompt and answer, ``…_valid`` (B, T): False at padding, and ``prompt``
        (B,): the tokens of each prompt.
        """
        pairs = [self.pair(index, epoch) for index in indices.tolist()]
        columns: dict[str, Any] = {}
        for name in ("chosen", "rejected"):
            rows = [np.concatenate([pair.prompt, getattr(pair, name)]) for pair in pairs]
            width = int(round_up(max(map(len, rows)), self.max_length))
            tokens = np.zeros((len(rows), width), np.int64)
            for row, own in enumerate(rows):
                tokens[row, : len(own)] = own
            valid = np.arange(width) < np.array([len(own) for own in rows])[:, None]
            columns |= {name: torch.from_numpy(tokens), f"{name}_valid": torch.from_numpy(valid)}
        return {**columns, "prompt": torch.tensor([len(pair.prompt) for pair in pairs])}


class ContinuedRows(PreferenceRows):
    """Pieces of a text: what follows a prompt there is preferred to what does not."""

    def __init__(self, stream: Stream, max_length: int, prompt: int, against: str) -> None:
        super().__init__(max_length)
        self.stream, self.prompt, self.against = stream, prompt, against
        self.count = len(stream.tokens) // max_length  # whole pieces alone

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int, epoch: int) -> Preference:
        """A piece whose answer has from half of the room to all of it, drawn from (seed, epoch, index)."""
        draw, tokens = generator(*self.stream.key(epoch), 5, index), self.stream.tokens
        places, _ = self.stream.places(np.array([index]), epoch, self.max_length)
        piece, room = np.asarray(tokens)[places[0]].astype(np.int64), self.max_length - self.prompt
        lengths = draw.integers(max(1, room // 2), room + 1, 2)
        answer = piece[self.prompt : self.prompt + lengths[0]]
        if self.against == "shuffled":
            other = draw.permutation(answer)
        else:
            start = int(draw.integers(0, len(tokens) - lengths[1] + 1))
            other = np.asarray(tokens[start : start + lengths[1]]).astype(np.int64)
        return Preference(piece[: self.prompt], answer, other)


class Preferences(FromText):
    """Preferences made from a text: how it goes on is preferred to another answer, drawn anew in every epoch.

    A small, exact source for what learns from pairs. Pairs of people's choices are read by PreferenceFiles.
    """

    def __init__(
        self,
        text: Callable[[], TextData] = StdlibDocs,
        prompt: int | None = None,
        against: Literal["shuffled", "elsewhere"] = "shuffled",
        seed: int | None = None,
    ) -> None:
        """
        Args:
            text: any text data module; its max_length is that of a prompt and an answer.
            prompt: tokens of a prompt; half of max_length unless given.
            against: the other answer: the same tokens in another order, or what stands elsewhere in the text.
            seed: of the answers; the text's unless given.
        """
        super().__init__(text, seed)
        self.prompt = self.max_length // 2 if prompt is None else prompt
        at_least(1, prompt=self.prompt)
        if self.max_length - self.prompt < 2:
            raise UsageError(f"prompt is {self.prompt}: an answer needs 2 of the {self.max_length} tokens of a row")
        if against not in ("shuffled", "elsewhere"):
            raise UsageError(f"against is {against!r}: it must be shuffled or elsewhere")
        self.against = against

    def make_dataset(self, stream: Stream, split: str) -> BatchDataset:
        """The pairs of a split. Raises UsageError where it has no whole piece."""
        rows = ContinuedRows(stream, self.max_length, self.prompt, self.against)
        if not len(rows):
            raise UsageError(f"the {split} split has fewer than max_length={self.max_length} tokens: no pair fits")
        return rows

    def recipe(self) -> dict[str, Any]:
        """The options that change rows."""
        return {"prompt": self.prompt, "against": self.against, "max_length": self.max_length}


class FileRows(PreferenceRows):
    """The pairs of a file, the same in every epoch."""

    def __init__(self, pairs: Sequence[Preference], max_length: int) -> None:
        super().__init__(max_length)
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def pair(self, index: int, epoch: int) -> Preference:
        """The pair of this number."""
        return self.pairs[index]


class PreferenceFiles(TokenizedData):
    """Pairs of answers from JSON lines, ``{"prompt": …, "chosen": …, "rejected": …}`` each, or from tables.

    An answer ends with <eos>. A pair is left out where prompt and answer have more than ``max_length`` tokens.
    Without files that test, validation does.
    """

    gives = "texts"

    def __init__(
        self,
        path: str,
        tokenizer: str,
        val_path: str | None = None,
        val_fraction: float = 0.1,
        max_length: int = 256,
        batch_size: int = 16,
        num_workers: int = 0,
        seed: int | None = None,
        columns: dict[str, str] | None = None,
    ) -> None:
        """
        Args:
            path: a file of JSON lines, or a table.
            tokenizer: folder of the run that training starts from, or a tokenizer.json.
            val_path: a file that validates, instead of a share of the pairs.
            val_fraction: share of the pairs, equal ones together, that validates.
            max_length: most tokens of a prompt and an answer.
            batch_size: pairs per batch and process.
            seed: of the order; the run's unless given.
            columns: names of the columns `prompt`, `chosen` and `rejected` in tables, where they have others.
        """
        super().__init__(batch_size, num_workers, seed)
        self.columns = columns
        at_least(3, max_length=max_length)
        require_fraction(val_fraction=val_fraction)
        self.paths = {"train": path, "val": val_path}
        self.tokenizer_path, self.max_length, self.val_fraction = tokenizer, max_length, val_fraction

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write a tokenizer and random pairs; the options that read them."""
        Tokenizer.bytes([EOS, f"<{seed}>"]).save(folder / "tokenizer.json")
        for number, split in enumerate(("train", "val")):
            draw = generator(seed, number)
            lines = [{key: sample_sentence(draw, 4) for key in KEYS} for _ in range(40 if split == "train" else 12)]
            atomic_files.write_text(folder / f"{split}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        return {"path": str(folder / "train.jsonl"), "val_path": str(folder / "val.jsonl"), "tokenizer": str(folder)}

    def load(self) -> None:
        """Read and encode the pairs. Raises UsageError that names a line which is none, or has no token."""
        self.tokenizer = Tokenizer.of_run(self.tokenizer_path)
        if self.tokenizer.eos is None:
            raise UsageError(f"the tokenizer {self.tokenizer_path} has no {EOS}, with which an answer ends.")
        columns = choose_columns(self.columns, {key: [key] for key in KEYS}, REFUSED)
        tables = Tables(self.paths, columns, RECIPES)
        texts = {split: read_pairs(tables, split) for split in tables.splits}
        if "val" not in texts:
            validates = split_by_content(texts["train"], self.val_fraction, [SPLIT])
            every = list(zip(texts["train"], validates, strict=True))
            for name in ("train", "val"):
                texts[name] = [one for one, held_out in every if held_out == (name == "val")]
        else:
            tell_repeated(texts, "pairs")
        content = hashlib.sha256(self.tokenizer.identity().encode() + str(self.max_length).encode())
        for split, pairs in sorted(texts.items()):
            content.update(f"{split} {json.dumps(pairs)}".encode())
        self._fingerprint = content.hexdigest()
        encoded = {split: [pair for one in pairs if (pair := self.encode(one))] for split, pairs in texts.items()}
        for split, whole in encoded.items():
            if missing := len(texts[split]) - len(whole):
                log_once(f"{missing} {split} pairs have more than max_length={self.max_length} tokens: left out")
            if not whole:
                raise UsageError(f"the {split} split has no pair of at most max_length={self.max_length} tokens.")
        rows = {split: FileRows(pairs, self.max_length) for split, pairs in encoded.items()}
        self.datasets = {"test": rows["val"], **rows}

    def encode(self, texts: tuple[str, str, str]) -> Preference | None:
        """The tokens of a pair, the prompt's as generation has them; None where they are more than ``max_length``."""
        prompt, tokenizer = texts[0], self.tokenizer
        begin = [*tokenizer.template[0], *tokenizer.encode(prompt)] or tokenizer.beginning()
        answers = [tokenizer.encode_rest(text, prompt) if prompt else tokenizer.encode(text) for text in texts[1:]]
        rows = [begin, *([*answer, tokenizer.end_of_document()] for answer in answers)]
        pair = Preference(*(np.array(row, np.int64) for row in rows))
        return pair if len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) <= self.max_length else None


def read_pairs(tables: Tables, split: str) -> list[tuple[str, str, str]]:
    """Prompt, chosen and rejected answer of every row. Raises UsageError that names a row which has them not."""
    pairs: list[tuple[str, str, str]] = []
    for row in tables.rows(split):
        prompt, better, worse = (text_of(row, key) for key in KEYS)
        if better == worse:
            raise UsageError(f"{row.place}: chosen and rejected are the same answer, which says nothing.")
        pairs.append((prompt, better, worse))
    if len(pairs) < 2:
        raise UsageError(f"{tables.splits[split][0]} holds {len(pairs)} pairs: at least 2 are needed.")
    return pairs
