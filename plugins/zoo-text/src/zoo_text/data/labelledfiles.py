"""Your own labelled texts: a class, a tab and a text per line, or the columns of tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo.data.batches import generator, sample_sentence
from zoo.data.data import log_once, require_fraction, split_by_content, tell_repeated
from zoo.data.source_files import VAL_NAMES, find_place, missing_file, named_file, read_lines, tell_unused
from zoo.data.table_files import (
    Tables,
    choose_columns,
    holds_tables,
    is_table,
    label_of,
    read_header,
    text_of,
)
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo_text.data.labelled import CHOICE, LabelledText, TextLabels, check_classes

RECIPES = "topics-tiny"
# words over a column of classes, perhaps the last of several: "class", "star_rating"
HEADERS = {"label", "labels", "class", "classes", "category", "categories", "target", "sentiment", "topic", "rating",
           "intent", "emotion", "stars", "score", "tag", "y"}  # fmt: skip


class LabelledFiles(TextLabels):
    """``train.tsv``, and perhaps ``val.tsv`` and ``test.tsv``, in a folder: on each line a class, a tab and a text.

    Every name may end in ``.gz``. Without a validation file, `val_fraction` of the training texts is set aside; without
    a test file, test is validation.

    Of tables, which are JSON lines, CSV, Parquet, folders of the library datasets, or a .tsv whose first line names
    its columns, the columns `text` and `label` are read; a number that the library datasets names is that class.
    """

    def __init__(
        self,
        path: str,
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        max_length: int = 128,
        batch_size: int = 32,
        val_fraction: float = 0.1,
        labels: int | None = None,
        seed: int | None = None,
        columns: dict[str, str] | None = None,
    ) -> None:
        """
        Args:
            path: folder with train.tsv and perhaps val.tsv and test.tsv, or a table.
            val_fraction: share of the training texts that validates where there is no val.tsv.
            columns: names of the columns `text` and `label` in tables, where they have others.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, labels, seed)
        require_fraction(val_fraction=val_fraction)
        self.path, self.val_fraction, self.columns = find_place(path), val_fraction, columns
        self.usual = {"text": ["text"], "label": ["label"]}
        choose_columns(columns, self.usual)

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write one .tsv file of random texts per split; the options that read them."""
        for number, split in enumerate(("train", "val", "test")):
            draw = generator(seed, number)
            lines = [f"{'cat' if draw.random() < 0.5 else 'dog'}\t{sample_sentence(draw)}" for _ in range(60)]
            text = "cat\ta\ndog\tb\n" * (split == "train") + "\n".join(lines) + "\n"
            atomic_files.write_text(folder / f"{split}.tsv", text)
        return {"path": str(folder)}

    def texts(self) -> dict[str, list[LabelledText]]:
        """The labelled texts of each split. Raises UsageError without training texts."""
        tables = self._tables()
        if tables is not None:
            splits = {split: rows for split in tables.splits if (rows := list(self._rows_of(tables, split)))}
        else:
            files = {split: self._file(split) for split in ("train", "val", "test")}
            if files["train"] is None:
                content = "a folder with train.tsv (or .gz): on each line a class, a tab and a text"
                raise missing_file(self.path, RECIPES, content)
            tell_unused(self.path, filter(None, files.values()))
            splits = {split: read_table(file) for split, file in files.items() if file is not None}
        if len({one.label for one in splits["train"]}) < 2:
            where = files["train"] if tables is None else tables.splits["train"][0]
            raise UsageError(f"{where} has a single class: there is nothing to tell apart")
        check_classes(splits["train"])  # before the split, which would refuse for another reason
        tell_repeated({split: [one.text for one in texts] for split, texts in splits.items()}, "texts")
        return splits if "val" in splits else splits | split_validation(splits["train"], self.val_fraction)

    def _tables(self) -> Tables | None:
        """The tables, where columns are named, or there is no table of a class and a text without names."""
        names = choose_columns(self.columns, self.usual)
        native = self._file("train")
        if native is not None and not self.columns:
            header = read_header(native)
            if not {*self.usual} <= {*header} or header == ["label", "text"]:
                return None
        if not (holds_tables(self.path) if self.path.is_dir() else is_table(self.path.name)):
            return None
        return Tables({"train": str(self.path)}, names, RECIPES)

    def _rows_of(self, tables: Tables, split: str) -> Iterator[LabelledText]:
        """The labelled texts of a split's rows; none of a split to test of which no row has a label."""
        kinds: dict[type, str] = {}
        count = missing = 0
        for row in tables.rows(split):
            count += 1
            if split == "test" and row.values["label"] == -1 and missing == count - 1:
                missing += 1
                continue
            label, text = label_of(row, "label"), text_of(row, "text")
            if not text.strip():
                raise UsageError(f"{row.place}: the text is blank: every row needs a label and a text")
            kind = kinds.setdefault(type(row.values["label"]), row.place)
            if missing or len(kinds) > 1:
                others = next(iter(kinds.values()))
                raise UsageError(f"{kind}: the label is of another kind than before, {others}: a number, or a text.")
            yield LabelledText(text, unicodedata.normalize("NFC", label))
        if missing:
            log_once("%s: none of the %d test rows has a label: they are left out", self.path, missing)

    def _file(self, split: str) -> Path | None:
        return named_file(self.path, *(f"{name}.tsv" for name in (VAL_NAMES if split == "val" else [split])))


def read_table(file: Path) -> list[LabelledText]:
    """The lines of a table. Raises UsageError that names the first line without a class or a text."""
    rows = []
    for number, line in enumerate(read_lines(file, RECIPES), 1):
        label, tab, text = line.partition("\t")
        if not tab or not label.strip() or not text.strip():
            raise UsageError(f"{file}:{number} must hold a class, a tab and a text")
        rows.append(LabelledText(text, unicodedata.normalize("NFC", label.strip())))
    if rows and is_header(rows):
        log_once("%s:1 is left out as the header of a table: %s, %s", file, rows[0].label, rows[0].text)
        del rows[0]
    if not rows:
        raise UsageError(f"{file} is empty: it must hold a class, a tab and a text per line")
    return rows


def is_header(rows: list[LabelledText]) -> bool:
    """Whether the first line names its columns: a word for classes, which no other line has, and one for texts."""
    label, text = rows[0].label.lower(), rows[0].text.strip()
    return (
        re.split(r"[\W_]+", label)[-1] in HEADERS
        and all(one.label != rows[0].label for one in rows[1:])
        and re.fullmatch(r"\W*\w+\W*", text) is not None
    )


def split_validation(texts: list[LabelledText], fraction: float) -> dict[str, list[LabelledText]]:
    """Training and validation texts, drawn by a fixed seed; no text is in both, and every class is in training."""
    validates = split_by_content([one.text for one in texts], fraction, [CHOICE], [one.label for one in texts])
    return {
        "train": [text for text, held_out in zip(texts, validates, strict=True) if not held_out],
        "val": [text for text, held_out in zip(texts, validates, strict=True) if held_out],
    }
