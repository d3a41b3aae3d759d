"""Long texts without files: which package of Python's standard library a piece of source code comes from."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from zoo.data.batches import generator
from zoo.data.cache import cached_entry, write_json
from zoo.data.data import at_least, require_fraction
from zoo.data.library_files import library_files
from zoo.data.stdlib import StdlibDocs
from zoo.errors import UsageError
from zoo_text.data.labelled import LabelledText, TextLabels

ORDER = 20160612  # fixed seed of which pieces are chosen, and of the split


class SourceTopics(TextLabels):
    """Pieces of the source code of the running Python's library, of some 400 tokens, each with its package.

    Classes are the ``topics`` packages with the most source code; a module alone counts as a package. A piece is a run
    of whole lines of one file. Of each package at most ``pieces`` are drawn, and `val_fraction` of them validates,
    which is the test split too: other pieces of a file may be trained with.
    """

    def __init__(
        self,
        topics: int = 12,
        pieces: int = 160,
        characters: int = 1500,
        tokenizer: str | None = None,
        vocab_size: int = 1024,
        max_length: int = 512,
        batch_size: int = 16,
        val_fraction: float = 0.25,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            topics: number of classes: the packages with the most source code.
            pieces: most pieces of a class.
            characters: least length of a piece; it ends at the end of a line.
            val_fraction: share of the pieces that validates.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, None, seed)
        at_least(2, topics=topics, pieces=pieces)
        at_least(1, characters=characters)
        require_fraction(val_fraction=val_fraction)
        self.topics, self.pieces, self.characters, self.val_fraction = topics, pieces, characters, val_fraction

    def texts(self) -> dict[str, list[LabelledText]]:
        """Pieces labelled with their package, by split. Raises UsageError for more topics than packages."""
        packages = self._packages()
        if len(packages) < self.topics:
            raise UsageError(f"topics is {self.topics}, and the library has {len(packages)} packages with source code")
        largest = sorted(packages, key=lambda name: (-sum(map(len, packages[name])), name))[: self.topics]
        splits: dict[str, list[LabelledText]] = {"train": [], "val": []}
        for number, name in enumerate(largest):
            order = generator(ORDER, number).permutation(len(packages[name]))[: self.pieces]
            some = [LabelledText(packages[name][i], name) for i in order]
            size = max(1, round(len(some) * self.val_fraction))
            splits["val"] += some[:size]
            splits["train"] += some[size:]
        return splits

    def _packages(self) -> dict[str, list[str]]:
        """The different pieces of each package."""

        def extract(folder: Path) -> None:
            library = Path(sysconfig.get_paths()["stdlib"])
            packages: dict[str, dict[str, None]] = {}
            for file in library_files():
                home = file.relative_to(library).parts[0].removesuffix(".py").removeprefix("_py").lstrip("_")
                text = file.read_bytes().decode("utf-8", "replace")
                packages.setdefault(home, {}).update(dict.fromkeys(pieces_of(text, self.characters)))
            write_json(folder / "pieces.json", {name: list(pieces) for name, pieces in packages.items() if pieces})

        key = {"format": 1, "characters": self.characters, **StdlibDocs().source()}
        content = (cached_entry("source-topics", key, extract) / "pieces.json").read_text("utf-8")
        packages: dict[str, list[str]] = json.loads(content)
        return packages


def pieces_of(text: str, characters: int) -> Iterator[str]:
    """A text cut behind lines into pieces of at least so many characters; what is left at its end is left out."""
    start = 0
    while (end := text.find("\n", start + characters) + 1) > 0:
        yield text[start:end]
        start = end
