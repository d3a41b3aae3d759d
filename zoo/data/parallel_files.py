"""Parallel files: a sentence per line, the translation on the same line of another file or in a second column."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zoo.data.batches import generator, sample_sentence
from zoo.data.data import require_fraction, split_by_content, tell_repeated
from zoo.data.pair_data import Pair, PairData, TooLong
from zoo.data.source_files import (
    LONGEST_LINE,
    VAL_NAMES,
    find_place,
    missing_file,
    named_file,
    raw_lines,
    read_bytes,
    tell_unused,
)
from zoo.data.table_files import Columns, Row, Tables, ValueKindError, holds_tables, is_table, read_header, text_of
from zoo.errors import UsageError
from zoo.io import atomic_files

log = logging.getLogger(__name__)
RECIPES = "translation-tiny"
SKIP = ".\nLeave such lines out: --data.options.bad skip"
SPLIT = 20170612  # fixed seed of the split


@dataclass(frozen=True)
class PairOptions:
    """Options that are seldom changed.

    `shared`: one tokenizer for both languages. `split_digits`: every digit is a token. `too_long`: leave pairs longer
    than max_length out, or raise an error. `bad`: the same for lines that are blank, broken, huge or no UTF-8. `val`,
    `test`: prefixes of files elsewhere. `val_fraction`: what is taken from the training
    pairs for validation where there are no files for it. `tokenizer`: the folder of a run or of imported weights whose
    tokenizers are used, instead of learned ones.
    """

    shared: bool = True
    split_digits: bool = False
    too_long: TooLong = "skip"
    val: str | None = None
    test: str | None = None
    val_fraction: float = 0.02
    bad: Literal["error", "skip"] = "error"
    tokenizer: str | None = None


class ParallelFiles(PairData):
    """Two parallel files, or one with two columns, for each split.

    `path` is a folder with ``train.en`` and ``train.de``, ``val.*`` (or ``valid.*``, ``dev.*``) and perhaps ``test.*``;
    or a prefix, ``corpus`` for ``corpus.en`` and ``corpus.de``. Every name may end in ``.gz``. Instead of two files
    there may be one ``train.tsv``: source, a tab, target. Where both exist, files for each language win over a table,
    and plain files over compressed ones. Without validation files, `options.val_fraction` of the training pairs is
    set aside, all pairs with the same source sentence on the same side; without test files, test is validation.

    Of tables, which are JSON lines, CSV, Parquet, folders of the library datasets, or a .tsv whose first line names
    them, `source` and `target` are columns, or languages inside of a column ``translation``.
    """

    def __init__(
        self,
        path: str,
        source: str = "en",
        target: str = "de",
        vocab_size: int = 8000,
        max_tokens: int = 4096,
        max_length: int = 128,
        eval_limit: int = 200,
        num_workers: int = 0,
        seed: int | None = None,
        options: PairOptions | None = None,
    ) -> None:
        """
        Args:
            path: folder of the files, the prefix that their names share, or a table.
            source: ending of the source files, or their column in a table, such as en.
            target: ending of the target files, or their column in a table, such as de.
            options: how the files are read, and what is set aside for validation.
        """
        super().__init__(vocab_size, max_tokens, max_length, eval_limit, num_workers, seed)
        self.path, self.languages = find_place(path), (source, target)
        self.options = options or PairOptions()
        require_fraction(val_fraction=self.options.val_fraction)
        if source == target:
            raise UsageError(f"source and target are both {source!r}: they must name two languages")
        if self.options.too_long not in ("error", "skip"):
            raise UsageError(f"too_long is {self.options.too_long!r}: it must be error or skip")
        if self.options.bad not in ("error", "skip"):
            raise UsageError(f"bad is {self.options.bad!r}: it must be error or skip")
        self.shared, self.split_digits = self.options.shared, self.options.split_digits
        self.too_long, self.tokenizer_path = self.options.too_long, self.options.tokenizer

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write two files of random lines per split, one per language; the options that read them."""
        for number, split in enumerate(("train", "val", "test")):
            for side, language in enumerate(("en", "de")):
                draw = generator(seed, number, side)
                lines = [sample_sentence(draw, int(draw.integers(3, 20))) for _ in range(60)]
                atomic_files.write_text(folder / f"{split}.{language}", "\n".join(lines) + "\n")
        return {"path": str(folder)}

    @functools.cached_property
    def tables(self) -> Tables | None:
        """The tables, where the path has no parallel files, and no table of two columns without names."""
        inside = self.path.is_dir()
        files = self._look([self.path / "train" if inside else self.path])
        with_names = len(files) == 1 and {*self.languages} <= {*read_header(files[0])}
        if len(files) == 1 and not with_names:
            refuse_other_names(files[0], self.languages)
        if not with_names and (files or not (holds_tables(self.path) if inside else is_table(self.path.name))):
            return None
        names = {
            role: [name, f"translation.{name}"] for role, name in zip(("source", "target"), self.languages, strict=True)
        }
        paths = {"train": str(self.path), "val": self.options.val, "test": self.options.test}
        return Tables(paths, Columns(names, "--data.{role} NAME"), RECIPES)

    def files(self) -> dict[str, list[Path]]:
        """The files of each split, of parallel ones two. Raises UsageError for a split that was named but lacks."""
        if self.tables is not None:
            return self.tables.splits
        prefixes = {"val": self.options.val, "test": self.options.test}
        inside = self.path.is_dir()
        splits = {"train": self._find(self.path / "train" if inside else self.path)}
        for split, prefix in prefixes.items():
            if prefix is not None:
                splits[split] = self._find(find_place(prefix))
            elif inside:
                names = VAL_NAMES if split == "val" else (split,)
                if files := self._look([self.path / name for name in names]):
                    splits[split] = files
        return splits

    def _look(self, prefixes: list[Path]) -> list[Path]:
        """The files of the first prefix that has any."""
        for prefix in prefixes:
            columns = [named_file(prefix.parent, f"{prefix.name}.{language}") for language in self.languages]
            table = named_file(prefix.parent, f"{prefix.name}.tsv")
            table = table or (prefix if prefix.is_file() and _is_table(prefix) else None)
            if columns[0] and columns[1]:
                return [columns[0], columns[1]]
            if table:
                return [table]
            if columns[0] or columns[1]:
                lacking = self.languages[0 if columns[1] else 1]
                raise missing_file(
                    f"{prefix}.{lacking} (or .gz), the other half of {columns[0] or columns[1]},", RECIPES
                )
        return []

    def _find(self, prefix: Path) -> list[Path]:
        files = self._look([prefix])
        if not files:
            source, target = self.languages
            name = prefix.name
            content = f"the files {name}.{source} and {name}.{target}, or {name}.tsv: source, a tab, target"
            raise missing_file(self.path if self.path.is_dir() else prefix, RECIPES, content)
        return files

    def origin(self) -> dict[str, Any]:
        """SHA-256 of every file, and the options that change pairs."""
        options: dict[str, Any] = {} if self.options.bad == "error" else {"bad": self.options.bad}
        if self.tables is not None:
            digests, options = self.tables.digests(), options | {"columns": list(self.languages)}
        else:
            digests = {
                split: [hashlib.sha256(read_bytes(file, RECIPES)).hexdigest() for file in files]
                for split, files in self.files().items()
            }
        return {"files": digests, "val_fraction": None if "val" in digests else self.options.val_fraction, **options}

    def corpus(self) -> dict[str, list[Pair]]:
        """The pairs of each split; validation is cut from training pairs where it has no files."""
        bad = self.options.bad
        if self.tables is not None:
            corpus = {split: _read_rows(self.tables, split, bad) for split in self.tables.splits}
        else:
            corpus = {split: _read(files, bad) for split, files in self.files().items()}
        tell_repeated({split: [pair.source for pair in pairs] for split, pairs in corpus.items()}, "source sentences")
        return corpus if "val" in corpus else corpus | split_validation(corpus["train"], self.options.val_fraction)

    def load(self) -> None:
        """Read the pairs, train the tokenizers, and encode the splits once; other files of the folder are named."""
        super().load()
        if self.path.is_dir() and self.tables is None:
            tell_unused(self.path, [file for files in self.files().values() for file in files])


def split_validation(pairs: list[Pair], fraction: float) -> dict[str, list[Pair]]:
    """Training and validation pairs, drawn by a fixed seed; no source sentence is in both."""
    validates = split_by_content([pair.source for pair in pairs], fraction, [SPLIT])
    return {
        "train": [pair for pair, held_out in zip(pairs, validates, strict=True) if not held_out],
        "val": [pair for pair, held_out in zip(pairs, validates, strict=True) if held_out],
    }


def refuse_other_names(path: Path, languages: Sequence[str]) -> None:
    """Raise UsageError where the first line of a table of two columns names them, and otherwise than the options."""
    names = read_header(path)
    words = {*languages, "source", "target", "src", "tgt", "input", "output"}
    if len(names) == 2 and {name.lower() for name in names} & {word.lower() for word in words}:
        raise UsageError(
            f"{path}:1 looks like the names of columns, {', '.join(names)}: say which are which by --data.source NAME "
            "--data.target NAME, or take the line out."
        )


def _is_table(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".tsv")


def _read(files: list[Path], bad: str) -> list[Pair]:
    """The pairs of a split's files. Raises UsageError for an invalid line, or skips such lines with a warning."""
    columns = [raw_lines(file, RECIPES) for file in files]
    if len(columns) == 2 and len(columns[0]) != len(columns[1]):
        counts = f"{files[1].name} has {len(columns[1])} lines and {files[0].name} has {len(columns[0])}"
        raise UsageError(f"{counts}: they must be parallel. ← {files[0]}, {files[1]}")
    if not columns[0]:
        names = " and ".join([str(files[0]), *(file.name for file in files[1:])])
        are = (
            "are empty: they must hold a sentence per line"
            if len(files) > 1
            else "is empty: it must hold a pair per line"
        )
        raise UsageError(f"{names} {are}")
    lines = zip(*columns, strict=True)
    makers = (functools.partial(_pair, files, raw, number) for number, raw in enumerate(lines, 1))
    return _collect(files[0], makers, bad, "lines")


def _read_rows(tables: Tables, split: str, bad: str) -> list[Pair]:
    """The pairs of a split's tables. Raises UsageError for an invalid row, or skips such rows with a warning."""
    makers = (functools.partial(_row_pair, row) for row in tables.rows(split))
    return _collect(tables.splits[split][0], makers, bad, "rows")


def _collect(file: Path, makers: Iterable[Callable[[], Pair]], bad: str, what: str) -> list[Pair]:
    """The pairs that are made. Raises UsageError for one that cannot be, or skips it with a warning."""
    pairs: list[Pair] = []
    skipped: dict[str, list[int]] = {}
    number = 0
    for number, make in enumerate(makers, 1):
        try:
            pairs.append(make())
        except ValueKindError as error:
            if bad == "error":
                raise UsageError(f"{error}{SKIP}") from error
            skipped.setdefault(error.kind, []).append(number)
    for kind, numbers in skipped.items():
        examples = ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")
        log.warning("%s: %d of %d %s are left out, %s: %s", file, len(numbers), number, what, kind, examples)
    if not pairs:
        raise UsageError(f"{file}: none of its {number} {what} is a pair")
    return pairs


def _row_pair(row: Row) -> Pair:
    """The pair of a row. Raises ValueKindError for a side that is blank, huge or no text."""
    for role in ("source", "target"):
        if not (text := text_of(row, role)).strip():
            raise ValueKindError(f"{row.place}: the {role} is blank: every row needs a sentence on both sides", "blank")
        if len(text) > LONGEST_LINE:
            raise ValueKindError(f"{row.place}: the {role} has {len(text)} characters: no sentence has as many", "huge")
    return Pair(text_of(row, "source"), text_of(row, "target"))


def _pair(files: list[Path], raw: tuple[bytes, ...], number: int) -> Pair:
    """The pair of a line of one file, or of two. Raises ValueKindError that names file and line."""
    texts = [_decode_line(file, line, number) for file, line in zip(files, raw, strict=True)]
    if len(files) == 2:
        for file, text in zip(files, texts, strict=True):
            if not text.strip():
                sentence = f"{file}:{number} is blank: every line needs a sentence on both sides"
                raise ValueKindError(sentence, "blank")
        return Pair(texts[0], texts[1])
    columns = texts[0].split("\t")
    if len(columns) != 2:
        count = f"{files[0]}:{number} has {len(columns)} columns"
        raise ValueKindError(f"{count}: it must have two, source, a tab, target", "not two columns")
    for side, text in zip(("source", "target"), columns, strict=True):
        if not text.strip():
            sentence = f"{files[0]}:{number}: the {side} is blank: every line needs a sentence on both sides"
            raise ValueKindError(sentence, "blank")
    return Pair(columns[0], columns[1])


def _decode_line(file: Path, line: bytes, number: int) -> str:
    if len(line) > LONGEST_LINE:
        sentence = f"{file}:{number} has {len(line)} bytes: no sentence has more than {LONGEST_LINE}"
        raise ValueKindError(sentence, "huge")
    if b"\0" in line:
        raise ValueKindError(f"{file}:{number} holds a NUL byte: it is no text", "with NUL")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        sentence = (
            f"{file}:{number}: byte 0x{line[error.start]:02x} is not UTF-8.\nConvert the file: iconv -f LATIN1 -t UTF-8"
        )
        raise ValueKindError(sentence, "not UTF-8") from error
