"""Sums of many digits, and products in a group of permutations."""

from __future__ import annotations

import math
from functools import partial
from itertools import permutations

import numpy as np

from zoo.errors import UsageError
from zoo.value_checks import at_least
from zoo_exercises.synthetic import IGNORE, Exercise, SyntheticData, Texts, integers

PLUS, EQUALS = 10, 11
MOST_PERMUTED = 6  # elements: 720 tokens


class Addition(SyntheticData):
    """Two numbers of ``digits`` digits, a + b =, where the answers are the digits of their sum, the last one first.

    Digits stand in reverse everywhere, so that a carry goes from left to right (Lee et al., 2023). A share ``short`` of
    the texts has numbers of fewer digits, any count as often, with zeros behind, and a share ``carry`` has digits that
    sum to 9 with a carry from the first one on, until a place that is drawn. Chance: the share of 0.
    """

    def __init__(
        self,
        digits: int = 10,
        short: float = 0.5,
        carry: float = 0.2,
        size: int = 20000,
        eval_size: int = 1000,
        batch_size: int = 256,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            digits: of the longest numbers.
            short: share of the texts whose numbers may have fewer digits.
            carry: share of the texts with a chain of carries.
        """
        super().__init__(12, 1, size, eval_size, batch_size, num_workers, seed)
        at_least(1, digits=digits)
        if min(short, carry) < 0 or short + carry > 1:
            raise UsageError(f"short={short} and carry={carry} are shares, of at most 1 together.")
        self.digits, self.short, self.carry = digits, short, carry

    @property
    def chance(self) -> float:
        """The share of 0, the most frequent answer."""
        return self.share_of_the_most_frequent_answer()

    def difficulty(self) -> list[int]:
        """Digits, and the shares in millionths."""
        return [self.digits, round(1e6 * self.short), round(1e6 * self.carry)]

    def exercise(self, times: int) -> Exercise:
        """Texts of 3 digits + 2 tokens."""
        make = partial(sum_texts, digits=self.digits, short=self.short, carry=self.carry)
        return Exercise(make, 2 * self.digits + 2, 3 * self.digits + 2, 2 * self.digits * math.log2(10))


def sum_texts(uniform: np.ndarray, digits: int, short: float, carry: float) -> Texts:
    """Texts of addition from uniform (B, 2 digits + 2)."""
    kind, count = uniform[:, -2], 1 + integers(uniform[:, -1:], digits)
    a, b = integers(uniform[:, :digits], 10), integers(uniform[:, digits:-2], 10)
    inside = np.arange(digits) < count
    a, b = (np.where((kind < short)[:, None] & ~inside, 0, number) for number in (a, b))
    chained = (kind >= 1 - carry)[:, None] & inside
    b = np.where(chained, 9 - a, b)
    b[:, 0] = np.where(chained[:, 0], np.minimum(9, 10 - a[:, 0]), b[:, 0])
    return Texts(*sum_tokens(a, b))


def sum_tokens(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reversed digits a and b (B, N) to inputs and targets (B, 3 N + 2) of the text a + b = s."""
    total, carried = np.zeros((len(a), a.shape[1] + 1), np.int64), np.zeros(len(a), np.int64)
    for place in range(a.shape[1]):
        carried, total[:, place] = np.divmod(a[:, place] + b[:, place] + carried, 10)
    total[:, -1] = carried
    mark = np.full((len(a), 1), PLUS)
    tokens = np.concatenate([a, mark, b, mark + EQUALS - PLUS, total], 1)
    targets = tokens[:, 1:].copy()
    targets[:, : 2 * a.shape[1] + 1] = IGNORE
    return tokens[:, :-1], targets


class WordProblem(SyntheticData):
    """Permutations of ``elements`` things; the answer at each is the product of all so far: S5's word problem.

    State tracking that no circuit of constant depth solves for 5 elements or more (Barrington, 1989; Merrill et al.,
    2024). In longer validation texts only the answers beyond the length of training count. Chance: 1 / elements!.
    """

    varied_by = ("length", "elements")

    def __init__(
        self,
        length: int = 16,
        elements: int = 5,
        longer: int = 2,
        size: int = 20000,
        eval_size: int = 250,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            length: permutations of a text.
            elements: things that are permuted, 2 to 6.
        """
        if not 2 <= elements <= MOST_PERMUTED:
            raise UsageError(f"elements is {elements}: 2 to {MOST_PERMUTED} work, of which each order is a token.")
        super().__init__(math.factorial(elements), longer, size, eval_size, batch_size, num_workers, seed)
        at_least(1, length=length)
        self.length, self.elements = length, elements

    @property
    def chance(self) -> float:
        """1 / elements!."""
        return 1 / self.vocab_size

    def exercise(self, times: int) -> Exercise:
        """Texts of ``times * length`` permutations."""
        length = times * self.length
        make = partial(product_texts, elements=self.elements, start=0 if times == 1 else self.length)
        return Exercise(make, length, length, length * math.log2(self.vocab_size))


def product_texts(uniform: np.ndarray, elements: int, start: int) -> Texts:
    """Texts of the word problem from uniform (B, T); answers from the permutation ``start`` on."""
    group = np.array(list(permutations(range(elements))))  # in the order of their numbers
    powers = elements ** np.arange(elements)
    numbers = np.zeros(elements**elements, np.int64)
    numbers[group @ powers] = np.arange(len(group))
    tokens = integers(uniform, len(group))
    targets, product = np.full_like(tokens, IGNORE), np.tile(np.arange(elements), (len(tokens), 1))
    for place in range(tokens.shape[1]):
        product = np.take_along_axis(group[tokens[:, place]], product, 1)  # first the earlier ones, then this one
        if place >= start:
            targets[:, place] = numbers[product @ powers]
    return Texts(tokens, targets)
