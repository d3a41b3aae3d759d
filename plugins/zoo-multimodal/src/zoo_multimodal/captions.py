"""What can be drawn, and how it is said: scenes of coloured shapes, one caption each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.errors import UsageError

SIZES = ("small", "large")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "cross", "ring")
PLACES = ("top left", "top right", "bottom left", "bottom right")
PAD, BEGIN, END = 0, 1, 2
MARKS = ("<pad>", "<begin>", "<end>")
WORDS = (*MARKS, "a", "at", "the", "and", *SIZES, *COLOURS, *SHAPES, "top", "bottom", "left", "right")
NUMBERS = {word: number for number, word in enumerate(WORDS)}


class Thing(NamedTuple):
    """One shape of a scene, by numbers into the tuples above."""

    size: int
    colour: int
    shape: int
    place: int

    @property
    def kind(self) -> int:
        """The number of its colour and shape together."""
        return self.colour * len(SHAPES) + self.shape

    def __str__(self) -> str:
        return f"a {SIZES[self.size]} {COLOURS[self.colour]} {SHAPES[self.shape]} at the {PLACES[self.place]}"


Scene = tuple[Thing, ...]
KINDS = tuple(f"{colour} {shape}" for colour, shape in product(COLOURS, SHAPES))


def held_out(thing: Thing) -> bool:
    """Whether its kind is never drawn in training: one colour of each shape."""
    return thing.colour == thing.shape


def caption(scene: Scene) -> str:
    """The one caption of a scene: its things from the top left to the bottom right."""
    return " and ".join(str(thing) for thing in sorted(scene, key=lambda thing: thing.place))


def wordings(kind: int) -> list[str]:
    """Every caption of one thing of a kind, whatever its size and place."""
    colour, shape = divmod(kind, len(SHAPES))
    return [str(Thing(size, colour, shape, place)) for size, place in product(range(len(SIZES)), range(len(PLACES)))]


def longest(things: int) -> int:
    """The tokens of a caption of so many things, with its begin and end."""
    return 9 * things + 1


def encode(captions: Iterable[str], length: int) -> Tensor:
    """(B, length) long: a begin, the words, an end, padding on the right. Raises UsageError for what has no number."""
    rows = []
    for text in captions:
        words = text.lower().split()
        unknown = [word for word in words if word not in NUMBERS or word in MARKS]
        if unknown:
            raise UsageError(f"{unknown[0]!r} in {text!r} is no word of captions: {', '.join(WORDS[len(MARKS) :])}")
        if len(words) + 2 > length:
            raise UsageError(f"{text!r} has {len(words)} words, and a caption at most {length - 2}.")
        rows.append([BEGIN, *(NUMBERS[word] for word in words), END] + [PAD] * (length - len(words) - 2))
    return torch.tensor(rows, dtype=torch.long).view(len(rows), length)


def decode(tokens: Sequence[int]) -> str:
    """The words of a row, up to its end."""
    words = []
    for token in tokens:
        if token == END:
            break
        if token not in (PAD, BEGIN):
            words.append(WORDS[token])
    return " ".join(words)


class Words:
    """What a picture of attention writes beside the tokens of a caption."""

    tokens = WORDS

    def decode(self, ids: Sequence[int]) -> str:
        """The words, marks included."""
        return " ".join(WORDS[number] for number in ids)
