"""Pairs of texts without files: what a function of Python's standard library does, and its signature and source."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from zoo.data.cache import cached_entry, write_json
from zoo.data.data import require_fraction
from zoo.data.library_files import library_files
from zoo.data.stdlib import StdlibDocs, to_ascii
from zoo_text.data.textpairs import TextPair, TextPairs, connected

LEAST, MOST, CODE = 20, 300, 400  # characters of a query, and of the source that follows a signature


class FunctionDocs(TextPairs):
    """What functions of the running Python's standard library do, from their documentation, and how they are written.

    The query is the first paragraph of a docstring (and the second, where the first is short), from which the name of
    the function is taken out wherever it stands as a word; the passage is the dotted name, the signature and, with
    ``source``, the first lines of the code, without the docstring. A query that several functions have counts once. By
    a hash of the function's bare name `val_fraction` of the pairs validates, which is the test split too: functions of
    one name, such as ``close``, and those with equal passages are on one side.
    """

    def __init__(
        self,
        source: bool = True,
        tokenizer: str | None = None,
        vocab_size: int = 4096,
        max_length: int = 96,
        batch_size: int = 128,
        val_fraction: float = 0.15,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            source: whether a passage has lines of code behind the signature.
            val_fraction: share of the functions that validates.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, "", "", seed)
        require_fraction(val_fraction=val_fraction)
        self.source, self.val_fraction = source, val_fraction

    def pairs(self) -> dict[str, list[TextPair]]:
        """The functions by split."""
        functions = documented_functions()
        pairs = [
            TextPair(doc, f"{signature}\n{code}" if self.source and code else signature)
            for _, doc, signature, code in functions
        ]
        splits: dict[str, list[TextPair]] = {"train": [], "val": []}
        names = [name for name, *_ in functions]
        groups = connected([(f"name {name}", *pair) for name, pair in zip(names, pairs, strict=True)])
        for group, pair in zip(groups, pairs, strict=True):
            place = int.from_bytes(hashlib.sha256(names[group].encode()).digest()[:6]) / 2**48
            splits["val" if place < self.val_fraction else "train"].append(pair)
        return splits


def documented_functions() -> list[tuple[str, str, str, str]]:
    """Name, documentation, signature and code of the library's functions, in the order of files and lines."""

    def extract(folder: Path) -> None:
        write_json(
            folder / "functions.json", list(unique_documentation(functions_of(Path(sysconfig.get_paths()["stdlib"]))))
        )

    entry = cached_entry("function-docs", {"format": 1, **StdlibDocs().source()}, extract)
    return [tuple(one) for one in json.loads((entry / "functions.json").read_text("utf-8"))]


def unique_documentation(functions: Iterator[tuple[str, str, str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """The first function of each documentation, whatever its capital letters."""
    texts: set[str] = set()
    for one in functions:
        if len(one[1]) >= LEAST and one[1].lower() not in texts:
            texts.add(one[1].lower())
            yield one


def functions_of(library: Path) -> Iterator[tuple[str, str, str, str]]:
    """Those with a docstring in the modules under a folder; none of a module that cannot be parsed."""
    for file in library_files():
        try:
            with warnings.catch_warnings():  # about invalid escapes in the library's own strings
                warnings.simplefilter("ignore")
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue  # the library ships a few files that are wrong on purpose
        module = list(file.relative_to(library).with_suffix("").parts)
        yield from _functions(tree, [name for name in module if name != "__init__"])


def _functions(node: ast.AST, path: list[str]) -> Iterator[tuple[str, str, str, str]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(inner)
            if doc:
                signature = f"{'.'.join([*path, inner.name])}({ast.unparse(inner.args)})"
                code = "\n".join(ast.unparse(statement) for statement in inner.body[1:])
                yield inner.name, describe(doc, inner.name), to_ascii(signature), to_ascii(code[:CODE])
        if isinstance(inner, ast.ClassDef):
            yield from _functions(inner, [*path, inner.name])
        elif not isinstance(inner, ast.expr):
            yield from _functions(inner, path)


def describe(doc: str, name: str) -> str:
    """The beginning of a docstring on one line, without the name of its function, and a call of it."""
    first, *others = re.split(r"\n\s*\n", to_ascii(doc).strip())
    text = " ".join(first.split())
    if len(text) < 2 * LEAST and others:
        text = f"{text} {others[0]}"
    text = re.sub(rf"(?i)(?<!\w){re.escape(name)}(?!\w)(\([^()]*\))?( *->)?", "", text)
    return " ".join(text.split())[:MOST]
