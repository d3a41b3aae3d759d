"""Pairs of sentences for translation: the part that files and generated corpora share."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from zoo.data.batches import BatchDataset, Plan, TokenPlan, log_once, round_up
from zoo.data.cache import cached_entry, map_array, write_array, write_json
from zoo.data.data import Data, at_least
from zoo.data.tokenizer import BOS, EOS, PAD, Tokenizer, language_token
from zoo.errors import UsageError

FILES = ("source-tokenizer.json", "target-tokenizer.json")
SPECIALS = (PAD, BOS, EOS)  # 0, 1, 2
Span: TypeAlias = tuple[int, int]  # [start, end)
TooLong: TypeAlias = Literal["error", "skip"]


@dataclass(frozen=True)
class Pair:
    """A sentence, its translation, what kind of pair it is, and which of their characters say the same.

    ``language``, if any, is that of the translation, whose token then begins the source.
    """

    source: str
    target: str
    kind: str = ""
    slots: tuple[tuple[Span, Span], ...] = ()
    language: str = ""


class Marks(NamedTuple):
    """The numbers of the tokens that end a source, and begin and end a target."""

    source_end: int
    start: int
    target_end: int


class Side:
    """The token numbers of all sentences of one side, one after the other."""

    def __init__(self, ids: np.ndarray, edges: np.ndarray) -> None:
        self.ids, self.edges = ids, edges
        self.lengths = np.diff(edges)

    @classmethod
    def load(cls, folder: Path, name: str) -> Side:
        """Read one side of a split from a cache entry."""
        return cls(map_array(folder / f"{name}.ids.npy"), np.load(folder / f"{name}.edges.npy"))

    @staticmethod
    def save(folder: Path, name: str, sentences: Sequence[Sequence[int]]) -> None:
        """Write one side of a split to a cache entry."""
        edges = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
        flat = np.fromiter((number for sentence in sentences for number in sentence), np.int32, count=int(edges[-1]))
        write_array(folder / f"{name}.ids.npy", flat)
        write_array(folder / f"{name}.edges.npy", edges)

    def rows(self, indices: np.ndarray, width: int) -> np.ndarray:
        """(B, width) int64: the sentences, padded with <pad>."""
        places = self.edges[indices][:, None] + np.arange(width)
        inside = places < self.edges[indices + 1][:, None]
        if not len(self.ids):
            return np.zeros(inside.shape, np.int64)
        return np.where(inside, self.ids[np.minimum(places, len(self.ids) - 1)], 0).astype(np.int64)


class Pairs(BatchDataset):
    """Encoded pairs; `extra` holds what evaluation wants to know of each: texts, kind, token slots and `decode`."""

    def __init__(
        self,
        source: Side,
        target: Side,
        rows: np.ndarray,
        max_length: int,
        extra: dict[str, list[Any]] | None,
        marks: Marks,
    ) -> None:
        self.source, self.target, self.rows_in_use, self.max_length, self.extra = (
            source,
            target,
            rows,
            max_length,
            extra,
        )
        self.marks = marks

    def __len__(self) -> int:
        return len(self.rows_in_use)

    def all_decoded(self) -> Pairs:
        """The same pairs, all marked for decoding."""
        extra = None if self.extra is None else {**self.extra, "decode": [True] * len(self.source.lengths)}
        return Pairs(self.source, self.target, self.rows_in_use, self.max_length, extra, self.marks)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longer side, its closing <eos> included."""
        return np.maximum(self.source.lengths, self.target.lengths)[self.rows_in_use] + 1

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``source`` (B, S): tokens, <eos>. ``target`` (B, T): <bos>, tokens, <eos>. ``…_valid``: False at padding.

        S and T - 1, what encoder and decoder see, are multiples of 8 or `max_length`. For evaluation also
        ``source_text``, ``text``, ``type``, ``decode`` (B,) bool, and ``slots`` (K, 5): rows [row, s0, s1, t0, t1] say
        that source tokens [s0, s1) mean the same as target[:, 1:]'s tokens [t0, t1).
        """
        rows = self.rows_in_use[indices]
        batch: dict[str, Any] = {}
        for name, side, start in (("source", self.source, 0), ("target", self.target, 1)):
            lengths = side.lengths[rows]
            width = int(round_up(int(lengths.max()) + 1, self.max_length)) + start
            ids = np.full((len(rows), width), self.marks.start, np.int64)  # in the first column of target
            ids[:, start:] = side.rows(rows, width - start)
            ids[np.arange(len(rows)), start + lengths] = self.marks.target_end if start else self.marks.source_end
            valid = np.arange(width) <= (start + lengths)[:, None]
            batch |= {name: torch.from_numpy(ids), f"{name}_valid": torch.from_numpy(valid)}
        return batch if self.extra is None else batch | self._extra(self.extra, rows)

    @staticmethod
    def _extra(extra: dict[str, list[Any]], rows: np.ndarray) -> dict[str, Any]:
        columns = {name: [values[i] for i in rows] for name, values in extra.items()}
        slots = [(row, *slot) for row, every in enumerate(columns["slots"]) for slot in every]
        return {
            "source_text": columns["source"],
            "text": columns["target"],
            "type": columns["kind"],
            "slots": torch.tensor(slots, dtype=torch.int64).reshape(-1, 5),
            "decode": torch.tensor(columns["decode"], dtype=torch.bool),
        }


class PairData(Data):
    """Sentence pairs in batches of like length.

    One byte-level BPE for both sides or one for each, learned from the training pairs. Pairs with a side longer than
    `max_length` tokens are left out with a warning that counts them, or are an error; nothing is cut off.
    """

    gives = "pairs of texts, a source and its target"
    shared = True
    split_digits = False
    split_ideographs = False
    target_languages: tuple[str, ...] = ()  # each with a special token of the source, where there are several
    too_long: TooLong = "skip"
    tokenizer_path: str | None = None  # a folder with two tokenizers, instead of those that are learned here

    def __init__(
        self,
        vocab_size: int,
        max_tokens: int,
        max_length: int,
        eval_limit: int,
        num_workers: int,
        seed: int | None,
    ) -> None:
        """
        Args:
            vocab_size: size of the byte-level BPE vocabulary, one for both sides or one for each.
            max_tokens: tokens of a batch per process, padding included, counted on the longer side.
            max_length: tokens of a sentence with its <eos>; longer pairs are left out, or are an error.
            eval_limit: validation pairs that are decoded, evenly over the kinds; all test pairs are.
            seed: of the order; the run's unless given.
        """
        super().__init__(1, num_workers, seed)
        at_least(2, max_length=max_length)
        at_least(0, eval_limit=eval_limit)
        at_least(int(round_up(max_length)), max_tokens=max_tokens)
        self.vocab_size, self.max_tokens, self.max_length = vocab_size, max_tokens, max_length
        self.eval_limit = eval_limit

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """What the corpus depends on: JSON that is cheap to find."""

    def maker(self) -> str:
        """The library and version that made the sentences, a part of the fingerprint; empty for files."""
        return ""

    @abstractmethod
    def corpus(self) -> dict[str, list[Pair]]:
        """The pairs of "train", "val" and perhaps "test"."""

    def load(self) -> None:
        """Read the pairs, train the tokenizers, and encode the splits once."""
        coding: list[Any] = [self.vocab_size, self.shared, self.split_digits, self.split_ideographs]
        trained = self._trained_tokenizers()
        if trained is not None:
            coding = [[tokenizer.identity(), tokenizer.names] for tokenizer in trained]
        origin = self.origin()

        def encode(folder: Path) -> None:
            self._encode(folder, trained)
            if self.origin() != origin:  # it would be kept under the name of what was there before
                raise UsageError(f"the files of {type(self).__name__} changed while they were read. Start again.")

        published = any(tokenizer.published for tokenizer in trained or ())
        entry = cached_entry("pairs", {"format": 2 if published else 1, "origin": origin, "coding": coding}, encode)
        self.source_tokenizer, self.target_tokenizer = trained or (Tokenizer.load(entry / name) for name in FILES)
        meta = json.loads((entry / "meta.json").read_text("utf-8"))
        self._fingerprint = meta["fingerprint"]
        splits = {split: self._split(entry, split) for split in meta["splits"]}
        self.datasets = {"test": splits["val"].all_decoded(), **splits}

    def _trained_tokenizers(self) -> tuple[Tokenizer, Tokenizer] | None:
        """The tokenizers of ``tokenizer_path``, if any. Raises UsageError where they end sentences otherwise."""
        if self.tokenizer_path is None:
            return None
        source, target = (Tokenizer.load(Path(self.tokenizer_path).expanduser() / name) for name in FILES)
        for side in (source, target):
            if side.published and side.template[1] != [side.eos]:
                raise UsageError(
                    f"{side.source} puts {side.template[1]} behind a text: training needs its {EOS} there."
                )
        if source.eos is None or target.eos is None or target.bos is None:
            raise UsageError(f"the tokenizers in {self.tokenizer_path} lack {BOS} or {EOS}, which a translation needs.")
        return source, target

    def _marks(self) -> Marks:
        source, target = self.source_tokenizer, self.target_tokenizer
        return Marks(source.end_of_document(), target.end_of_document() if target.bos is None else target.bos,
                     target.end_of_document())  # fmt: skip

    def _encode(self, folder: Path, trained: tuple[Tokenizer, Tokenizer] | None) -> None:
        corpus = self.corpus()
        source, target = trained or self._train(corpus["train"])
        content = hashlib.sha256((self.maker() + source.identity() + target.identity()).encode())
        for split, pairs in sorted(corpus.items()):
            sources = source.encode_batch([pair.source for pair in pairs])
            leads = [_lead(pair, source) for pair in pairs]
            Side.save(folder, f"{split}.source", [lead + ids for lead, ids in zip(leads, sources, strict=True)])
            targets = target.encode_batch([pair.target for pair in pairs])
            Side.save(folder, f"{split}.target", [target.template[0] + ids for ids in targets])
            for pair in pairs:
                content.update(json.dumps([split, pair.source, pair.target, *filter(None, [pair.language])]).encode())
            if split != "train":
                texts = {"source": [p.source for p in pairs], "target": [p.target for p in pairs]}
                slots = [token_slots(pair, source, target) for pair in pairs]
                write_json(folder / f"{split}.json", {**texts, "kind": [p.kind for p in pairs], "slots": slots})
        for name, tokenizer in zip(FILES, (source, target), strict=True):
            tokenizer.save(folder / name)
        write_json(folder / "meta.json", {"fingerprint": content.hexdigest(), "splits": sorted(corpus)})

    def _train(self, pairs: list[Pair]) -> tuple[Tokenizer, Tokenizer]:
        def learn(texts: list[str]) -> Tokenizer:
            specials = (*SPECIALS, *map(language_token, self.target_languages))
            return Tokenizer.bpe(texts, self.vocab_size, specials, self.split_digits, self.split_ideographs)

        source, target = [pair.source for pair in pairs], [pair.target for pair in pairs]
        if self.shared:
            both = learn(source + target)
            return both, both
        return learn(source), learn(target)

    def _split(self, entry: Path, split: str) -> Pairs:
        source, target = Side.load(entry, f"{split}.source"), Side.load(entry, f"{split}.target")
        longest = np.maximum(source.lengths, target.lengths) + 1
        rows = np.flatnonzero(longest <= self.max_length)
        if len(rows) < len(longest):
            self._tell(split, longest)
        if split == "train":
            return Pairs(source, target, rows, self.max_length, None, self._marks())
        extra = json.loads((entry / f"{split}.json").read_text("utf-8"))
        decoded = set(select_by_kind(extra["kind"], rows, self.eval_limit))
        extra["decode"] = [i in decoded for i in range(len(longest))]
        pairs = Pairs(source, target, rows, self.max_length, extra, self._marks())
        return pairs.all_decoded() if split == "test" else pairs

    def _tell(self, split: str, longest: np.ndarray) -> None:
        long = np.flatnonzero(longest > self.max_length)
        if self.too_long == "error":
            raise UsageError(
                f"pair {long[0] + 1} of the {split} split has {longest[long[0]]} tokens, more than max_length="
                f"{self.max_length}; {len(long)} of {len(longest)} pairs are too long.\n"
                "Raise max_length, or leave them out with too_long: skip."
            )
        if len(long) == len(longest):
            raise UsageError(f"all {len(long)} pairs of the {split} split are longer than max_length={self.max_length}")
        log_once(
            "%d of %d %s pairs are longer than max_length=%d tokens and are left out",
            *(len(long), len(longest), split, self.max_length),
        )

    def plan(self, split: str, world: int, seed: int | None) -> Plan:
        """Batches of pairs of similar lengths, up to ``max_tokens`` tokens each."""
        pairs = self.datasets[split]
        assert isinstance(pairs, Pairs)
        return TokenPlan(pairs.lengths, self.max_tokens * world, world, seed)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The target-side text of tokens, special tokens left out."""
        self.ready()
        return self.target_tokenizer.decode(ids)

    def sizes(self) -> dict[str, int]:
        """The sizes of both vocabularies."""
        self.ready()
        sizes = self.source_tokenizer.vocab_size, self.target_tokenizer.vocab_size
        return {"source_vocab_size": sizes[0], "target_vocab_size": sizes[1]}

    def save(self, folder: Path) -> None:
        """Two files, also where both sides share one tokenizer."""
        self.ready()
        for name, tokenizer in zip(FILES, (self.source_tokenizer, self.target_tokenizer), strict=True):
            tokenizer.save(folder / name)


def token_slots(pair: Pair, source: Tokenizer, target: Tokenizer) -> list[list[int]]:
    """A pair's slots as [s0, s1, t0, t1]: the tokens that hold at least one character of the slot."""
    if not pair.slots:
        return []
    lead: list[Span] = [(0, 0) for _ in _lead(pair, source)]
    begin: list[Span] = [(0, 0) for _ in target.template[0]]
    source_offsets, target_offsets = lead + source.offsets(pair.source)[1], begin + target.offsets(pair.target)[1]
    return [[*_tokens(source_offsets, ours), *_tokens(target_offsets, theirs)] for ours, theirs in pair.slots]


def _lead(pair: Pair, source: Tokenizer) -> list[int]:
    """The tokens in front of a pair's source: those of a published tokenizer, and that of the target language."""
    language = [source.specials[language_token(pair.language)]] if pair.language else []
    return [*source.template[0], *language]


def _tokens(offsets: list[Span], span: Span) -> Span:
    inside = [i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]]
    return inside[0], inside[-1] + 1


def select_by_kind(kinds: list[str], rows: np.ndarray, limit: int) -> list[int]:
    """The first `limit` of `kept`, taking the kinds in turn."""
    counts: dict[str, int] = {}
    turn = []
    for i in rows:
        counts[kinds[i]] = counts.get(kinds[i], 0) + 1
        turn.append(counts[kinds[i]])
    return [int(rows[i]) for i in np.argsort(turn, kind="stable")[:limit]]
