"""Text classification data: base classes for files and embedded texts."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from zoo.data.batches import BatchDataset, generator, round_up
from zoo.data.cache import write_json
from zoo.data.data import at_least, log_once
from zoo.data.text import TokenizedData
from zoo.data.tokenizer import CLS, PAD, SEP, Tokenizer
from zoo.errors import UsageError
from zoo.io import limits

CHOICE = 20180111  # fixed seed for the choice of a few labels
ADDED = (PAD, CLS, SEP)
IGNORE = -100


class LabelledText(NamedTuple):
    """A text and the name of its class."""

    text: str
    label: str


class LabelledRows(BatchDataset):
    """Rows <cls> and the tokens of a text, with one label each or one for each token."""

    def __init__(self, rows: list[list[int]], labels: list[Any], cls: int, pad: int, most: int) -> None:
        self.rows, self.labels, self.cls, self.pad, self.most = rows, labels, cls, pad, most

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``tokens`` (B, T), ``valid`` (B, T): False at padding, ``labels`` (B,), or (B, T) with -100 where none is."""
        tokens, valid = pad_rows([[self.cls, *self.rows[index]] for index in indices], self.pad, self.most)
        labels = self._labels([self.labels[index] for index in indices], tuple(tokens.shape))
        return {"tokens": tokens, "valid": valid, "labels": labels}

    @staticmethod
    def _labels(values: list[Any], shape: tuple[int, ...]) -> torch.Tensor:
        if not isinstance(values[0], list):
            return torch.tensor(values)
        labels = torch.full(shape, IGNORE)
        for row, own in enumerate(values):
            labels[row, 1 : len(own) + 1] = torch.tensor(own)
        return labels


def pad_rows(rows: list[list[int]], pad: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of tokens as one tensor (B, T), and which of them are real, (B, T): T is at most ``most``."""
    width = int(round_up(max(map(len, rows)), most))
    tokens = np.full((len(rows), width), pad, np.int64)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    valid = np.arange(width) < np.array([len(ids) for ids in rows])[:, None]
    return torch.from_numpy(tokens), torch.from_numpy(valid)


class MarkedTexts(TokenizedData):
    """Texts that are read whole, between special tokens, and cut to ``max_length`` tokens.

    The tokenizer is byte-level BPE learned from the training texts, or that of ``tokenizer``: a run's folder, so that
    the numbers mean what they meant in that run, or a tokenizer.json.
    """

    def __init__(
        self, tokenizer: str | None, vocab_size: int, max_length: int, batch_size: int, seed: int | None
    ) -> None:
        """
        Args:
            tokenizer: a run's folder or a tokenizer.json whose tokenizer is used, instead of one that
                is learned here.
            vocab_size: size of the byte-level BPE vocabulary that is learned from the training texts.
            max_length: tokens of a text that are read; the rest is cut off.
            seed: of the order; the run's unless given.
        """
        super().__init__(batch_size, 0, seed)
        at_least(2, max_length=max_length)
        self.tokenizer_path, self.vocab_size, self.max_length = tokenizer, vocab_size, max_length

    def _tokenizer(self, texts: list[str]) -> Tokenizer:
        if self.tokenizer_path is None:
            return Tokenizer.bpe(texts, self.vocab_size).extended(ADDED)
        return Tokenizer.of_run(self.tokenizer_path).extended(ADDED)

    @property
    def room(self) -> int:
        """How many tokens of a text a row holds."""
        return self.max_length - len(self.tokenizer.marked([]))

    def encode_texts(self, texts: list[str], split: str) -> list[list[int]]:
        """The tokens of texts without special ones, cut to ``room``, of which a message tells."""
        ids, room = self.tokenizer.encode_batch(texts), self.room
        long = sum(len(row) > room for row in ids)
        if long:
            log_once(f"{long} of {len(ids)} {split} texts are cut to their first {room} tokens")
        return [row[:room] for row in ids]


class LabelledData(MarkedTexts):
    """Texts with classes: what one label for a text and one for each token share.

    Of the training texts ``labels`` may be chosen: the rest is left out.
    """

    gives = "texts with classes"
    of_words = False  # whether words have classes, and of their tokens the first alone

    def __init__(
        self,
        tokenizer: str | None,
        vocab_size: int,
        max_length: int,
        batch_size: int,
        labels: int | None,
        seed: int | None,
    ) -> None:
        """
        Args:
            batch_size: texts per batch and process.
            labels: number of training texts that are used; all unless given.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, seed)
        if labels is not None:
            at_least(1, labels=labels)
        self.names: list[str] = []
        self.limit = labels

    def truncate(self, ids: list[int]) -> list[int]:
        """The tokens after <cls>: those of a text, and <sep> if a published tokenizer ends texts with it."""
        return self.tokenizer.marked(ids[: self.room])[1:]

    def marks(self) -> tuple[int, int]:
        """The numbers of <cls> and <pad>. Raises UsageError for a published tokenizer that begins texts otherwise."""
        before = self.tokenizer.marked([])[: self.tokenizer.marks_before]
        if len(before) != 1:
            name = self.tokenizer_path or "the tokenizer"
            raise UsageError(f"{name} begins a text with {len(before)} special tokens: training needs one, {CLS}.")
        return before[0], self.tokenizer.pad or 0

    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary and the number of classes."""
        self.ready()
        return {"vocab_size": self.tokenizer.vocab_size, "num_classes": len(self.names)}

    def number_classes(self, names: set[str]) -> None:
        """Number classes by their sorted names, or as in the run of ``tokenizer`` where that has the same classes."""
        self.names = sorted(names)
        path = Path(self.tokenizer_path or "").expanduser() / "labels.json"
        if self.tokenizer_path and path.is_file():
            try:
                theirs = limits.read_json(path)["names"]  # type: ignore[index]
                same = sorted(theirs) == self.names
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UsageError(f"{path} is damaged: {limits.describe_damage(error)}.") from error
            if same:
                self.names = theirs

    def digest(self, splits: dict[str, list[Any]]) -> str:
        """SHA-256 of the texts of the splits and of what their tokens and classes depend on."""
        numbered = [self.names] if self.names != sorted(self.names) else []
        content = hashlib.sha256(json.dumps([self.tokenizer.identity(), self.max_length, *numbered]).encode())
        for split, texts in sorted(splits.items()):
            content.update(json.dumps([split, texts]).encode())
        return content.hexdigest()

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the names of the classes into a folder."""
        super().save(folder)
        write_json(folder / "labels.json", {"names": self.names, **({"of_words": True} if self.of_words else {})})


class TextLabels(LabelledData):
    """Texts with one label each; classes are the sorted labels of the training texts. A subclass says which texts.

    Of ``labels`` texts every class has the same number, where there are enough.
    """

    @abstractmethod
    def texts(self) -> dict[str, list[LabelledText]]:
        """The texts of "train", "val" and perhaps "test"."""

    def load(self) -> None:
        """Read the texts, train the tokenizer, and make the splits. Raises UsageError for a split without texts."""
        texts = self.texts()
        for split in ("train", "val"):
            if not texts.get(split):
                raise UsageError(f"the {split} split has no text with a label")
        self.tokenizer = self._tokenizer([one.text for one in texts["train"]])
        self.number_classes({one.label for one in texts["train"]})
        check_classes(texts["train"])
        place = {name: number for number, name in enumerate(self.names)}
        for split, items in texts.items():
            for one in items:
                if one.label not in place:
                    raise UsageError(f"the {split} split has the label {one.label!r}, which no training text has")
        texts["train"] = select_labels(texts["train"], self.limit)
        self._fingerprint = self.digest(texts)
        rows = {split: self._rows(split, items, place) for split, items in texts.items()}
        self.datasets = {"test": rows["val"], **rows}

    def _rows(self, split: str, texts: list[LabelledText], place: dict[str, int]) -> LabelledRows:
        ids = self.encode_texts([one.text for one in texts], split)
        labels = [place[one.label] for one in texts]
        return LabelledRows([self.truncate(row) for row in ids], labels, *self.marks(), self.max_length)


def check_classes(texts: list[LabelledText]) -> None:
    """Raise UsageError where most classes of the training texts have a single text: the columns are other ones."""
    counts = Counter(one.label for one in texts)
    alone = [name for name, count in counts.items() if count == 1]
    if len(alone) > max(20, len(texts) // 2):
        raise UsageError(
            f"{len(counts)} classes for {len(texts)} training texts, and {len(alone)} of them have a "
            f"single text, such as {alone[0]!r:.60}.\nA line holds a class, a tab and a text, in this order."
        )


def select_labels(texts: list[LabelledText], limit: int | None) -> list[LabelledText]:
    """``limit`` texts, alternating between classes in a fixed order; all for None. Raises UsageError."""
    if limit is None:
        return texts
    if limit > len(texts):
        raise UsageError(f"labels is {limit}, and there are {len(texts)} training texts")
    counts: dict[str, int] = {}
    turn = []
    order = generator(CHOICE).permutation(len(texts))
    for index in order:
        label = texts[index].label
        counts[label] = counts.get(label, 0) + 1
        turn.append(counts[label])
    selected = order[np.argsort(turn, kind="stable")[:limit]]
    return [texts[index] for index in sorted(selected)]
