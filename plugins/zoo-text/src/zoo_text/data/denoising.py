"""Text for encoder-decoders that learn to restore it: spans behind sentinels (T5), and five noises (BART)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from zoo.data.batches import BatchDataset, generator, round_up
from zoo.data.data import at_least, require_fraction
from zoo.data.stdlib import StdlibDocs
from zoo.data.text import TextData
from zoo.data.tokenizer import BOS, EOS, MASK, PAD
from zoo.errors import UsageError
from zoo_text.data.corruption import (
    Corrupted,
    corrupt_spans,
    delete_tokens,
    infill,
    mask_tokens,
    permute_sentences,
    rotate,
    spans,
)  # fmt: skip
from zoo_text.data.derived import FromText, Stream
from zoo_text.data.masked import ENDS

Noise = Literal["masking", "deletion", "infilling", "permutation", "rotation"]
NOISES = ("masking", "deletion", "infilling", "permutation", "rotation")
SENTINEL = "<extra_id_{}>"
Corrupt = Callable[[np.ndarray, np.random.Generator], Corrupted]


class NoisedRows(BatchDataset):
    """Pieces of ``length`` tokens, corrupted anew in every epoch: drawn from (seed, epoch, row)."""

    def __init__(self, stream: Stream, length: int, most: int, corrupt: Corrupt, data: FromText) -> None:
        self.stream, self.length, self.most, self.corrupt = stream, length, most, corrupt
        self.pad, self.bos, self.eos = (data.number(name) for name in (PAD, BOS, EOS))
        self.decode = data.tokenizer.decode
        self.decoded = 0  # rows, from the first one, that are to be restored as a translation is

    def __len__(self) -> int:
        return self.stream.rows(self.length)

    def pair(self, index: int, epoch: int) -> Corrupted:
        """The corrupted piece and what restores it."""
        places, real = self.stream.places(np.array([index]), epoch, self.length)
        tokens = np.asarray(self.stream.tokens)[places[0][real[0]]].astype(np.int64)
        if len(tokens) < 2:  # the last piece of an evaluation may be one token, which nothing can be hidden of
            return Corrupted(tokens, tokens)
        return self.corrupt(tokens, generator(*self.stream.key(epoch), 3, index))

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """As sentence pairs: ``source`` (B, S): tokens, <eos>; ``target`` (B, T): <bos>, tokens, <eos>; ``…_valid``."""
        pairs = [self.pair(index, epoch) for index in indices.tolist()]
        columns: dict[str, Any] = {}
        for name, side, lead in (("source", 0, []), ("target", 1, [self.bos])):
            rows = [[*lead, *pair[side].tolist(), self.eos] for pair in pairs]
            width = int(round_up(max(map(len, rows)) - len(lead), self.most)) + len(lead)
            ids = np.full((len(rows), width), self.pad, np.int64)
            for row, tokens in enumerate(rows):
                ids[row, : len(tokens)] = tokens
            valid = np.arange(width) < np.array([len(tokens) for tokens in rows])[:, None]
            columns |= {name: torch.from_numpy(ids), f"{name}_valid": torch.from_numpy(valid)}
        if self.stream.seed is not None:
            return columns
        return {
            **columns,
            "source_text": [self.decode(pair.source) for pair in pairs],
            "text": [self.decode(pair.target) for pair in pairs],
            "type": [""] * len(pairs),
            "slots": torch.zeros(0, 5, dtype=torch.int64),
            "decode": torch.from_numpy(indices < self.decoded),
        }


class RestorationData(FromText):
    """What both ways of corrupting share: one tokenizer for both sides, and pieces that fit the model."""

    gives = "pairs of texts, a source and its target"
    added: Sequence[str] = (PAD, BOS, EOS, MASK)

    def __init__(self, text: Callable[[], TextData], eval_limit: int, seed: int | None) -> None:
        """
        Args:
            eval_limit: validation pieces, the first ones, whose targets are decoded.
            seed: of the noise; the text's unless given.
        """
        super().__init__(text, seed)
        at_least(0, eval_limit=eval_limit)
        at_least(8, max_length=self.text.max_length)
        self.eval_limit = eval_limit

    @property
    def length(self) -> int:
        """Tokens of a piece: what is shown and what must be said both fit max_length with their ends."""
        return self.max_length - 2

    def make_dataset(self, stream: Stream, split: str) -> BatchDataset:
        """Rows of corrupted text; of evaluation rows the first ``eval_limit`` are decoded."""
        rows = NoisedRows(stream, self.length, self.max_length, self.corrupter(), self)
        rows.decoded = 0 if split == "train" else self.eval_limit
        return rows

    def corrupter(self) -> Corrupt:
        """Corrupts one piece."""
        raise NotImplementedError

    @property
    def source_tokenizer(self) -> Any:
        """The tokenizer of the corrupted text."""
        return self.tokenizer

    @property
    def target_tokenizer(self) -> Any:
        """The tokenizer of the target, which is the same."""
        return self.tokenizer

    def detokenize(self, ids: Any) -> str:
        """The text of tokens, special tokens left out."""
        return self.tokenizer.decode(ids)

    def sizes(self) -> dict[str, int]:
        """The sizes of both vocabularies, which are one."""
        self.ready()
        return {"source_vocab_size": self.tokenizer.vocab_size, "target_vocab_size": self.tokenizer.vocab_size}

    def save(self, folder: Path) -> None:
        """Write the tokenizer for both sides into a folder."""
        self.ready()
        for side in ("source", "target"):
            self.tokenizer.save(folder / f"{side}-tokenizer.json")


class SpanCorruption(RestorationData):
    """A text with spans replaced by sentinels <extra_id_0>, <extra_id_1>, …, which the target says (T5).

    The target is each sentinel with its span, and one more sentinel as the end. Spans are `mean_span` tokens long on
    average and hold `rate` of the text, other ones in every epoch.
    """

    def __init__(
        self,
        text: Callable[[], TextData] = StdlibDocs,
        rate: float = 0.15,
        mean_span: float = 3.0,
        eval_limit: int = 32,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            rate: share of the tokens that is replaced by sentinels.
            mean_span: mean length of a replaced span in tokens.
        """
        super().__init__(text, eval_limit, seed)
        require_fraction(rate=rate)
        if mean_span < 1:
            raise UsageError(f"mean_span is {mean_span}: a span has at least one token")
        self.rate, self.mean_span = rate, mean_span
        most = max(1, round(max(round(self.length * rate), 1) / mean_span))
        self.sentinels = [SENTINEL.format(number) for number in range(most + 1)]
        self.added = (PAD, BOS, EOS, *reversed(self.sentinels))  # the first one has the highest number, as in T5

    def corrupter(self) -> Corrupt:
        """Replaces spans by sentinels (Raffel et al., 2020)."""
        return Spans(self.rate, self.mean_span, np.array([self.number(name) for name in self.sentinels]))

    def recipe(self) -> dict[str, Any]:
        """The rate and the mean length of spans."""
        return {"rate": self.rate, "mean_span": self.mean_span}


class Spans:
    """T5's corruption of one piece."""

    def __init__(self, rate: float, mean: float, sentinels: np.ndarray) -> None:
        self.rate, self.mean, self.sentinels = rate, mean, sentinels

    def __call__(self, tokens: np.ndarray, draw: np.random.Generator) -> Corrupted:
        return corrupt_spans(tokens, spans(len(tokens), self.rate, self.mean, draw), self.sentinels)


class Denoising(RestorationData):
    """A text with noise, which the target says whole (BART).

    Noises are applied in this order, those that are named: permutation of sentences, rotation of the piece, infilling
    (spans of Poisson(`mean_span`) tokens become one <mask> each), masking and deletion of single tokens; each of the
    last three takes `rate` of the tokens. BART's own choice is infilling with permutation.
    """

    def __init__(
        self,
        text: Callable[[], TextData] = StdlibDocs,
        noises: list[Noise] | None = None,
        rate: float = 0.3,
        mean_span: float = 3.0,
        eval_limit: int = 32,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            noises: what is done to a text, in a fixed order; infilling and permutation unless given.
            rate: share of the tokens that infilling, masking and deletion take, each.
            mean_span: mean length of an infilled span in tokens.
        """
        super().__init__(text, eval_limit, seed)
        require_fraction(rate=rate)
        self.noises = list(noises or ("infilling", "permutation"))
        for noise in self.noises:
            if noise not in NOISES:
                raise UsageError(f"unknown noise {noise!r}: it must be one of {', '.join(NOISES)}")
        if not mean_span >= 0.1:
            raise UsageError(f"mean_span is {mean_span}: it must be at least 0.1, for spans of 0 tokens hide nothing")
        self.rate, self.mean_span = rate, mean_span

    def corrupter(self) -> Corrupt:
        """Applies BART's noises (Lewis et al., 2020)."""
        size = self.tokenizer.vocab_size
        ends = np.array([self.tokenizer.decode([n]).rstrip(" ").endswith(ENDS) for n in range(size)])
        ends[self.number(EOS)] = True
        return Noises(self.noises, self.rate, self.mean_span, self.number(MASK), ends)

    def recipe(self) -> dict[str, Any]:
        """The noises, the rate and the mean length of spans."""
        return {"noises": sorted(self.noises), "rate": self.rate, "mean_span": self.mean_span}


class Noises:
    """BART's noise of one piece."""

    def __init__(self, noises: list[Noise], rate: float, mean: float, mask: int, ends: np.ndarray) -> None:
        self.noises, self.rate, self.mean, self.mask, self.ends = frozenset(noises), rate, mean, mask, ends

    def __call__(self, tokens: np.ndarray, draw: np.random.Generator) -> Corrupted:
        noisy = tokens
        if "permutation" in self.noises:
            noisy = permute_sentences(noisy, self.ends, draw)
        if "rotation" in self.noises:
            noisy = rotate(noisy, draw)
        if "infilling" in self.noises:
            noisy = infill(noisy, self.rate, self.mean, self.mask, draw)
        if "masking" in self.noises:
            noisy = mask_tokens(noisy, self.rate, self.mask, draw)
        if "deletion" in self.noises:
            noisy = delete_tokens(noisy, self.rate, draw)
        return Corrupted(noisy, tokens)
