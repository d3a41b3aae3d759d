"""Token classification data without files: the role of each token of the standard library's source code."""

from __future__ import annotations

import hashlib
import io
import json
import keyword
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from zoo.data.batches import generator
from zoo.data.cache import cached_entry, write_json
from zoo.data.data import at_least, require_fraction
from zoo.data.library_files import library_files
from zoo.data.stdlib import ORDER, StdlibDocs
from zoo_text.data.labelled import LabelledData, LabelledRows

ROLES = (
    "argument", "attribute", "call", "class", "comment", "function", "keyword", "module", "number", "operator",
    "other", "string", "variable",
)  # fmt: skip
OTHER = ROLES.index("other")
LEAST, MOST = 80, 4000  # characters of a piece of source


class Source(NamedTuple):
    """A piece of source code, and the role of each of its characters as an index into ROLES."""

    text: str
    roles: list[int]


class PythonRoles(LabelledData):
    """Pieces of the running Python's standard library, each token with its role: keyword, function, call, string, …

    Roles are those of Python's own tokenizer, and of a name by what stands around it: ``function`` and ``class`` where
    it is defined, ``module`` in an import, ``attribute`` behind a dot, ``call`` in front of a parenthesis, ``argument``
    in front of the = of a call, else ``variable``. A token of the model has the role of its first character that is no
    space. Many of these are decided by what comes next, or by a quote lines away. Whole files are held back.
    """

    # a tenth of the pieces, each several times: encodings/ has dozens of modules that differ in a table only
    twins: ClassVar[float] = 0.25

    def __init__(
        self,
        pieces: int = 4000,
        tokenizer: str | None = None,
        vocab_size: int = 1024,
        max_length: int = 64,
        batch_size: int = 32,
        val_fraction: float = 0.1,
        labels: int | None = None,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            pieces: number of pieces of source code.
            val_fraction: share of the files that validates.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, labels, seed)
        at_least(10, pieces=pieces)
        require_fraction(val_fraction=val_fraction)
        self.pieces, self.val_fraction = pieces, val_fraction

    def load(self) -> None:
        """Read the sources, train the tokenizer, and label each token by its role."""
        texts = self.sources()
        self.tokenizer = self._tokenizer([one.text for one in texts["train"]])
        self.names = list(ROLES)
        texts["train"] = texts["train"][: self.limit]
        content = hashlib.sha256(self.tokenizer.identity().encode() + f"max_length {self.max_length}".encode())
        for split in ("train", "val"):
            for one in texts[split]:
                content.update(f"{split} {len(one.text)} ".encode() + one.text.encode() + bytes(one.roles))
        self._fingerprint = content.hexdigest()
        rows = {split: self._labelled(sources) for split, sources in texts.items()}
        self.datasets = {"test": rows["val"], **rows}

    def _labelled(self, sources: list[Source]) -> LabelledRows:
        rows, labels = [], []
        for one in sources:
            ids, offsets = self.tokenizer.offsets(one.text)
            rows.append(self.truncate(ids))
            labels.append([role(one, *offset) for offset in offsets[: self.room]])
        return LabelledRows(rows, labels, *self.marks(), self.max_length)

    def sources(self) -> dict[str, list[Source]]:
        """Pieces of training and validation files, in a fixed random order."""

        def extract(folder: Path) -> None:
            files = library_files()
            files = [files[i] for i in generator(ORDER, 1).permutation(len(files))]
            first = round(len(files) * self.val_fraction)
            pieces = {
                "train": take(files[first:], self.pieces),
                "val": take(files[:first], round(self.pieces * self.val_fraction)),
            }
            write_json(folder / "pieces.json", pieces)

        key = {"format": 1, "pieces": self.pieces, "val_fraction": self.val_fraction, **StdlibDocs().source()}
        content = json.loads((cached_entry("roles", key, extract) / "pieces.json").read_text("utf-8"))
        return {split: [Source(*one) for one in content[split]] for split in ("train", "val")}


def role(one: Source, start: int, end: int) -> int:
    """The role of the characters [start, end): that of the first which is no space, else that of the first."""
    inside = [i for i in range(start, end) if not one.text[i].isspace()]
    return one.roles[inside[0] if inside else start]


def take(files: list[Path], count: int) -> list[Source]:
    """``count`` pieces of the files, of each at most an equal share."""
    sources: list[Source] = []
    share = max(1, -(-2 * count // max(1, len(files))))
    for file in files:
        try:
            text = file.read_bytes().decode("utf-8")
            whole = Source(text, roles_of(text))
        except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
            continue  # the library ships a few files that are wrong on purpose
        mine = list(pieces_of(whole))
        order = generator(ORDER, 2, len(sources)).permutation(len(mine))[:share]
        sources += [mine[i] for i in sorted(order)]
        if len(sources) >= count:
            return sources[:count]
    return sources


def pieces_of(whole: Source) -> Iterator[Source]:
    """A file cut at its empty lines into pieces of at least 80 characters."""
    start = 0
    text = whole.text
    while start < len(text):
        end = text.find("\n\n", start + LEAST)
        end = min(len(text) if end < 0 else end + 1, start + MOST)
        if end - start >= LEAST and text[start:end].strip():
            yield Source(text[start:end], whole.roles[start:end])
        start = end


def roles_of(text: str) -> list[int]:
    """The role of every character of a module. Raises SyntaxError or TokenError for what is no Python."""
    starts = np.cumsum([0, *(len(line) for line in text.splitlines(keepends=True))])
    roles = [OTHER] * len(text)
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.string.strip()]
    importing = False
    depth = 0
    for number, one in enumerate(tokens):
        before = tokens[number - 1].string if number else ""
        after = tokens[number + 1].string if number + 1 < len(tokens) else ""
        new_line = not number or tokens[number - 1].start[0] != one.start[0]
        importing = (importing and (not new_line or depth > 0)) or (one.string in ("import", "from") and new_line)
        depth += (one.string in "([{") - (one.string in ")]}") if one.type == tokenize.OP else 0
        kind = ROLES.index(_role(one, before, after, importing, depth))
        start, end = (int(starts[row - 1]) + column for row, column in (one.start, one.end))
        roles[start:end] = [kind] * (end - start)
    return roles


def _role(one: tokenize.TokenInfo, before: str, after: str, importing: bool, depth: int) -> str:
    """What a token of Python is."""
    roles = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.OP: "operator"}
    if one.type != tokenize.NAME:
        return roles.get(one.type, "string" if "STRING" in tokenize.tok_name[one.type] else "other")
    if keyword.iskeyword(one.string):
        return "keyword"
    if before in ("def", "class"):
        return "function" if before == "def" else "class"
    if importing:
        return "module"
    if before == ".":
        return "call" if after == "(" else "attribute"
    if after == "(":
        return "call"
    return "argument" if after == "=" and depth > 0 else "variable"
