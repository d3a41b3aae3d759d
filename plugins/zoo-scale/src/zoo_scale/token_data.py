"""Data of token files: windows of a corpus that is larger than memory, in an order that takes no memory either."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from zoo.data.batches import Plan, generator, sample_sentence
from zoo.data.cache import digest
from zoo.data.data import at_least
from zoo.data.text import Blocks, TokenizedData
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo_scale.prepare import tokenize
from zoo_scale.token_file import open_tokens

GROUP = 1024  # batches whose order is computed at a time
ROUNDS = 4


class WindowPlan(Plan):
    """Batches of `rows` samples, all processes together, as of RowPlan; memory does not grow with the samples.

    The order of training is a permutation that is computed where it is needed: a Feistel network of four rounds.
    """

    def __init__(self, items: int, rows: int, world: int, seed: int | None) -> None:
        # only the last batches can differ from the rule that each has `rows` samples
        self.regular = max(0, items // rows - 2)
        super().__init__([*range(self.regular * rows, items, rows), items], world, seed)
        self.items, self.rows = items, rows

    @property
    def count(self) -> int:
        """Global batches in an epoch."""
        return self.regular + super().count

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        """The global batches of an epoch: sample numbers."""
        for first in range(0, self.count, GROUP):
            numbers = np.arange(first, min(first + GROUP, self.count) + 1)
            edges = np.where(
                numbers < self.regular, numbers * self.rows, self.edges[np.maximum(0, numbers - self.regular)]
            )
            order = self._order(np.arange(edges[0], edges[-1]), epoch)
            yield from np.split(order, edges[1:-1] - edges[0])

    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The items in the order of an epoch, and the batches in theirs: (items,), (count,)."""
        return self._order(np.arange(self.items), epoch), np.arange(self.count)

    def _order(self, places: np.ndarray, epoch: int) -> np.ndarray:
        return places if self.seed is None else permute(places, self.items, self.seed, epoch)

    def identity(self) -> list[int | None]:
        """Items, rows per batch, seed and the end."""
        return [self.items, self.rows, self.seed, *self.end()]


def permute(places: np.ndarray, size: int, *seed: int) -> np.ndarray:
    """The members of a permutation of 0 to `size` - 1 at these places, int64.

    A Feistel network permutes the next power of four; what it sends beyond `size` is sent on until it is inside
    (Black and Rogaway, 2002), on average less than four times.
    """
    half = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = generator(*seed).integers(0, 2**63, ROUNDS, dtype=np.uint64)
    result = places.astype(np.uint64)
    outside = np.arange(len(result))
    while len(outside):
        upper, lower = result[outside] >> half, result[outside] & mask
        for key in keys:
            mixed = (lower ^ key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            upper, lower = lower, upper ^ ((mixed ^ (mixed >> np.uint64(32))) & mask)
        result[outside] = (upper << half) | lower
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)


class TokenFile(TokenizedData):
    """A token file that `zoo prepare` has made, mapped into memory: it may be larger than that.

    The documents are one stream of tokens, cut into rows. Every token but the first validates exactly once; in training
    the first row starts at a token drawn for each epoch, and rows come in an order drawn for each epoch.
    """

    gives = "texts"
    tokenizing_command = "zoo prepare FOLDER PATH --tokenizer"

    def __init__(
        self,
        path: str,
        tokenizer: str | None = None,
        max_length: int = 64,
        batch_size: int = 12,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            path: the folder of the token file.
            tokenizer: a run's folder or a tokenizer.json, which must be the one that made the tokens; not compared
                unless given.
            max_length: tokens of a row: the model's context length.
            batch_size: rows per batch and process.
            seed: of the order and of where rows start; the run's unless given.
        """
        super().__init__(batch_size, num_workers, seed)
        at_least(1, max_length=max_length)
        self.path, self.tokenizer_path, self.max_length = path, tokenizer, max_length

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write a token file of random texts; the option that reads it."""
        with tempfile.TemporaryDirectory() as place:
            here = Path(place)
            texts = [sample_sentence(generator(seed, number)) for number in range(60)]
            for part in range(3):
                lines = [json.dumps({"text": text}) for text in texts[part::3]]
                atomic_files.write_text(here / f"{part}.jsonl", "\n".join(lines) + "\n")
            Tokenizer.bpe(texts, 280).save(here / "tokenizer.json")
            tokenize(here / "tokens", [str(here / "*.jsonl")], here / "tokenizer.json", 0.2)
            shutil.copytree(here / "tokens", folder / "tokens")
        return {"path": str(folder / "tokens")}

    def load(self) -> None:
        """Map the token file. Raises UsageError where it is incomplete, torn, or of another tokenizer."""
        expected = None if self.tokenizer_path is None else Tokenizer.of_run(self.tokenizer_path)
        header, self.tokenizer, splits = open_tokens(Path(self.path).expanduser(), expected)
        contents = [content for _, content in header["files"]]
        self._fingerprint = digest([{**header, "files": contents}, self.max_length])
        sizes = self.tokenizer.byte_lengths()
        for split, tokens in splits.items():
            if len(tokens) < 2:
                raise UsageError(f"{self.path}: the {split} split has {len(tokens)} tokens: at least 2 are needed.")
        rows = {
            # of an array the rows need no more than its length and the tokens at some places
            split: Blocks(cast(np.ndarray, tokens), sizes, self.max_length, self.seed if split == "train" else None)
            for split, tokens in splits.items()
        }
        self.datasets = {"test": rows["val"], **rows}

    def plan(self, split: str, world: int, seed: int | None) -> Plan:
        """The batches of a split; `seed` is None where the order must not change."""
        return WindowPlan(len(self.datasets[split]), self.batch_size * world, world, seed)
