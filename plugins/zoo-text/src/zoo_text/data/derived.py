"""Base class of data modules derived from the tokens of a text: masked, corrupted, noised."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from zoo.data.batches import BatchDataset, generator
from zoo.data.text import TextData, TokenizedData
from zoo.errors import UsageError

EVALUATION_SEED = 20181011  # fixed seed of the noise in evaluation


class Stream(NamedTuple):
    """The tokens of a split, and how their order and their noise are drawn: ``seed`` is None in evaluation."""

    tokens: np.ndarray
    seed: int | None

    def key(self, epoch: int) -> tuple[int, int]:
        """The seed and the epoch of noise, which is the same in every evaluation: Lightning counts epochs there too."""
        return (EVALUATION_SEED, 0) if self.seed is None else (self.seed, epoch)

    def rows(self, length: int) -> int:
        """How many pieces of ``length`` tokens there are: all tokens in evaluation, whole pieces in training."""
        count = len(self.tokens)
        return -(-count // length) if self.seed is None else max(1, count // length)

    def places(self, indices: np.ndarray, epoch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the tokens of pieces stand, (B, length), and which of them there are.

        In training an epoch starts to cut at a place drawn from (seed, epoch), as in language modelling.
        """
        count = len(self.tokens)
        slack = 0 if self.seed is None else max(0, count - self.rows(length) * length)
        start = int(generator(*self.key(epoch), 1).integers(0, slack + 1)) if slack else 0
        places = start + indices[:, None] * length + np.arange(length)
        return np.minimum(places, count - 1), places < count


class FromText(TokenizedData):
    """Samples that are made anew in every epoch from the tokens of a text data module; a subclass says how.

    The text's own tokens keep their numbers; those that a subclass adds stand behind them.
    """

    gives = "texts"
    added: Sequence[str] = ()

    def __init__(self, text: Callable[[], TextData], seed: int | None) -> None:
        """
        Args:
            text: any text data module.
            seed: of what is hidden or changed; the text's unless given.
        """
        self.text = text()
        super().__init__(self.text.batch_size, self.text.num_workers, self.text.seed if seed is None else seed)

    @property
    def max_length(self) -> int:
        """The model's longest sequence: that of the text."""
        return self.text.max_length

    @abstractmethod
    def make_dataset(self, stream: Stream, split: str) -> BatchDataset:
        """The samples of a split."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """The options that say what is made: plain JSON."""

    def load(self) -> None:
        """Load the text, extend its tokenizer, and make the splits."""
        self.text.ready()
        self.tokenizer = self.text.tokenizer.extended(self.added)
        streams = {split: blocks.tokens for split, blocks in self.text.datasets.items()}  # type: ignore[attr-defined]
        self.datasets = {
            split: self.make_dataset(Stream(tokens, self.seed if split == "train" else None), split)
            for split, tokens in streams.items()
        }

    def number(self, name: str) -> int:
        """The number of a special token."""
        token = self.tokenizer.special(name)
        if token is None:
            raise UsageError(f"the tokenizer has no {name}, which this data needs.")
        return token

    def ordinary(self) -> np.ndarray:
        """The numbers of all tokens that stand for text."""
        special = set(self.tokenizer.specials.values())
        return np.array([number for number in range(self.tokenizer.vocab_size) if number not in special])

    def fingerprint(self) -> str:
        """SHA-256 of the text and of the options that change rows."""
        content = json.dumps([type(self).__name__, self.recipe()], sort_keys=True)
        return hashlib.sha256(f"{self.text.fingerprint()} {content}".encode()).hexdigest()
