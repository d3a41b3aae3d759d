"""AdderBoard's test of a language model that was trained on ``Addition``: sums by greedy decoding."""

import random
from pathlib import Path

import numpy as np
import torch

from zoo.inference.load import load

SEED, PAIRS, MOST = 2025, 10_000, 9_999_999_999
EDGES = (
    (0, 0), (0, 1), (MOST, 0), (MOST, 1), (MOST, MOST), (5_000_000_000, 5_000_000_000), (1_111_111_111, 8_888_888_889),
    (1_234_567_890, 9_876_543_210), (MOST, MOST), (1, MOST),
)  # fmt: skip
DIGITS = len(str(MOST))


def pairs_to_add() -> list[tuple[int, int]]:
    """The edge cases, and pairs drawn by Python's generator, a before b."""
    draw = random.Random(SEED)
    return [*EDGES, *((draw.randint(0, MOST), draw.randint(0, MOST)) for _ in range(PAIRS))]


def reversed_digits(numbers: list[int]) -> np.ndarray:
    """The digits of numbers, the last one first, (N, DIGITS)."""
    return np.array([[int(digit) for digit in f"{number:0{DIGITS}}"[::-1]] for number in numbers])


@torch.no_grad()
def exact_sums(run: Path) -> float:
    """Per cent of the sums that the run's model writes right, the likeliest token at each step."""
    from zoo_exercises.algebra import EQUALS, PLUS

    pairs, net = pairs_to_add(), load(run).net.eval()
    a, b = (torch.tensor(reversed_digits(list(numbers))) for numbers in zip(*pairs, strict=True))
    marks = [torch.full((len(pairs), 1), mark) for mark in (PLUS, EQUALS)]
    state = net.begin(3 * DIGITS + 3)
    tokens, digits = torch.cat([a, marks[0], b, marks[1]], 1), []
    for _ in range(DIGITS + 1):
        tokens = state.step(tokens).argmax(-1, keepdim=True)
        digits.append(tokens)
    sums = (int("".join(map(str, row[::-1]))) if max(row) < PLUS else -1 for row in torch.cat(digits, 1).tolist())
    return 100 * sum(x + y == total for (x, y), total in zip(pairs, sums, strict=True)) / len(pairs)
