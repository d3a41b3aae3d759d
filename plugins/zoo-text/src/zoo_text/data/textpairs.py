"""Pairs of texts that belong together, such as a question and its answer: from files, or from a source of your own."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from zoo.data.batches import BatchDataset, generator, sample_sentence
from zoo.data.cache import write_json
from zoo.data.data import log_once, require_fraction, split_by_content, tell_repeated
from zoo.data.source_files import (
    VAL_NAMES,
    find_place,
    missing_file,
    named_file,
    read_lines,
    tell_once,
    tell_unused,
)
from zoo.data.table_files import is_usual
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo_text.data.labelled import MarkedTexts, pad_rows

RECIPES = "embedding-tiny"
SPLIT = 20180111  # fixed seed of the split
PROMPTS = "embedding.json"  # of a run: what is put before texts
NAMES = ("query", "passage", "negative")
ALIASES = {"anchor": "query", "question": "query", "positive": "passage", "document": "passage", "answer": "passage"}
HEADERS = {*NAMES, *ALIASES}
RATINGS = ("label", "labels", "score", "similarity")  # how well a pair belongs together, of which 1 says that it does


class TextPair(NamedTuple):
    """A query, the passage that belongs to it, and perhaps one that seems to and does not: a hard negative."""

    query: str
    passage: str
    negative: str | None = None


class PairRows(BatchDataset):
    """The rows of texts, special tokens included, by column, with a number per text: equal texts have equal ones."""

    def __init__(self, rows: dict[str, list[list[int]]], numbers: dict[str, np.ndarray], pad: int, most: int) -> None:
        self.rows, self.numbers, self.pad, self.most = rows, numbers, pad, most

    def __len__(self) -> int:
        return len(self.rows["queries"])

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``queries``, ``passages`` and, where there are any, ``negatives``: (B, T) each, with ``…_valid`` (B, T),
        False at padding; ``query_ids``, ``passage_ids`` and ``negative_ids`` (B,).
        """
        batch: dict[str, Any] = {}
        for name, rows in self.rows.items():
            tokens, valid = pad_rows([rows[index] for index in indices], self.pad, self.most)
            batch |= {name: tokens, f"{name}_valid": valid}
        return batch | {name: torch.from_numpy(column[indices]) for name, column in self.numbers.items()}


class TextPairs(MarkedTexts):
    """Pairs of texts that belong together, cut to ``max_length`` tokens each; a subclass says which texts.

    ``query_prompt`` is put before each query, ``passage_prompt`` before each passage; `zoo embed --prompt` puts them
    there, too.
    """

    gives = "pairs of texts that belong together"

    def __init__(
        self,
        tokenizer: str | None,
        vocab_size: int,
        max_length: int,
        batch_size: int,
        query_prompt: str,
        passage_prompt: str,
        seed: int | None,
    ) -> None:
        """
        Args:
            batch_size: pairs per batch and process: each is a negative of all others.
            query_prompt: text before each query.
            passage_prompt: text before each passage.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, seed)
        self.prompts = {"query": query_prompt, "document": passage_prompt}

    @abstractmethod
    def pairs(self) -> dict[str, list[TextPair]]:
        """The pairs of "train", "val" and perhaps "test"."""

    def load(self) -> None:
        """Read the pairs, train the tokenizer, and make the splits. Raises UsageError for a split without pairs."""
        splits = self.pairs()
        for split in ("train", "val"):
            if not splits.get(split):
                raise UsageError(f"the {split} split has no pair of texts")
        self.tokenizer = self._tokenizer([text for pair in splits["train"] for text in pair if text is not None])
        content = hashlib.sha256(json.dumps([self.tokenizer.identity(), self.max_length, self.prompts]).encode())
        for split, pairs in sorted(splits.items()):
            content.update(json.dumps([split, pairs]).encode())
        self._fingerprint = content.hexdigest()
        rows = {split: self._rows(split, pairs) for split, pairs in splits.items()}
        self.datasets = {"test": rows["val"], **rows}

    def _rows(self, split: str, pairs: list[TextPair]) -> PairRows:
        columns = {"queries": [one.query for one in pairs], "passages": [one.passage for one in pairs]}
        negatives = [one.negative for one in pairs if one.negative is not None]
        if negatives:
            columns["negatives"] = negatives
        number: dict[str, int] = {}
        rows, numbers = {}, {}
        for (name, texts), column in zip(columns.items(), ("query_ids", "passage_ids", "negative_ids"), strict=False):
            prompt = self.prompts["query" if name == "queries" else "document"]
            ids = self.encode_texts([prompt + text for text in texts], f"{split} {name}")
            rows[name] = [self.tokenizer.marked(row) for row in ids]
            numbers[column] = np.array([number.setdefault(text, len(number)) for text in texts])
        return PairRows(rows, numbers, self.tokenizer.pad or 0, self.max_length)

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the prompts into a folder."""
        super().save(folder)
        write_json(folder / PROMPTS, {"prompts": self.prompts, "default_prompt": None, "similarity": "cosine"})


class TextPairFiles(TextPairs):
    """``train.tsv`` or ``train.jsonl``, and perhaps ``val`` and ``test`` files, in a folder: a pair of texts per line.

    A line of a table is a query, a tab and a passage, and perhaps a tab and a hard negative; a line of JSON an object
    with texts named query, passage and perhaps negative (or anchor and positive). All lines have a negative, or none.
    Every name may end in ``.gz``. Without a validation file, `val_fraction` of the pairs is set aside, so that no text
    is on both sides; without a test file, test is validation.
    """

    def __init__(
        self,
        path: str,
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        max_length: int = 128,
        batch_size: int = 64,
        query_prompt: str = "",
        passage_prompt: str = "",
        val_fraction: float = 0.1,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            path: folder with train.tsv or train.jsonl, and perhaps files named val and test.
            val_fraction: share of the pairs that validates where there is no validation file.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, query_prompt, passage_prompt, seed)
        require_fraction(val_fraction=val_fraction)
        self.path, self.val_fraction = find_place(path), val_fraction

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write one .tsv file of random texts per split; the options that read them."""
        for number, split in enumerate(("train", "val", "test")):
            draw = generator(seed, number)
            lines = ["\t".join(sample_sentence(draw, 8) for _ in range(3)) for _ in range(60)]
            atomic_files.write_text(folder / f"{split}.tsv", "\n".join(lines) + "\n")
        return {"path": str(folder)}

    def pairs(self) -> dict[str, list[TextPair]]:
        """The pairs of each split. Raises UsageError without training pairs."""
        files = {split: self._file(split) for split in ("train", "val", "test")}
        if files["train"] is None:
            content = "a folder with train.tsv or train.jsonl (or .gz): a query and its passage per line"
            raise missing_file(self.path, RECIPES, content)
        tell_unused(self.path, filter(None, files.values()))
        splits = {split: read_pairs(file) for split, file in files.items() if file is not None}
        triples = {split: pairs[0].negative is not None for split, pairs in splits.items()}
        if triples["train"] and (other := next((split for split, has in triples.items() if not has), "")):
            log_once("%s has hard negatives, and %s has none", files["train"], files[other])
        for side in ("query", "passage"):
            tell_repeated(
                {name: [getattr(one, side) for one in pairs] for name, pairs in splits.items()}, f"{side} texts"
            )
        if "val" in splits:
            return splits
        groups = connected([(pair.query, pair.passage) for pair in splits["train"]])
        validates = split_by_content(groups, self.val_fraction, [SPLIT])
        pairs = list(zip(splits["train"], validates, strict=True))
        train, val = ([one for one, held_out in pairs if held_out == side] for side in (False, True))
        return splits | {"train": train, "val": val}

    def _file(self, split: str) -> Path | None:
        names = VAL_NAMES if split == "val" else [split]
        return named_file(self.path, *(f"{name}.{ending}" for name in names for ending in ("tsv", "jsonl")))


def connected(samples: Sequence[Sequence[str | None]]) -> list[int]:
    """A number per sample, (N,): that of one sample with which it has a text in common, directly or through others."""
    parent = list(range(len(samples)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    owner: dict[str, int] = {}
    for number, texts in enumerate(samples):
        for text in texts:
            if text is not None:
                parent[root(number)] = root(owner.setdefault(text, number))
    return [root(number) for number in range(len(samples))]


def read_pairs(file: Path) -> list[TextPair]:
    """The pairs of a file, by its ending. Raises UsageError that names the first line without a query and a passage."""
    is_table = ".tsv" in [suffix.lower() for suffix in file.suffixes[-2:]]
    pairs: list[TextPair] = []
    unread: set[str] = set()
    for number, line in enumerate(read_lines(file, RECIPES), 1):
        texts = line.split("\t") if is_table else json_texts(line, f"{file}:{number}", unread)
        if number == 1 and is_table and all(text.strip().lower() in HEADERS for text in texts):
            log_once("%s:1 is left out as the header of a table: %s", file, ", ".join(texts))
            continue
        if number == 1 and is_table and len(texts) > 2 and texts[2].strip().lower() in RATINGS:
            raise UsageError(f"{file}:1 has {texts[2].strip()!r}, which is not read: every pair is learned alike.")
        if not 2 <= len(texts) <= 3 or not all(text.strip() for text in texts):
            right = "a query, a tab and a passage, and perhaps a tab and a negative" if is_table else "no blank text"
            raise UsageError(f"{file}:{number} must hold {right}")
        pair = TextPair(*texts)
        if pair.negative is not None and pair.negative in (pair.query, pair.passage):
            raise UsageError(
                f"{file}:{number}: the negative is the {'query' if pair.negative == pair.query else 'passage'} itself"
            )
        if pairs and (pair.negative is None) != (pairs[0].negative is None):
            has = "no negative" if pair.negative is None else "a negative"
            raise UsageError(f"{file}:{number} has {has}, unlike the lines before: all lines have one, or none")
        pairs.append(pair)
    if unread:
        tell_once(f"{file}: not read are {', '.join(sorted(unread))}")
    if not pairs:
        raise UsageError(f"{file} is empty: it must hold a query and its passage per line")
    return pairs


def json_texts(line: str, place: str, unread: set[str]) -> list[str]:
    """The texts of a line of JSON, in the order of NAMES; other keys are added to ``unread``.

    Raises UsageError that names the place, also for a key that says something of what is to be learned.
    """
    try:
        content = limits.parse_json(line, place)
    except ValueError as error:
        raise UsageError(f"{place} is no JSON: {error}") from error
    texts: dict[object, Any] = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        name = ALIASES.get(key, key)
        if name not in NAMES:
            is_rating, more = key in RATINGS, re.fullmatch(r"negatives?_?\d*|neg|hard_negatives?", key)
            if (
                (more or is_rating)
                and not is_usual(key, value)
                and not (is_rating and str(value) in ("1", "1.0", "True"))
            ):
                right = "every pair is learned alike" if is_rating else 'a line holds one hard negative: "negative"'
                raise UsageError(f"{place} has {key}: {value!r:.40}, which is not read: {right}. Leave it out.")
            unread.add(key)
            continue
        if name in texts:
            raise UsageError(f"{place} has two texts for {name}: {key} is another word for it.")
        texts[name] = value
    values = [texts[name] for name in NAMES if texts.get(name) is not None]
    if (
        not isinstance(content, dict)
        or not {"query", "passage"} <= texts.keys()
        or not all(isinstance(value, str) for value in values)
    ):
        raise UsageError(f"{place} must be an object with texts named query, passage and perhaps negative.")
    return values
