"""Text classification without files: which package of Python's standard library a docstring comes from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from zoo.data.cache import cached_entry, write_json
from zoo.data.data import at_least
from zoo.data.library_files import library_folder, library_sources
from zoo.data.stdlib import StdlibDocs, docstrings_of, to_ascii
from zoo.errors import UsageError
from zoo_text.data.labelled import LabelledText, TextLabels


class DocTopics(TextLabels):
    """Docstrings of the running Python's standard library, each with the package or module it belongs to.

    Classes are the ``topics`` packages with the most docstrings. A text that two of them have is left out. The split is
    that of StdlibDocs with the same `val_fraction`: a language model that was trained on it has seen no text of this
    validation split, which is the test split too.
    """

    def __init__(
        self,
        topics: int = 12,
        tokenizer: str | None = None,
        vocab_size: int = 1024,
        max_length: int = 64,
        batch_size: int = 32,
        val_fraction: float = 0.25,
        labels: int | None = None,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            topics: number of classes: the packages with the most docstrings.
            val_fraction: share of the documents that validates.
        """
        super().__init__(tokenizer, vocab_size, max_length, batch_size, labels, seed)
        at_least(2, topics=topics)
        self.topics, self.val_fraction = topics, val_fraction

    def texts(self) -> dict[str, list[LabelledText]]:
        """Docstrings labelled with their package, by split. Raises UsageError for more topics than packages."""
        splits = StdlibDocs(val_fraction=self.val_fraction).documents().splits
        of = {text: homes[0] for text, homes in package_origins().items() if len(homes) == 1}
        counts = Counter(home for home in of.values())
        if len(counts) < self.topics:
            raise UsageError(f"topics is {self.topics}, and the library has {len(counts)} packages with docstrings")
        classes = {name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: self.topics]}
        return {
            split: [LabelledText(text, of[text]) for text in texts if of.get(text) in classes]
            for split, texts in splits.items()
        }


def package_origins() -> dict[str, list[str]]:
    """Each docstring of the running Python's library, as in StdlibDocs, with the packages that have it.

    A module alone counts as a package; a private one, such as ``_pydecimal``, as the public one it serves.
    """

    def extract(folder: Path) -> None:
        packages: dict[str, list[str]] = {}
        for file in library_sources(library):
            home = file.relative_to(library).parts[0].removesuffix(".py").removeprefix("_py").lstrip("_")
            for text in docstrings_of(file):
                homes = packages.setdefault(to_ascii(text), [])
                if home not in homes:
                    homes.append(home)
        write_json(folder / "origins.json", packages)

    library = library_folder()
    entry = cached_entry("stdlib-origins", {"format": 1, **StdlibDocs().source()}, extract)
    content: dict[str, list[str]] = json.loads((entry / "origins.json").read_text("utf-8"))
    return content
