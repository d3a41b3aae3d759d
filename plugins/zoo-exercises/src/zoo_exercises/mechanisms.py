"""The texts of MAD (Poli et al., 2024): recall in context, with noise or of several tokens; memory; selection."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from zoo.errors import UsageError
from zoo.value_checks import at_least
from zoo_exercises.synthetic import EVALUATION_SEED, IGNORE, Exercise, SyntheticData, Texts, integers


class InContextRecall(SyntheticData):
    """Pairs of a key and a value that repeat, and noise: after a key that stood before, the answer is its value (MAD).

    The last pair always has a key that stood before. Noise has tokens of its own, two in place of a pair. Chance:
    2 / keys and values.
    """

    def __init__(
        self,
        length: int = 128,
        vocab_size: int = 16,
        noise: float = 0.0,
        noise_tokens: int = 0,
        longer: int = 1,
        size: int = 12800,
        eval_size: int = 1280,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: tokens of a text, an even number; the last one is predicted alone.
            vocab_size: number of tokens: keys, as many values, and those of noise.
            noise: share of the pairs that are noise.
            noise_tokens: number of tokens of noise.
        """
        super().__init__(vocab_size, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(0, noise_tokens=noise_tokens)
        self.keys = (vocab_size - noise_tokens) // 2
        if length % 2 or length < 4:
            raise UsageError(f"length is {length}: pairs need an even number of at least 4.")
        if not 0 <= noise < 1 or (noise > 0) != (noise_tokens > 0):
            raise UsageError(
                f"noise={noise} with noise_tokens={noise_tokens}: a share below 1, with tokens of its own, or both 0."
            )
        if self.keys < 2:
            raise UsageError(
                f"vocab_size={vocab_size} leaves {self.keys} keys beside {noise_tokens} tokens of noise: at least 2."
            )
        self.length, self.noise, self.noise_tokens = length, noise, noise_tokens

    @property
    def chance(self) -> float:
        """1 / number of values."""
        return 1 / self.keys

    def difficulty(self) -> list[int]:
        """Length, keys, and noise in millionths."""
        return [self.length, self.keys, self.noise_tokens, round(1e6 * self.noise)]

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times * length`` tokens, less the last one."""
        pairs = times * self.length // 2
        make = partial(in_context_texts, pairs=pairs, keys=self.keys, noise=self.noise, noise_tokens=self.noise_tokens)
        return Exercise(make, 4 * pairs + self.keys + 1, 2 * pairs - 1, pairs * math.log2(self.keys))


def in_context_texts(uniform: np.ndarray, pairs: int, keys: int, noise: float, noise_tokens: int) -> Texts:
    """Texts of recall in context from uniform (B, 4 pairs + keys + 1)."""
    picked, noisy, other, table, spared = np.split(uniform, [pairs, 2 * pairs, 4 * pairs, 4 * pairs + keys], 1)
    rows = np.arange(len(uniform))
    key, values = integers(picked, keys), keys + integers(table, keys)
    is_noise = noisy < noise
    spare = integers(spared[:, 0], pairs - 1)
    is_noise[rows, spare] = is_noise[:, -1] = False
    # the last key is that of a pair that is none of noise, drawn by the number that drew it
    order = np.where(is_noise[:, :-1], -1.0, other[:, : pairs - 1]).argmax(1)
    key[:, -1] = key[rows, order]
    value = np.take_along_axis(values, key, 1)
    stood = np.zeros((len(uniform), keys), bool)
    answered = np.zeros_like(is_noise)
    for place in range(pairs):
        answered[:, place] = stood[rows, key[:, place]] & ~is_noise[:, place]
        stood[rows, key[:, place]] |= ~is_noise[:, place]
    tokens = np.stack([key, value], 2)
    if noise:
        tokens = np.where(is_noise[..., None], 2 * keys + integers(other.reshape(tokens.shape), noise_tokens), tokens)
    tokens = tokens.reshape(len(uniform), -1)
    targets = np.full_like(tokens, IGNORE)
    targets[:, ::2] = np.where(answered, value, IGNORE)
    return Texts(tokens[:, :-1], targets[:, :-1])


class FuzzyRecall(SyntheticData):
    """Recall in context where a key has 1 to ``motif`` tokens, and a value as many or fewer (MAD's fuzzy recall).

    Each text has a table of its own, ``pairs`` keys with values, of which it says random ones. Each token of the value
    of a key that stood before is an answer. Longer keys begin as no shorter one does. Chance: 2 / vocab_size.
    """

    varied_by = ("length", "vocab_size", "motif", "pairs")

    def __init__(
        self,
        length: int = 128,
        vocab_size: int = 16,
        motif: int = 3,
        pairs: int = 8,
        longer: int = 1,
        size: int = 12800,
        eval_size: int = 1280,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: tokens of a text.
            vocab_size: number of tokens: a half for keys, a half for values.
            motif: the most tokens of a key, and of a value.
            pairs: keys that a text has at most.
        """
        super().__init__(vocab_size, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(1, motif=motif)
        at_least(4 * motif, length=length)
        at_least(2, pairs=pairs)
        if pairs > vocab_size // 2:
            raise UsageError(f"pairs={pairs} need as many first tokens of keys, and vocab_size={vocab_size} has half.")
        self.length, self.motif, self.pairs = length, motif, pairs

    @property
    def chance(self) -> float:
        """1 / number of tokens of values."""
        return 2 / self.vocab_size

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times * length`` tokens."""
        length, half = times * self.length, self.vocab_size // 2
        make = partial(fuzzy_texts, length=length, half=half, motif=self.motif, pairs=self.pairs)
        numbers = half + self.pairs * 2 * (self.motif + 1) + length // 2 + 1
        return Exercise(make, numbers, length, self.pairs * 2 * math.log2(half))


def fuzzy_texts(uniform: np.ndarray, length: int, half: int, motif: int, pairs: int) -> Texts:
    """Texts of fuzzy recall from uniform (B, half + 2 pairs (motif + 1) + length / 2 + 1)."""
    firsts, tail = np.split(uniform, [half], 1)
    table, order = np.split(tail, [2 * pairs * (motif + 1)], 1)
    table = table.reshape(len(uniform), pairs, 2, motif + 1)
    sizes = 1 + integers(table[..., 0], motif)  # (B, pairs, 2): tokens of key and value
    words = integers(table[..., 1:], half)
    words[:, :, 0, 0] = firsts.argsort(1)[:, :pairs]
    words[:, :, 1] += half
    picked = integers(order, pairs)
    tokens, targets = np.zeros((len(uniform), length + 1), np.int64), np.full((len(uniform), length + 1), IGNORE)
    for row in range(len(uniform)):
        place, stood = 0, set()
        for pair in picked[row]:
            for side in (0, 1):
                word = words[row, pair, side, : sizes[row, pair, side]][: length + 1 - place]
                tokens[row, place : place + len(word)] = word
                if side and pair in stood:
                    targets[row, place : place + len(word)] = word
                place += len(word)
            stood.add(pair)
            if place > length:  # a text has more pairs than fit where all are of two tokens
                break
    return Texts(tokens[:, :-1], targets[:, 1:])


class Memorization(SyntheticData):
    """Keys, each followed by a blank, where the answer is the key's value in a table that never changes (MAD).

    Nothing in a text says the value: the weights must hold it. Chance: 1 / values.
    """

    varied_by = ("length", "vocab_size")

    def __init__(
        self,
        length: int = 32,
        vocab_size: int = 256,
        longer: int = 1,
        size: int = 256,
        eval_size: int = 1280,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: tokens of a text, an even number.
            vocab_size: number of tokens: keys, as many values, and the blank.
        """
        super().__init__(vocab_size, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(3, vocab_size=vocab_size)
        if length % 2 or length < 2:
            raise UsageError(f"length is {length}: pairs need an even number of at least 2.")
        self.length = length

    @property
    def chance(self) -> float:
        """1 / number of values."""
        return 1 / ((self.vocab_size - 1) // 2)

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times * length`` tokens."""
        count, keys = times * self.length // 2, (self.vocab_size - 1) // 2
        return Exercise(partial(memory_texts, keys=keys), count, 2 * count, count * math.log2(keys))


def memory_texts(uniform: np.ndarray, keys: int) -> Texts:
    """Texts of memory from uniform (B, N); the table is the same in every run."""
    values = keys + np.random.default_rng(EVALUATION_SEED).permutation(keys)
    key = integers(uniform, keys)
    tokens, targets = (np.full((len(uniform), 2 * key.shape[1]), fill) for fill in (2 * keys, IGNORE))
    tokens[:, ::2], targets[:, 1::2] = key, values[key]
    return Texts(tokens, targets)


class SelectiveCopying(SyntheticData):
    """Letters with blanks between them, a mark, then blanks, where the answers are the letters in their order (MAD).

    Gu and Dao, "Mamba" (2023) have it as selective copying. Chance: 1 / letters.
    """

    varied_by = ("length", "letters", "copied")

    def __init__(
        self,
        length: int = 256,
        letters: int = 14,
        copied: int = 16,
        longer: int = 1,
        size: int = 12800,
        eval_size: int = 1280,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: tokens of a text.
            letters: size of the alphabet, without blank and mark.
            copied: letters of a text, each of which is an answer.
            longer: how many times as long the longer validation texts are, with as many letters; 1 for none.
        """
        super().__init__(letters + 2, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(2, letters=letters)
        at_least(1, copied=copied)
        at_least(2 * copied + 2, length=length)
        self.length, self.letters, self.copied = length, letters, copied

    @property
    def chance(self) -> float:
        """1 / letters."""
        return 1 / self.letters

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times * length`` tokens."""
        length = times * self.length
        make = partial(selective_texts, length=length, letters=self.letters, copied=self.copied)
        return Exercise(make, length - 1, length, self.copied * math.log2(self.letters))


def selective_texts(uniform: np.ndarray, length: int, letters: int, copied: int) -> Texts:
    """Texts of selective copying from uniform (B, length - 1)."""
    letter, turns = np.split(uniform, [copied], 1)
    text, places = integers(letter, letters), np.sort(turns.argsort(1)[:, :copied], 1)
    tokens, targets = (np.full((len(uniform), length), fill) for fill in (letters, IGNORE))
    np.put_along_axis(tokens, places, text, 1)
    tokens[:, -copied - 1] = letters + 1
    targets[:, -copied:] = text
    return Texts(tokens, targets)
