"""Reversed random words: a translation task that needs attention."""

from __future__ import annotations

import random
import string
from typing import Any

from zoo.data.pair_data import Pair, PairData
from zoo.errors import UsageError
from zoo.value_checks import MOST_SAMPLES, at_least, at_most

EVALUATION_SIZE = 500  # words for validation, and as many for test
BYTES = 259  # the smallest vocabulary there is: every letter stays a token


class Reversal(PairData):
    """Random words and the same words backwards; each letter's translation is known, so alignment can be measured."""

    corpus_seed = 20140901

    def __init__(
        self,
        length: int = 16,
        letters: int = 20,
        size: int = 20000,
        max_tokens: int = 1536,
        eval_limit: int = 200,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: letters of a word.
            letters: size of the alphabet.
            size: number of training pairs.
            max_tokens: tokens of a batch per process, padding included.
            eval_limit: validation pairs that are decoded.
        """
        super().__init__(BYTES, max_tokens, length + 1, eval_limit, num_workers, seed)
        at_least(1, size=size)
        at_most(MOST_SAMPLES, size=size)
        if not 2 <= letters <= len(string.ascii_lowercase):
            raise UsageError(f"letters is {letters}: it must lie between 2 and {len(string.ascii_lowercase)}")
        if letters**length < 2 * (size + 2 * EVALUATION_SIZE):
            raise UsageError(f"{letters} letters make too few words of {length} for size={size}. Choose longer words.")
        self.length, self.letters, self.size = length, letters, size

    def origin(self) -> dict[str, Any]:
        """The options that change words."""
        return {"reversal": [self.length, self.letters, self.size, self.corpus_seed]}

    def corpus(self) -> dict[str, list[Pair]]:
        """Random words and the same words reversed, by split."""
        draw = random.Random(self.corpus_seed)
        alphabet = string.ascii_lowercase[: self.letters]
        words: dict[str, None] = {}
        while len(words) < self.size + 2 * EVALUATION_SIZE:
            words["".join(draw.choices(alphabet, k=self.length))] = None
        last = self.length - 1
        slots = tuple(((i, i + 1), (last - i, last - i + 1)) for i in range(self.length))
        pairs = [Pair(word, word[::-1], slots=slots) for word in words]
        return {
            "test": pairs[:EVALUATION_SIZE],
            "val": pairs[EVALUATION_SIZE : 2 * EVALUATION_SIZE],
            "train": pairs[2 * EVALUATION_SIZE :],
        }
