"""Text data for masked language models: rows of tokens with masks, of one text or of two (next sentence)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from zoo.data.batches import BatchDataset, generator
from zoo.data.data import at_least, require_fraction
from zoo.data.stdlib import StdlibDocs
from zoo.data.text import TextData
from zoo.data.tokenizer import CLS, MASK, PAD, SEP, Tokenizer
from zoo.errors import UsageError
from zoo_text.data.derived import FromText, Stream
from zoo_text.data.masking import Masker, Words

ENDS = (".", "!", "?", "\n", ":")
SHORTEST = 16  # tokens of two texts together, for which a document is worth a row


class MaskedRows(BatchDataset):
    """Rows <cls>, then ``length - 1`` consecutive tokens, as RoBERTa's full sentences: over the ends of documents."""

    def __init__(self, stream: Stream, length: int, cls: int, masker: Masker, specials: np.ndarray) -> None:
        self.stream, self.length, self.cls, self.masker, self.specials = stream, length, cls, masker, specials
        self.scored = 0  # rows, from the first one, whose pseudo-perplexity is wanted

    def __len__(self) -> int:
        return self.stream.rows(self.length - 1)

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``inputs`` (B, T), ``targets`` (B, T): -100 where nothing is hidden, ``whole`` (B, T): the true tokens,
        ``valid`` (B, T): False at padding, ``scored`` (B, T): places whose pseudo-perplexity is wanted.
        """
        places, real = self.stream.places(indices, epoch, self.length - 1)
        tokens = np.full((len(indices), self.length), self.cls, np.int64)
        tokens[:, 1:] = self.stream.tokens[places]
        valid = np.ones(tokens.shape, bool)
        valid[:, 1:] = real
        return self.masked(tokens, valid, indices, epoch)

    def masked(self, tokens: np.ndarray, valid: np.ndarray, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """The batch of these rows."""
        allowed = valid & ~np.isin(tokens, self.specials)
        inputs, targets = self.masker(tokens, allowed, *self.stream.key(epoch), indices)
        scored = allowed & (indices < self.scored)[:, None]
        columns = {"inputs": inputs, "targets": targets, "whole": tokens, "valid": valid, "scored": scored}
        return {name: torch.from_numpy(value) for name, value in columns.items()}


class PairRows(MaskedRows):
    """Rows <cls> A <sep> B <sep>: B follows A in a document or, in half of the rows, comes from another one."""

    def __init__(self, stream: Stream, length: int, marks: dict[str, int], masker: Masker, tokenizer: Tokenizer):
        super().__init__(stream, length, marks[CLS], masker, np.array(sorted(tokenizer.specials.values())))
        self.sep, self.pad = marks[SEP], marks[PAD]
        self.ends = np.array([tokenizer.decode([n]).rstrip(" ").endswith(ENDS) for n in range(tokenizer.vocab_size)])
        self.pieces = self._pieces(tokenizer.separator)

    def _pieces(self, separator: int | None) -> np.ndarray:
        """(rows, 3): where a piece begins and ends, and the number of its document."""
        tokens, room, pieces = np.asarray(self.stream.tokens), self.length - 3, []
        edges = [-1, *np.flatnonzero(tokens == separator).tolist(), len(tokens)]
        for document, (before, end) in enumerate(itertools.pairwise(edges)):
            starts = range(before + 1, end, room)
            pieces += [(at, min(at + room, end), document) for at in starts if min(at + room, end) - at >= SHORTEST]
        if len({document for *_, document in pieces}) < 2:
            raise UsageError(
                "next_sentence needs at least two documents of 16 tokens, and this text has fewer.\n"
                "Give a folder of files, or leave next_sentence out."
            )
        return np.array(pieces)

    def __len__(self) -> int:
        return len(self.pieces)

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """The same, with ``segments`` (B, T): 1 from B on, and ``follows`` (B,): whether B follows A."""
        tokens = np.full((len(indices), self.length), self.pad, np.int64)
        valid, segments = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, np.int64)
        follows = np.zeros(len(indices), np.int64)
        for row, index in enumerate(indices.tolist()):
            first, second, follows[row] = self.pair(index, epoch)
            line = [self.cls, *first, self.sep, *second, self.sep]
            tokens[row, : len(line)] = line
            valid[row, : len(line)] = True
            segments[row, len(first) + 2 : len(line)] = 1
        batch = self.masked(tokens, valid, indices, epoch)
        return {**batch, "segments": torch.from_numpy(segments), "follows": torch.from_numpy(follows)}

    def pair(self, index: int, epoch: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """A, B and whether B follows A, drawn from (seed, epoch, index)."""
        draw = generator(*self.stream.key(epoch), 2, index)
        start, end, document = self.pieces[index]
        middle = self.split(start, end, draw)
        first = self.stream.tokens[start:middle]
        if draw.random() < 0.5:
            return first, self.stream.tokens[middle:end], True
        while True:
            begin, stop, other = self.pieces[draw.integers(len(self.pieces))]
            if other != document:
                break
        # as long as what it stands for, or the length would tell
        first_token = max(begin, min(self.split(begin, stop, draw), stop - (end - middle)))
        return first, self.stream.tokens[first_token : min(stop, first_token + end - middle)], False

    def split(self, start: int, end: int, draw: np.random.Generator) -> int:
        """A place behind the end of a sentence in the middle half of a piece, or any place there."""
        low, high = start + (end - start) // 4, end - (end - start) // 4
        ends = low + 1 + np.flatnonzero(self.ends[self.stream.tokens[low : high - 1]])
        return int(draw.choice(ends)) if len(ends) else int(draw.integers(low, high))


class MaskedText(FromText):
    """A text with masked tokens, different in every epoch: masks depend on (seed, epoch, row)."""

    gives = "texts with hidden tokens"
    added = (PAD, CLS, SEP, MASK)

    def __init__(
        self,
        text: Callable[[], TextData] = StdlibDocs,
        rate: float = 0.15,
        whole_words: bool = False,
        next_sentence: bool = False,
        scored: int = 8,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            text: any text data module, whose max_length counts <cls> too.
            rate: share of the tokens that is hidden.
            whole_words: hide words, not single tokens.
            next_sentence: make rows of two texts, of which half follow each other.
            scored: validation rows, the first ones, whose pseudo-perplexity is measured.
            seed: of what is hidden; the text's unless given.
        """
        super().__init__(text, seed)
        require_fraction(rate=rate)
        at_least(0, scored=scored)
        at_least(2 * SHORTEST if next_sentence else 2, max_length=self.text.max_length)
        self.rate, self.whole_words, self.next_sentence, self.scored = rate, whole_words, next_sentence, scored

    def make_dataset(self, stream: Stream, split: str) -> BatchDataset:
        """Rows of text with hidden tokens."""
        words = Words.of(self.tokenizer) if self.whole_words else None
        masker = Masker(self.rate, self.number(MASK), self.ordinary(), words)
        marks = {name: self.number(name) for name in self.added}
        rows: MaskedRows
        if self.next_sentence:
            rows = PairRows(stream, self.max_length, marks, masker, self.tokenizer)
        else:
            specials = np.array(sorted(self.tokenizer.specials.values()))
            rows = MaskedRows(stream, self.max_length, marks[CLS], masker, specials)
        rows.scored = 0 if split == "train" else self.scored
        return rows

    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary and the number of the mask token."""
        return {**super().sizes(), "mask_token": self.number(MASK)}

    def recipe(self) -> dict[str, Any]:
        """The options that change rows."""
        return {"rate": self.rate, "whole_words": self.whole_words, "next_sentence": self.next_sentence}
