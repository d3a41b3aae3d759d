"""Token masking of masked language models: which tokens are predicted, and what replaces them in the input."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zoo.data.batches import uniforms
from zoo.data.tokenizer import BYTE, Style, Tokenizer, byte_of

IGNORE = -100
MASK_SHARE, RANDOM_SHARE = (
    0.8,
    0.1,
)  # of the chosen tokens: hidden by <mask>, replaced by any token; the rest stays (BERT)
SPACE, LETTER, DIGIT, OTHER, ALONE, INSIDE = range(6)


class Words(NamedTuple):
    """For each token of a vocabulary, what kind of character it begins and ends with: see ``starts``."""

    first: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Words:
        """The table of a tokenizer's vocabulary."""
        added = {token.content: token.special for token in tokenizer.inner.get_added_tokens_decoder().values()}
        kinds = [_ends(token, "text" if token in added else tokenizer.style) for token in tokenizer.tokens]
        for token in (token for token, special in added.items() if special):
            kinds[tokenizer.specials[token]] = (ALONE, ALONE)
        return cls(*(np.array(side) for side in zip(*kinds, strict=True)))

    def starts(self, tokens: np.ndarray) -> np.ndarray:
        """(B, T) bool: whether a token begins a word. A word is a run of letters, of digits or of other marks, with
        the space in front of it, or of WordPiece a token with all behind it that begin with ##; the first token of a
        row always begins one.
        """
        first, last = self.first[tokens], self.last[tokens]
        is_start = np.ones(tokens.shape, bool)
        new = (first[:, 1:] == SPACE) & (last[:, :-1] != SPACE)
        other = (first[:, 1:] != last[:, :-1]) & (last[:, :-1] != SPACE)
        is_start[:, 1:] = (new | other | (first[:, 1:] == ALONE)) & (first[:, 1:] != INSIDE)
        return is_start

    def numbers(self, tokens: np.ndarray) -> np.ndarray:
        """(B, T): the column in which the word of each token begins."""
        columns = np.arange(tokens.shape[1])
        return np.maximum.accumulate(np.where(self.starts(tokens), columns, 0), axis=1)


def _ends(token: str, style: Style) -> tuple[int, int]:
    if style == "byte":
        token = bytes(byte_of(letter) for letter in token).decode("latin-1")
    elif style == "pieces":
        is_later, token = token.startswith("##"), token.removeprefix("##")
        return INSIDE if is_later else SPACE, _kind(token[-1:])
    elif style == "mark":
        token = chr(int(token[3:5], 16)) if BYTE.fullmatch(token) else token.replace("▁", " ")
    return _kind(token[:1]), _kind(token[-1:])


def _kind(character: str) -> int:
    if not character or character.isspace():
        return SPACE
    if character.isalpha() or ord(character) > 127:  # of byte-level BPE, a part of a letter
        return LETTER
    return DIGIT if character.isdigit() else OTHER


class Masker(NamedTuple):
    """Chooses ``rate`` of the tokens or, where ``words`` is given, of whole words; as BERT (Devlin et al., 2019) does.

    Of the chosen tokens 80 % become ``mask``, 10 % a token drawn from ``ordinary``, 10 % stay as they are.
    """

    rate: float
    mask: int
    ordinary: np.ndarray
    words: Words | None = None

    def __call__(
        self, tokens: np.ndarray, allowed: np.ndarray, seed: int, epoch: int, indices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (B, T) and targets (B, T), -100 where nothing is predicted, for rows ``indices`` (B,) of an epoch.

        Only positions in ``allowed`` (B, T) are masked. Equal (seed, epoch, index) give equal masks.
        """
        width = tokens.shape[1]
        draws = uniforms(seed, epoch, indices, 3 * width).reshape(len(tokens), 3, width)
        chance, way, which = draws[:, 0], draws[:, 1], draws[:, 2]
        if self.words is not None:
            chance = np.take_along_axis(chance, self.words.numbers(tokens), 1)
        selected = (chance < self.rate) & allowed
        random = self.ordinary[(which * len(self.ordinary)).astype(np.int64)]
        replacements = np.where(way < MASK_SHARE, self.mask, np.where(way < MASK_SHARE + RANDOM_SHARE, random, tokens))
        return np.where(selected, replacements, tokens), np.where(selected, tokens, IGNORE)
