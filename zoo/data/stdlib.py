"""English text without files: the documentation of Python's standard library."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from zoo.data.batches import generator
from zoo.data.cache import cached_entry, write_json
from zoo.data.library_files import library_folder, library_sources, no_sources
from zoo.data.text import Corpus, Scheme, TextData

SHORTEST = 60  # characters: shorter docstrings are mostly names and signatures
LEAST_TEXTS = 1000  # a complete library has four times as many
ORDER = 20170612  # fixed seed of the order of documents
STATEMENTS = frozenset(["body", "orelse", "finalbody", "handlers", "cases"])  # the fields of a node that hold them
TYPOGRAPHY = str.maketrans({"’": "'", "‘": "'", "”": '"', "“": '"', "…": "...", "—": "--", "–": "-", "´": "'"})


class StdlibDocs(TextData):
    """Docstrings and language topics of the running Python's standard library: about 1.85 MB of English.

    The text differs between Python versions: compare runs only where their fingerprints agree. Only ASCII is left:
    typographic marks become their ASCII forms, any other character a question mark. Between two documents stands
    ``<eos>``. A text that occurs twice counts once. Documents are shuffled in an order fixed for all before the last
    `val_fraction` of the characters becomes the validation split, at the end of a document: so both splits cover all
    modules and no document is in both. The test split is the validation split unless `test_fraction` is given.
    """

    # a tenth of the rows: docstrings repeat each other from module to module
    twins: ClassVar[float] = 0.15

    def __init__(
        self,
        tokenizer: Scheme = "chars",
        vocab_size: int = 8192,
        max_length: int = 64,
        batch_size: int = 12,
        val_fraction: float = 0.1,
        num_workers: int = 0,
        seed: int | None = None,
        test_fraction: float | None = None,
    ) -> None:
        """`vocab_size` is for bpe only; `max_length` is the model's context length."""
        super().__init__(tokenizer, vocab_size, max_length, batch_size, val_fraction, num_workers, seed, test_fraction)

    def source(self) -> dict[str, Any]:
        """Names, sizes and times of the library's files: finding them takes milliseconds, reading them seconds."""
        library = library_folder()
        listing = hashlib.sha256()
        for file in library_sources(library):
            state = file.stat()
            listing.update(f"{file.relative_to(library)} {state.st_size} {state.st_mtime_ns}\n".encode())
        return {"python": platform.python_version(), "files": listing.hexdigest()}

    def documents(self) -> Corpus:
        """The docstrings of the standard library, shuffled; the last ones are the validation split."""

        def extract(folder: Path) -> None:
            write_json(folder / "texts.json", texts_of(library_folder()))

        entry = cached_entry("stdlib", {"format": 1, **self.source()}, extract)
        texts: list[str] = json.loads((entry / "texts.json").read_text("utf-8"))
        shuffled = [texts[i] for i in generator(ORDER).permutation(len(texts))]
        characters = sum(map(len, texts)) * self.val_fraction
        boundary, size = len(shuffled), 0
        while size < characters:
            boundary -= 1
            size += len(shuffled[boundary])
        return Corpus({"train": shuffled[:boundary], "val": shuffled[boundary:]}, separate=True)


def texts_of(library: Path) -> list[str]:
    """Docstrings of the modules under a folder, and the topics of Python's own help, each once, in ASCII.

    Raises UsageError when the running Python has no sources.
    """
    texts = [text for file in library_sources(library) for text in docstrings_of(file)]
    if len(texts) < LEAST_TEXTS:
        raise no_sources()
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise no_sources() from error
    texts += [topics[name] for name in sorted(topics)]
    # translated first: two texts may differ by a mark only
    return list(dict.fromkeys(to_ascii(text) for text in texts))


def to_ascii(text: str) -> str:
    """ASCII: typographic marks in their plain forms, any other character a question mark."""
    return text.translate(TYPOGRAPHY).encode("ascii", "replace").decode()


def walk_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The module and its statements in the order of ``ast.walk``; not its expressions, which define nothing."""
    queue: deque[ast.AST] = deque([tree])
    while queue:
        node = queue.popleft()
        yield node
        for field in node._fields:
            if field in STATEMENTS and isinstance(children := getattr(node, field), list):  # a lambda's body is a node
                queue.extend(children)


def docstrings_of(file: Path) -> Iterator[str]:
    """The docstrings of a module that are long enough to be texts."""
    try:
        with warnings.catch_warnings():  # about invalid escapes in the library's own strings
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # the library ships a few files that are wrong on purpose
    for node in walk_statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > SHORTEST:
                yield text
