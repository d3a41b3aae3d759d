"""Summarisation without files: the first line of a docstring, from what follows it."""

from __future__ import annotations

from typing import Any

from zoo.data.data import at_least, require_fraction
from zoo.data.pair_data import Pair, PairData
from zoo.data.stdlib import StdlibDocs

SHORTEST, LONGEST = 15, 90  # characters of a summary
BODY = 60  # characters that there must be to sum up


class DocSummaries(PairData):
    """Docstrings of the running Python's standard library: their first line is predicted from the text below it.

    Python's convention is that the first line sums up the rest, and that a blank line stands between them. The source
    is the first `reads` characters of the rest, to the end of a word, with line breaks as spaces. Half of the texts
    that StdlibDocs holds back are for validation, half for the test: a language model that was trained on StdlibDocs
    with the same `val_fraction` has seen neither.
    """

    def __init__(
        self,
        reads: int = 300,
        vocab_size: int = 1024,
        max_tokens: int = 2048,
        max_length: int = 160,
        eval_limit: int = 200,
        val_fraction: float = 0.1,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            reads: characters of a docstring that are read.
            val_fraction: share of the library's text that is held back for validation and test.
        """
        super().__init__(vocab_size, max_tokens, max_length, eval_limit, num_workers, seed)
        at_least(BODY, reads=reads)
        require_fraction(val_fraction=val_fraction)
        self.reads, self.val_fraction = reads, val_fraction

    def origin(self) -> dict[str, Any]:
        """The version of the summaries and of the standard library."""
        return {"summaries": 1, "reads": self.reads, "val_fraction": self.val_fraction, **StdlibDocs().source()}

    def corpus(self) -> dict[str, list[Pair]]:
        """Docstrings and their first lines by split."""
        splits = StdlibDocs(val_fraction=self.val_fraction).documents().splits
        train, others = (_pairs(splits[name], self.reads) for name in ("train", "val"))
        targets = {pair.target for pair in train}
        others = [pair for pair in others if pair.target not in targets]  # many methods say what their twins say
        return {"train": train, "val": others[::2], "test": others[1::2]}


def _pairs(texts: list[str], reads: int) -> list[Pair]:
    summaries = (summary(text, reads) for text in texts)
    return [pair for pair in summaries if pair is not None]


def summary(text: str, reads: int) -> Pair | None:
    """A docstring's rest and its first line; None where one of them is missing."""
    first, _, following = text.partition("\n")
    body = " ".join(following.split())
    if following[:1] != "\n" or not SHORTEST <= len(first) <= LONGEST or not first.endswith(".") or len(body) < BODY:
        return None
    if len(body) > reads:
        body = body[: reads + 1].rpartition(" ")[0] or body[:reads]
    return Pair(body, first, "summary")
