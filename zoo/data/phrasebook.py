"""Translation data without files: sentence pairs generated from Babel's CLDR data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zoo.data.pair_data import Pair, PairData
from zoo.errors import UsageError
from zoo.registry import suggest
from zoo.value_checks import MOST_SAMPLES, at_least, at_most

KINDS = (
    "date date_time countries countries_or languages unit units relative_time money country_money country_date "
    "language_country"
).split()
EVALUATION_SIZE = 1000  # validation pairs, and as many test pairs
TRIES = 20  # per pair, before the kinds count as exhausted


class Phrasebook(PairData):
    """Dates, lists, quantities and names in two languages, of twelve kinds, generated from Unicode's CLDR data.

    The corpus depends on its own seed and on Babel's version only: `size` training, 1,000 validation and 1,000 test
    pairs, of which no two share a source sentence. Digits are tokens of their own, and so are Chinese and Japanese
    characters. Dates know their alignment: weekday, month, day and year on both sides.
    """

    corpus_seed = 20170612
    split_digits = True
    split_ideographs = True

    def __init__(
        self,
        source: str = "en",
        target: str = "de",
        size: int = 20000,
        kinds: list[str] | None = None,
        vocab_size: int = 2000,
        max_tokens: int = 2048,
        max_length: int = 96,
        eval_limit: int = 200,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            source: locale of the source.
            target: locale of the target.
            size: number of training pairs.
            kinds: which of the twelve kinds of phrases; all unless given.
        """
        super().__init__(vocab_size, max_tokens, max_length, eval_limit, num_workers, seed)
        at_least(1, size=size)
        at_most(MOST_SAMPLES, size=size)
        self.languages, self.size = (source, target), size
        self.kinds = check_kinds(kinds)

    def maker(self) -> str:
        """The package and the version that make the phrases."""
        return babel_version()

    def origin(self) -> dict[str, Any]:
        """The maker and all options that change phrases."""
        return {
            "maker": self.maker(),
            "languages": self.languages,
            "size": self.size,
            "kinds": self.kinds,
            "seed": self.corpus_seed,
        }

    def corpus(self) -> dict[str, list[Pair]]:
        """Generate the pairs. Raises UsageError if the kinds have fewer different sentences than requested."""
        from zoo.data.cldr import Book

        book = Book(*self.languages, self.corpus_seed)
        count = self.size + 2 * EVALUATION_SIZE
        unique: dict[str, Pair] = {}
        for _ in range(TRIES * count):
            pair = book.pair(book.random.choice(self.kinds))
            if pair is not None:
                unique.setdefault(pair.source, pair)
                if len(unique) == count:
                    break
        if len(unique) < count:
            raise UsageError(
                f"the kinds {', '.join(self.kinds)} give about {len(unique)} different sentences, {count} are needed: "
                f"size and 2 × {EVALUATION_SIZE} for validation and test.\nChoose a smaller size or more kinds."
            )
        pairs = list(unique.values())
        book.random.shuffle(pairs)  # kinds with few sentences are used up early
        return {
            "test": pairs[:EVALUATION_SIZE],
            "val": pairs[EVALUATION_SIZE : 2 * EVALUATION_SIZE],
            "train": pairs[2 * EVALUATION_SIZE :],
        }


class MultilingualPhrasebook(PairData):
    """The phrases of Phrasebook in one source and several target languages, for one model of all of them.

    A source begins with the token of its target language, such as ``<2fr>`` (Johnson et al., "Google's Multilingual
    Neural Machine Translation System", 2017). The languages have equal shares of `size` training, 1,000 validation and
    1,000 test pairs. A hash of the source sentence decides its split, in every language. Evaluation reports exact
    translations by language.
    """

    corpus_seed = 20170612
    split_digits = True
    split_ideographs = True

    def __init__(
        self,
        source: str = "en",
        targets: Sequence[str] = ("de", "fr", "es", "it"),
        size: int = 20000,
        vocab_size: int = 2000,
        max_tokens: int = 2048,
        max_length: int = 96,
        eval_limit: int = 200,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            source: locale of the sources.
            targets: locales of the targets, two or more.
            size: number of training pairs, all languages together.
        """
        super().__init__(vocab_size, max_tokens, max_length, eval_limit, num_workers, seed)
        if len(set(targets)) != len(targets) or len(targets) < 2:
            raise UsageError(f"targets is {list(targets)}: it must name two or more different locales")
        at_least(len(targets), size=size)
        at_most(MOST_SAMPLES, size=size)
        self.source, self.target_languages, self.size = source, tuple(targets), size

    def maker(self) -> str:
        """The package and the version that make the phrases."""
        return babel_version()

    def origin(self) -> dict[str, Any]:
        """The maker and all options that change phrases."""
        languages = [self.source, *self.target_languages]
        return {"maker": self.maker(), "multilingual": languages, "size": self.size, "seed": self.corpus_seed}

    def corpus(self) -> dict[str, list[Pair]]:
        """Generate the pairs. Raises UsageError if a language has fewer different sentences than requested."""
        from zoo.data.cldr import Book

        sizes = {"train": self.size, "val": EVALUATION_SIZE, "test": EVALUATION_SIZE}
        corpus: dict[str, list[Pair]] = {split: [] for split in sizes}
        for number, target in enumerate(self.target_languages):
            book = Book(self.source, target, self.corpus_seed + number)
            # what does not divide by the number of languages goes to the first ones
            quotas = {split: len(range(number, size, len(self.target_languages))) for split, size in sizes.items()}
            unique: dict[str, dict[str, Pair]] = {split: {} for split in sizes}
            for _ in range(TRIES * sum(quotas.values())):
                pair = book.pair(book.random.choice(KINDS))
                if pair is not None and len(unique[split := _split_of(pair.source)]) < quotas[split]:
                    unique[split].setdefault(pair.source, replace(pair, kind=target, language=target))
                    if all(len(unique[split]) == quotas[split] for split in sizes):
                        break
            else:
                raise UsageError(
                    f"{self.source} and {target} have too few different phrases for size={self.size}: choose a smaller "
                    "one."
                )
            for split, pairs in unique.items():
                corpus[split] += pairs.values()
        return corpus


def _split_of(sentence: str) -> str:
    """The split of a source sentence, by a hash: 80 % train, 10 % validate and 10 % test."""
    place = hashlib.sha256(sentence.encode()).digest()[0]
    return "val" if place < 26 else "test" if place < 52 else "train"


def check_kinds(kinds: list[str] | None) -> list[str]:
    """The kinds of phrases, all for None. Raises UsageError for none and for an unknown one."""
    if kinds is None:
        return list(KINDS)
    if not kinds:
        raise UsageError(f"kinds is empty: choose from {', '.join(KINDS)}")
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"unknown kind {kind!r}.{suggest(kind, KINDS)} Available: {', '.join(KINDS)}")
    return list(kinds)


def babel_version() -> str:
    """The package and the version that make the phrases."""
    import babel

    return f"babel {babel.__version__}"
