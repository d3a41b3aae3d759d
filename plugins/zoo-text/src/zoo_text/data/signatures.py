"""Question answering data without files: questions about signatures of Python's standard library."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from zoo.data.cache import cached_entry, write_json
from zoo.data.data import require_fraction
from zoo.data.library_files import library_files
from zoo.data.pair_data import Pair, PairData
from zoo.data.stdlib import StdlibDocs, walk_statements

LEAST, MOST, LONGEST = 2, 8, 100  # parameters, and characters of a signature
RECEIVERS = ("self", "cls")


class Signature(NamedTuple):
    """A function, its parameters as they are written, and their names with their defaults."""

    text: str
    defaults: dict[str, str | None]

    @property
    def split_position(self) -> float:
        """A number in [0, 1), a hash of the text, that decides to which split the signature belongs."""
        return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:6]) / 2**48


class SignatureQuestions(PairData):
    """Questions about signatures of the running Python's standard library, whose answers stand in them.

    The source is a question and a signature, ``default of indent? dumps(obj, skipkeys=False, indent=None)``, the
    target the answer, ``None``. Four kinds: the default of a parameter (``default``), the parameter behind another
    (``after``), the one at a place (``place``), and how many there are (``count``). Annotations, ``/``, a bare ``*``,
    ``self`` and ``cls`` are left out. No signature is in two splits: a model must read what it never saw.
    """

    def __init__(
        self,
        vocab_size: int = 1024,
        max_tokens: int = 2048,
        max_length: int = 96,
        eval_limit: int = 200,
        val_fraction: float = 0.05,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            val_fraction: share of the signatures that validates, and as much that tests.
        """
        super().__init__(vocab_size, max_tokens, max_length, eval_limit, num_workers, seed)
        require_fraction(val_fraction=2 * val_fraction)
        self.val_fraction = val_fraction

    def origin(self) -> dict[str, Any]:
        """The version of the questions and of the standard library."""
        return {"signatures": 1, "val_fraction": self.val_fraction, **StdlibDocs().source()}

    def corpus(self) -> dict[str, list[Pair]]:
        """Questions and answers by split."""
        splits: dict[str, list[Pair]] = {"train": [], "val": [], "test": []}
        for one in signatures():
            place = int(one.split_position / self.val_fraction)
            splits[("val", "test")[place] if place < 2 else "train"] += questions(one)
        return splits


def questions(one: Signature) -> Iterator[Pair]:
    """All questions about a signature, with their answers."""
    names = [name.lstrip("*") for name in one.defaults]
    for name, default in one.defaults.items():
        if default is not None:
            yield Pair(f"default of {name}? {one.text}", default, "default")
    for name, following in itertools.pairwise(names):
        yield Pair(f"after {name}? {one.text}", following, "after")
    for place, name in enumerate(names, 1):
        yield Pair(f"number {place}? {one.text}", name, "place")
    yield Pair(f"how many? {one.text}", str(len(names)), "count")


def signatures() -> list[Signature]:
    """The library's signatures of two to eight parameters, each text once, in the order of files and lines."""

    def extract(folder: Path) -> None:
        unique = {one.text: one for file in library_files() for one in signatures_of(file.read_bytes())}
        write_json(folder / "signatures.json", [*unique.values()])

    entry = cached_entry("signatures", {"format": 1, **StdlibDocs().source()}, extract)
    return [Signature(*one) for one in json.loads((entry / "signatures.json").read_text("utf-8"))]


def signatures_of(source: bytes) -> Iterator[Signature]:
    """Those of a module's source; none where it cannot be parsed."""
    try:
        with warnings.catch_warnings():  # about invalid escapes in the library's own strings
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # the library ships a few files that are wrong on purpose
    for node in walk_statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defaults = parameters_of(node.args)
            text = f"{node.name}({', '.join(_parameter_text(*one) for one in defaults.items())})"
            if LEAST <= len(defaults) <= MOST and len(text) <= LONGEST and text.isascii() and "\n" not in text:
                yield Signature(text, defaults)


def parameters_of(args: ast.arguments) -> dict[str, str | None]:
    """The parameters of a function by name, with stars, and their defaults; without ``self`` and ``cls``."""
    positional = [*args.posonlyargs, *args.args]
    first = len(positional) - len(args.defaults)
    defaults = {
        arg.arg: ast.unparse(args.defaults[i - first]) if i >= first else None for i, arg in enumerate(positional)
    }
    if args.vararg:
        defaults["*" + args.vararg.arg] = None
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        defaults[arg.arg] = None if default is None else ast.unparse(default)
    if args.kwarg:
        defaults["**" + args.kwarg.arg] = None
    return {name: default for name, default in defaults.items() if name not in RECEIVERS}


def _parameter_text(name: str, default: str | None) -> str:
    return name if default is None else f"{name}={default}"
