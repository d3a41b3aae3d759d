"""Synthetic tasks: random texts whose answers are known, which show what a mixer of tokens can remember and compute."""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from zoo.data.batches import BatchDataset, uniforms
from zoo.data.data import Data
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.value_checks import at_least, at_most

IGNORE = -100
EVALUATION_SEED = 20231214  # of validation and test texts, fixed so that runs of all seeds are measured alike
ATTEMPTS = 64  # to draw a text of the right half: half of them fail
FEWEST_TEXTS = 1000  # from fewer, a half for training and a half for evaluation would hardly differ from run to run
LONGEST = 2**16  # tokens of a text
GAP_POWER = 0.01  # of the power law of how far a key stands behind the pairs
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FIRST_IDEOGRAPH, IDEOGRAPHS = 0x4E00, 20000  # characters for the tokens after those


class Texts(NamedTuple):
    """Tokens (B, T), and targets (B, T): an answer, or -100 where there is none."""

    inputs: np.ndarray
    targets: np.ndarray


class Exercise(NamedTuple):
    """How to make texts of one difficulty from uniform numbers (B, ``numbers``); all are ``width`` tokens long."""

    make: Callable[[np.ndarray], Texts]
    numbers: int
    width: int
    variety: float  # log2 of how many texts there are


class DrawnTexts(BatchDataset):
    """``rows`` texts of each exercise, drawn by (seed, epoch, row).

    A hash of a text says whether it is one for training or one for evaluation, so that they have no text in common.
    """

    def __init__(self, exercises: list[Exercise], rows: int, seed: int, training: bool) -> None:
        self.exercises, self.rows, self.seed, self.training = exercises, rows, seed, training

    def __len__(self) -> int:
        return self.rows * len(self.exercises)

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``inputs`` and ``targets`` (B, T), -100 where there is no answer, ``bytes`` (B,), all 0 since these are no
        words, and ``longer`` (B,): whether a text is longer than those of training.
        """
        numbers = indices // self.rows
        width = max(self.exercises[number].width for number in numbers)
        inputs, targets = np.zeros((len(indices), width), np.int64), np.full((len(indices), width), IGNORE)
        for number in np.unique(numbers):
            rows = np.flatnonzero(numbers == number)
            texts = self._draw(self.exercises[number], indices[rows], epoch if self.training else 0)
            inputs[rows, : texts.inputs.shape[1]] = texts.inputs
            targets[rows, : texts.inputs.shape[1]] = texts.targets
        return {
            "inputs": torch.from_numpy(inputs),
            "targets": torch.from_numpy(targets),
            "bytes": torch.zeros(len(indices), dtype=torch.long),
            "longer": torch.from_numpy(numbers > 0),
        }

    def _draw(self, exercise: Exercise, indices: np.ndarray, epoch: int) -> Texts:
        inputs = np.empty((len(indices), exercise.width), np.int64)
        targets, pending = np.empty_like(inputs), np.arange(len(indices))
        for attempt in range(ATTEMPTS):
            texts = exercise.make(uniforms(self.seed, epoch * ATTEMPTS + attempt, indices[pending], exercise.numbers))
            inputs[pending], targets[pending] = texts
            pending = pending[is_for_training(texts.inputs) != self.training]
            if not len(pending):
                break
        return Texts(inputs, targets)


def is_for_training(inputs: np.ndarray) -> np.ndarray:
    """Which texts (B, T) are for training, (B,): half of all texts, by a hash."""
    factors = np.random.default_rng(0).integers(1, 2**63, inputs.shape[1], dtype=np.uint64) | np.uint64(1)
    x = (inputs.astype(np.uint64) * factors).sum(1, dtype=np.uint64)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    odd: np.ndarray = (x >> np.uint64(40)) % np.uint64(2) == 1
    return odd


class SyntheticData(Data):
    """Texts that are drawn anew in every epoch, by (seed, epoch, row); validation and test texts are fixed.

    Loss and accuracy are those of the answers. Half of all texts, by a hash, are for training and the others for
    evaluation. Validation has as many texts again that are ``longer`` times as long: ``accuracy_longer`` is theirs.
    """

    gives = "texts"
    varied_by: ClassVar[tuple[str, ...]] = ()  # names of the options that texts depend on

    def __init__(
        self,
        vocab_size: int,
        longer: int,
        size: int,
        eval_size: int,
        batch_size: int,
        num_workers: int,
        seed: int | None,
    ) -> None:
        """
        Args:
            vocab_size: number of tokens.
            longer: how many times as long the longer validation texts are; 1 for none.
            size: training texts of an epoch.
            eval_size: validation texts of each length, and as many test texts.
            batch_size: texts per batch and process.
            seed: of the training texts; the run's unless given.
        """
        super().__init__(batch_size, num_workers, seed)
        at_least(1, longer=longer, size=size, eval_size=eval_size)
        at_most(len(ALPHABET) + IDEOGRAPHS, vocab_size=vocab_size)
        self.vocab_size, self.longer, self.size, self.eval_size = vocab_size, longer, size, eval_size

    @abstractmethod
    def exercise(self, times: int) -> Exercise:
        """Texts ``times`` as long as those of training. Raises UsageError where there are none."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """The accuracy of a guess that knows what answers look like."""

    def share_of_the_most_frequent_answer(self) -> float:
        """Among texts drawn with a fixed seed."""
        exercise = self.exercise(1)
        targets = exercise.make(np.random.default_rng(0).random((FEWEST_TEXTS, exercise.numbers))).targets
        return float(np.bincount(targets[targets >= 0]).max() / (targets >= 0).sum())

    def load(self) -> None:
        """Make the splits. Raises UsageError where there are too few different texts, or too long ones."""
        exercises = [self.exercise(times) for times in sorted({1, self.longer})]
        if exercises[0].variety < math.log2(FEWEST_TEXTS):
            raise UsageError(
                f"{type(self).__name__} of these options has fewer than {FEWEST_TEXTS} different texts: too few to "
                "train with one half and to validate with the other. Choose longer texts or more tokens."
            )
        if exercises[-1].width > LONGEST:
            raise UsageError(
                f"the longest texts of {type(self).__name__} would have {exercises[-1].width} tokens: at most "
                f"{LONGEST} work. Choose shorter ones, or a smaller longer."
            )
        self.longest = exercises[-1].width
        self.datasets = {
            "train": DrawnTexts(exercises[:1], self.size, self.seed, True),
            "val": DrawnTexts(exercises, self.eval_size, EVALUATION_SEED, False),
            "test": DrawnTexts(exercises, self.eval_size, EVALUATION_SEED + 1, False),
        }

    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary, and the longest text's length."""
        self.ready()
        return {"vocab_size": self.vocab_size, "max_length": self.longest}

    def difficulty(self) -> list[int]:
        """The options that texts depend on, besides ``longer`` and ``eval_size``."""
        return [getattr(self, name) for name in self.varied_by]

    def fingerprint(self) -> str:
        """SHA-256 of the options that texts depend on."""
        options = [type(self).__name__, EVALUATION_SEED, self.difficulty(), self.longer, self.eval_size, self.size]
        return hashlib.sha256(json.dumps(options).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write a tokenizer with a character for each token: digits, letters, then ideographs."""
        ideographs = (chr(FIRST_IDEOGRAPH + number) for number in range(max(0, self.vocab_size - len(ALPHABET))))
        Tokenizer.chars([ALPHABET[: self.vocab_size] + "".join(ideographs)]).save(folder / "tokenizer.json")


def integers(uniform: np.ndarray, count: int) -> np.ndarray:
    """Uniform numbers as integers below ``count``, of the same shape."""
    return (uniform * count).astype(np.int64)


class MultiQueryRecall(SyntheticData):
    """k1 v1 … kN vN and then the same pairs in another order: after a key, the answer is its value (MQAR).

    Arora et al., "Zoology" (2023). Keys and values have a half of the vocabulary each. Chance: 1/N, a value of the
    text.
    """

    def __init__(
        self,
        pairs: int = 8,
        vocab_size: int = 64,
        longer: int = 2,
        size: int = 20000,
        eval_size: int = 250,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
        length: int | None = None,
        fill: bool = True,
    ) -> None:
        """
        Args:
            pairs: N, pairs of a key and a value in a text.
            vocab_size: number of tokens; half of them are keys, so it is at least twice as many as pairs.
            longer: how many times as many pairs the longer validation texts have; 1 for none.
            length: tokens of a text, an even number, as in Zoology: behind the pairs stand random tokens, and among
                them the keys again, sooner rather than later (gaps of power 0.01). None repeats pairs and nothing else.
            fill: False puts token 0, which is no key then, in the place of the random tokens.
        """
        super().__init__(vocab_size, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(1, pairs=pairs)
        if pairs * longer > vocab_size // 2:
            raise UsageError(
                f"pairs={pairs} with longer={longer} need {pairs * longer} different keys, and half of vocab_size="
                f"{vocab_size} are keys. Set data.vocab_size to {2 * pairs * longer} or more."
            )
        if length is not None and (length % 2 or length < 4 * pairs):
            raise UsageError(f"length is {length}: pairs={pairs} need an even number of at least {4 * pairs}.")
        if not fill and (length is None or pairs * longer >= vocab_size // 2):
            raise UsageError("fill=False leaves out what a length puts behind the pairs, and token 0 is no key then.")
        self.pairs, self.length, self.fill = pairs, length, fill

    @property
    def chance(self) -> float:
        """1/N."""
        return 1 / self.pairs

    def difficulty(self) -> list[int]:
        """Pairs, vocabulary, and the length if there is one."""
        return [self.pairs, self.vocab_size, *([] if self.length is None else [self.length]), *[0] * (not self.fill)]

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times`` as many pairs, 4 N - 1 tokens long, or ``times * length``."""
        keys, pairs = self.vocab_size // 2, times * self.pairs
        if self.length is not None:
            length = times * self.length
            make = partial(gapped_recall_texts, pairs=pairs, keys=keys, length=length, fill=self.fill)
            numbers = keys + pairs + length // 2 - pairs + length
            return Exercise(make, numbers, length, 2 * pairs * math.log2(keys))
        return Exercise(
            partial(recall_texts, pairs=pairs, keys=keys), keys + 2 * pairs, 4 * pairs - 1, 2 * pairs * math.log2(keys)
        )


def recall_texts(uniform: np.ndarray, pairs: int, keys: int) -> Texts:
    """Texts of MQAR from uniform (B, keys + 2 pairs)."""
    picked, values, turns = np.split(uniform, [keys, keys + pairs], 1)
    table = np.stack([smallest(picked, pairs), keys + integers(values, keys)], 2)  # (B, N, 2)
    again = np.take_along_axis(table, turns.argsort(1)[..., None], 1)
    tokens = np.concatenate([table, again], 1).reshape(len(uniform), -1)
    targets = np.full_like(tokens[:, 1:], IGNORE)
    targets[:, 2 * pairs :: 2] = tokens[:, 2 * pairs + 1 :: 2]
    return Texts(tokens[:, :-1], targets)


def smallest(numbers: np.ndarray, count: int) -> np.ndarray:
    """The places (B, ``count``) of the smallest numbers of each row of (B, N), as a sort of all would have them."""
    places = np.argpartition(numbers, count - 1, 1)[:, :count]
    return np.take_along_axis(places, np.take_along_axis(numbers, places, 1).argsort(1), 1)


def gapped_recall_texts(uniform: np.ndarray, pairs: int, keys: int, length: int, fill: bool = True) -> Texts:
    """Texts of Zoology's MQAR from uniform (B, keys + length / 2 + length)."""
    slots = length // 2 - pairs  # of two tokens, behind the pairs
    picked, value, turns, others = np.split(uniform, np.cumsum([keys, pairs, slots]), 1)
    first = int(not fill)  # what fills is no key
    key, values = first + smallest(picked[:, first:], pairs), keys + integers(value, keys)
    tokens, targets = integers(others, 2 * keys) * fill, np.full((len(uniform), length), IGNORE)
    tokens[:, : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = key, values
    # the largest u^(1 / w) are a sample without replacement by weights w (Efraimidis and Spirakis, 2006)
    weights = np.arange(1, slots + 1) ** (GAP_POWER - 1)
    places = 2 * pairs + 2 * (np.log(turns) / weights).argsort(1)[:, ::-1][:, :pairs]
    np.put_along_axis(tokens, places, key, 1)
    np.put_along_axis(targets, places, values, 1)
    return Texts(tokens, targets)


class Copying(SyntheticData):
    """Random letters, a separator, and the same letters, which are the answers; of half to all of ``length`` letters.

    Jelassi et al., "Repeat After Me" (2024). Chance: 1 / letters.
    """

    varied_by = ("length", "letters")

    def __init__(
        self,
        length: int = 16,
        letters: int = 16,
        longer: int = 2,
        size: int = 20000,
        eval_size: int = 250,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: letters of the longest training text; the shortest has half as many.
            letters: size of the alphabet.
            longer: how many times as many letters the longer validation texts have; 1 for none.
        """
        super().__init__(letters + 1, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(1, length=length)
        at_least(2, letters=letters)
        self.length, self.letters = length, letters

    @property
    def chance(self) -> float:
        """1 / letters."""
        return 1 / self.letters

    def exercise(self, times: int) -> Exercise:
        """Texts of at most, or if longer exactly, ``times * length`` letters; twice as many tokens."""
        most = times * self.length
        fewest = most if times > 1 else max(1, most // 2)
        make = partial(copying_texts, fewest=fewest, most=most, letters=self.letters)
        return Exercise(make, 1 + most, 2 * most, most * math.log2(self.letters))


def copying_texts(uniform: np.ndarray, fewest: int, most: int, letters: int) -> Texts:
    """Texts of copying from uniform (B, 1 + most)."""
    count = fewest + integers(uniform[:, :1], most - fewest + 1)
    text, place = integers(uniform[:, 1:], letters), np.arange(2 * most + 1)[None]
    first = np.take_along_axis(text, np.minimum(place, most - 1).repeat(len(text), 0), 1)
    second = np.take_along_axis(text, (place - count - 1).clip(0, most - 1), 1)
    tokens = np.where(place < count, first, np.where(place == count, letters, second))
    tokens = np.where(place <= 2 * count, tokens, 0)
    answered = (place[:, 1:] > count) & (place[:, 1:] <= 2 * count)
    return Texts(tokens[:, :-1], np.where(answered, tokens[:, 1:], IGNORE))


class Induction(SyntheticData):
    """Random letters among which a trigger stands at random places, always before the same letter: the answer.

    Olsson et al. (2022); with one repeat, the task of Gu and Dao, "Mamba" (2023). Chance: 1 / letters.
    """

    varied_by = ("length", "letters", "repeats")

    def __init__(
        self,
        length: int = 32,
        letters: int = 16,
        repeats: int = 3,
        longer: int = 2,
        size: int = 20000,
        eval_size: int = 250,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: tokens of a text, an even number.
            letters: size of the alphabet, without the trigger.
            repeats: how often the trigger stands in a text again, after the first time: the answers.
        """
        super().__init__(letters + 1, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(1, repeats=repeats)
        at_least(2, letters=letters)
        if length % 2 or length < 2 * repeats + 2:
            raise UsageError(
                f"length is {length}: with repeats={repeats} it must be an even number of at least {2 * repeats + 2}."
            )
        self.length, self.letters, self.repeats = length, letters, repeats

    @property
    def chance(self) -> float:
        """1 / letters."""
        return 1 / self.letters

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times * length`` tokens, less the last one, with as many triggers as ever."""
        length = times * self.length
        make = partial(induction_texts, length=length, letters=self.letters, repeats=self.repeats)
        numbers = length + length // 2 + 1
        return Exercise(make, numbers, length - 1, (length - 1 - 2 * self.repeats) * math.log2(self.letters))


def induction_texts(uniform: np.ndarray, length: int, letters: int, repeats: int) -> Texts:
    """Texts of induction from uniform (B, length + length / 2 + 1)."""
    text, turns, answer = np.split(uniform, [length, length + length // 2], 1)
    tokens, answer = integers(text, letters), integers(answer, letters)
    places = 2 * np.sort(turns.argsort(1)[:, : repeats + 1], 1)  # triggers stand on even places: none follows another
    np.put_along_axis(tokens, places, letters, 1)
    np.put_along_axis(tokens, places + 1, answer, 1)
    targets = np.full_like(tokens, IGNORE)
    np.put_along_axis(targets, places[:, 1:], answer, 1)
    return Texts(tokens[:, :-1], targets[:, :-1])


class Parity(SyntheticData):
    """Random bits; the answer at each is whether there were an odd number of ones so far. Chance: 1/2.

    Running parity, after Hahn (2020). In longer validation texts only the answers beyond the length of training count.
    """

    varied_by = ("length",)

    def __init__(
        self,
        length: int = 16,
        longer: int = 2,
        size: int = 20000,
        eval_size: int = 250,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: bits of a text.
        """
        super().__init__(2, longer, size, eval_size, batch_size, num_workers, seed)
        at_least(1, length=length)
        self.length = length

    @property
    def chance(self) -> float:
        """1/2."""
        return 0.5

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times * length`` bits."""
        length = times * self.length
        first = 0 if times == 1 else self.length
        return Exercise(partial(parity_texts, first=first), length, length, length)


def parity_texts(uniform: np.ndarray, first: int) -> Texts:
    """Texts of parity from uniform (B, T); answers from the bit ``first`` on."""
    bits = integers(uniform, 2)
    targets = bits.cumsum(1) % 2
    targets[:, :first] = IGNORE
    return Texts(bits, targets)


class ModularArithmetic(SyntheticData):
    """Sums, differences and products of digits without brackets, then =, where the answer is the value mod ``modulus``.

    Products come first, as in Grazzi et al. (2024). A text has 2 to ``operands`` digits; a longer validation text has
    more than any text of training. Chance is the share of the most frequent answer, which is 0.
    """

    varied_by = ("operands", "modulus")

    def __init__(
        self,
        operands: int = 12,
        modulus: int = 5,
        longer: int = 2,
        size: int = 20000,
        eval_size: int = 250,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            operands: the most digits of a text of training.
            modulus: number of different digits, and of answers.
            longer: how many times as many digits the longer validation texts have at most; 1 for none.
        """
        at_least(2, operands=operands, modulus=modulus)
        super().__init__(modulus + 4, longer, size, eval_size, batch_size, num_workers, seed)
        self.operands, self.modulus = operands, modulus

    @property
    def chance(self) -> float:
        """The share of the most frequent answer."""
        return self.share_of_the_most_frequent_answer()

    def exercise(self, times: int) -> Exercise:
        """Texts of at most ``times * operands`` digits."""
        most, fewest = times * self.operands, 2 if times == 1 else self.operands + 1
        variety = self.operands * math.log2(self.modulus) + (self.operands - 1) * math.log2(3)
        make = partial(arithmetic_texts, fewest=fewest, most=most, modulus=self.modulus)
        return Exercise(make, 2 * most, 2 * most, variety)


def arithmetic_texts(uniform: np.ndarray, fewest: int, most: int, modulus: int) -> Texts:
    """Texts of modular arithmetic from uniform (B, 2 most): digits, operations + - * and the number of digits."""
    digits, operations = integers(uniform[:, :most], modulus), integers(uniform[:, most:-1], 3)
    counts = fewest + integers(uniform[:, -1], most + 1 - fewest)
    tokens = np.full((len(uniform), 2 * most), modulus + 3)
    tokens[:, ::2], tokens[:, 1:-1:2] = digits, modulus + operations
    tokens[np.arange(2 * most) >= 2 * counts[:, None] - 1] = modulus + 3  # =, and padding behind it
    total, product, answers = np.zeros_like(counts), digits[:, 0], np.zeros_like(counts)
    for place in range(1, most):
        digit, operation = digits[:, place], operations[:, place - 1]
        total = np.where(operation == 2, total, total + product) % modulus
        product = np.choose(operation, [digit, -digit, product * digit]) % modulus
        answers = np.where(counts == place + 1, (total + product) % modulus, answers)
    targets = np.full_like(tokens, IGNORE)
    np.put_along_axis(targets, 2 * counts[:, None] - 1, answers[:, None], 1)
    return Texts(tokens, targets)


class ModularAddition(SyntheticData):
    """a b =, where the answer is a + b mod ``modulus``: half of all pairs train, as in grokking (Power et al., 2022).

    Chance: 1 / modulus.
    """

    varied_by = ("modulus",)

    def __init__(
        self,
        modulus: int = 97,
        size: int = 20000,
        eval_size: int = 250,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            modulus: number of different summands, and of answers.
        """
        at_least(2, modulus=modulus)
        super().__init__(modulus + 1, 1, size, eval_size, batch_size, num_workers, seed)
        self.modulus = modulus

    @property
    def chance(self) -> float:
        """1 / modulus."""
        return 1 / self.modulus

    def exercise(self, times: int) -> Exercise:
        """Texts of three tokens."""
        return Exercise(partial(addition_texts, modulus=self.modulus), 2, 3, 2 * math.log2(self.modulus))


def addition_texts(uniform: np.ndarray, modulus: int) -> Texts:
    """Texts of modular addition from uniform (B, 2)."""
    tokens = np.full((len(uniform), 3), modulus)
    tokens[:, :2] = integers(uniform, modulus)
    targets = np.full_like(tokens, IGNORE)
    targets[:, 2] = tokens[:, :2].sum(1) % modulus
    return Texts(tokens, targets)
