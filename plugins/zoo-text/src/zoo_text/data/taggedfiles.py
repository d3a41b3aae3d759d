"""Your own words with a tag each: named entities, parts of speech, from the columns of tables."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

from zoo.data.batches import generator, sample_sentence
from zoo.data.data import log_once, require_fraction, split_by_content, tell_repeated
from zoo.data.table_files import Row, Tables, choose_columns, label_of, text_of
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo_text.data.labelled import CHOICE, IGNORE, LabelledData, LabelledRows

RECIPES = "roles-tiny"


class TaggedText(NamedTuple):
    """Words, and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


class TaggedFiles(LabelledData):
    """Tables with a list of words and one of tags in each row, such as ``{"tokens": ["Ada"], "tags": ["B-PER"]}``.

    JSON lines, Parquet and folders of the library datasets, whose numbers of classes become their names. A space stands
    between words. The first token of a word has its tag, and the others have none. Without rows that validate, as a
    split of the folder, `val_fraction` of the training rows does, equal texts together; of every tag a row trains.
    """

    of_words = True

    def __init__(
        self,
        path: str,
        columns: dict[str, str] | None = None,
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        max_length: int = 128,
        batch_size: int = 32,
        val_fraction: float = 0.1,
        labels: int | None = None,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            path: a table, or a folder with one for each split.
            columns: names of the columns `tokens` and `tags`, where they have others, such as ner_tags.
            val_fraction: share of the training texts that validates where there is no such split.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, labels, seed)
        require_fraction(val_fraction=val_fraction)
        self.path, self.val_fraction = path, val_fraction
        self.columns = choose_columns(columns, {"tokens": ["tokens"], "tags": ["tags"]})

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write a table of random words per split, tagged by their first letters; the options that read them."""
        for number, split in enumerate(("train", "val", "test")):
            draw = generator(seed, number)
            texts = [sample_sentence(draw, 6).split() for _ in range(60)]
            rows = [{"tokens": words, "tags": ["low" if word < "n" else "high" for word in words]} for words in texts]
            atomic_files.write_text(folder / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return {"path": str(folder)}

    def load(self) -> None:
        """Read the texts, train the tokenizer, and give the first token of each word its tag."""
        tables = Tables({"train": self.path}, self.columns, RECIPES)
        splits = {split: [_tagged(row) for row in tables.rows(split)] for split in tables.splits}
        tell_repeated({split: [text.words for text in texts] for split, texts in splits.items()}, "texts")
        if "val" not in splits:
            words, tags = zip(
                *((text.words, tag) for text in splits["train"] for tag in sorted({*text.tags})), strict=True
            )
            held_out = dict(zip(words, split_by_content(words, self.val_fraction, [CHOICE], tags), strict=True))
            texts = splits["train"]
            for name in ("train", "val"):
                splits[name] = [text for text in texts if held_out[text.words] == (name == "val")]
        self.tokenizer = self._tokenizer([" ".join(text.words) for text in splits["train"]])
        self.number_classes({tag for text in splits["train"] for tag in text.tags})
        if len(self.names) < 2:
            raise UsageError(f"{tables.splits['train'][0]} has a single tag, {self.names[0]}: nothing to tell apart.")
        splits["train"] = splits["train"][: self.limit]
        self._fingerprint = self.digest(splits)
        rows = {split: self._labelled(split, texts) for split, texts in splits.items()}
        self.datasets = {"test": rows["val"], **rows}

    def _labelled(self, split: str, texts: list[TaggedText]) -> LabelledRows:
        numbers = {name: number for number, name in enumerate(self.names)}
        rows, labels, long = [], [], 0
        for text in texts:
            if strange := {*text.tags} - numbers.keys():
                raise UsageError(f"the {split} split has the tag {min(strange)!r}, which no training text has")
            ids, offsets = self.tokenizer.offsets(" ".join(text.words))
            starts = itertools.accumulate((len(word) + 1 for word in text.words), initial=0)
            waiting = dict(zip(starts, text.tags, strict=False))  # the tag of the word that begins at a character
            own = []
            for begin, end in offsets:  # a token may begin with the space in front of a word
                place = next((character for character in range(begin, end) if character in waiting), None)
                own.append(IGNORE if place is None else numbers[waiting.pop(place)])
            long += len(ids) > self.room
            rows.append(self.truncate(ids))
            labels.append(own[: self.room])
        if long:
            log_once(f"{long} of {len(texts)} {split} texts are cut to their first {self.room} tokens")
        return LabelledRows(rows, labels, *self.marks(), self.max_length)


def _tagged(row: Row) -> TaggedText:
    """Words and tags of a row. Raises UsageError where they are no lists of texts, or of different lengths."""
    lists = {name: row.values[name] for name in ("tokens", "tags")}
    for name, value in lists.items():
        if not isinstance(value, list) or not value:
            raise UsageError(f"{row.place}: the {name} must be a list with a text for each word.")
    if len(lists["tokens"]) != len(lists["tags"]):
        raise UsageError(f"{row.place} has {len(lists['tokens'])} tokens and {len(lists['tags'])} tags.")
    words = tuple(text_of(Row(row.place, {"token": word}), "token") for word in lists["tokens"])
    if not all(word.strip() for word in words):
        raise UsageError(f"{row.place}: token {[bool(word.strip()) for word in words].index(False) + 1} is blank.")
    return TaggedText(words, tuple(label_of(Row(row.place, {"tag": tag}), "tag") for tag in lists["tags"]))
