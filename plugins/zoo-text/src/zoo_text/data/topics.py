"""Text classification without files: which package of Python's standard library a docstring comes from."""

from __future__ import annotations

from collections import Counter

from zoo.data.data import at_least
from zoo.data.stdlib import StdlibDocs, package_origins
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
            tokenizer: a run's folder or a tokenizer.json whose tokenizer is used, instead of one that
                is learned here.
            vocab_size: size of the byte-level BPE vocabulary that is learned from the training texts.
            max_length: tokens of a text that are read; the rest is cut off.
            batch_size: texts per batch and process.
            val_fraction: share of the documents that validates.
            labels: number of training texts that are used; all unless given.
            seed: of the order; the run's unless given.
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
