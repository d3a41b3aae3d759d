"""A frame with axes: numbers to places on a drawing, ticks at round numbers, lines cut at the frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zoo.compare.drawing import Drawing, Point
from zoo.compare.numbers import MINUS, PREFIXES

Range = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """A rectangle of a drawing in which ``x`` and ``y``, given as lowest and highest number, are drawn."""

    drawing: Drawing
    left: float
    top: float
    right: float
    bottom: float
    x: Range
    y: Range
    log: bool = False  # of the horizontal axis

    def across(self, value: float) -> float:
        """The place of a number on the horizontal axis."""
        low, high = self.x
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.left + (self.right - self.left) * (value - low) / ((high - low) or 1.0)

    def down(self, value: float) -> float:
        """The place of a number on the vertical axis."""
        low, high = self.y
        return self.bottom - (self.bottom - self.top) * (value - low) / ((high - low) or 1.0)

    def point(self, x: float, y: float) -> Point:
        """The place of a pair of numbers."""
        return self.across(x), self.down(y)

    def horizontal(
        self,
        label: str,
        ticks: Sequence[float] | None = None,
        told: Callable[[Sequence[float]], Sequence[str]] | None = None,
        lines: bool = False,
    ) -> None:
        """Ticks and label below the frame; ``lines`` draws them through it."""
        ticks = round_numbers(*self.x, 6) if ticks is None else ticks
        for tick, words in zip(ticks, (told or plain)(ticks), strict=True):
            x = self.across(tick)
            self.drawing.line([(x, self.top if lines else self.bottom), (x, self.bottom + 4)], "frame")
            self.drawing.text(words, x, self.bottom + 14, 11.5, "grey", "middle")
        self.drawing.line([(self.left, self.bottom), (self.right, self.bottom)], "grey")
        self.drawing.text(label, (self.left + self.right) / 2, self.bottom + 34, 12.5, "ink", "middle")

    def vertical(self, label: str, room: float = 44) -> None:
        """Ticks, hairlines and a turned label ``room`` to the left of the frame."""
        ticks = round_numbers(*self.y, 6)
        told = plain(ticks)
        for tick, words in zip(ticks, told, strict=True):
            y = self.down(tick)
            self.drawing.line([(self.left, y), (self.right, y)], "frame")
            self.drawing.text(words, self.left - 6, y, 11.5, "grey", "end")
        self.drawing.text(label, self.left - room, (self.top + self.bottom) / 2, 12.5, "ink", "middle", up=True)

    def curve(
        self, points: Sequence[Point], colour: str, width: float, opacity: float = 1.0, dash: Sequence[float] = ()
    ):
        """A line through numbers, cut where it leaves the frame and broken where one is not finite."""
        for piece in broken(points):
            for inside in cut([self.point(x, y) for x, y in piece], self.top, self.bottom):
                self.drawing.line(inside, colour, width, dash, opacity)

    def band(self, points: Sequence[Point], sds: Sequence[float], colour: str, opacity: float = 0.16) -> None:
        """The area of one standard deviation around a line, held inside the frame."""
        both = [(x, y, sd) for (x, y), sd in zip(points, sds, strict=True) if math.isfinite(y + sd)]
        lower, upper = (_fine([self.point(x, y + side * sd) for x, y, sd in both]) for side in (-1, 1))
        edge = [(x, min(max(y, self.top), self.bottom)) for x, y in (*lower, *reversed(upper))]
        self.drawing.area(edge, colour, opacity)


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two numbers, about so many."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def plain(ticks: Sequence[float], sign: bool = False) -> list[str]:
    """Ticks with as many places as their steps have, in thousands, millions and so on where they are large."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    power, prefix = next(((p, word) for p, word in PREFIXES if largest >= 10**p and largest >= 10_000), (0, ""))
    steps = [(b - a) / 10**power for a, b in pairwise(ticks)]
    digits = max(0, min(8, -math.floor(math.log10(min(steps)) + 1e-9))) if steps else 3
    told = []
    for tick in ticks:
        text = f"{tick / 10**power:{'+' if sign else ''}.{digits}f}".replace("-", MINUS)
        told.append(f"{text}{prefix}" if any(digit in text for digit in "123456789") else "0")
    return told


def signed(ticks: Sequence[float]) -> list[str]:
    """Ticks of differences, with their signs."""
    return plain(ticks, sign=True)


def padded(values: Sequence[float], share: float = 0.06) -> Range:
    """The range of the finite values with some room on both sides."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = share * (high - low) or abs(high) * 0.02 or 1.0
    return low - room, high + room


def broken(points: Sequence[Point]) -> list[list[Point]]:
    """The pieces of a line between points that are not finite."""
    pieces: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            pieces[-1].append(point)
        elif pieces[-1]:
            pieces.append([])
    return pieces


def cut(points: Sequence[Point], top: float, bottom: float) -> list[list[Point]]:
    """The pieces of a line that lie between two heights."""
    pieces: list[list[Point]] = []
    for (x0, y0), (x1, y1) in pairwise(points):
        shares = [0.0, 1.0]
        if y0 != y1:
            ends = sorted(((top - y0) / (y1 - y0), (bottom - y0) / (y1 - y0)))
            shares = [max(0.0, ends[0]), min(1.0, ends[1])]
        elif not top <= y0 <= bottom:
            continue
        if shares[0] >= shares[1]:
            continue
        start = (x0, y0) if shares[0] == 0 else (x0 + (x1 - x0) * shares[0], y0 + (y1 - y0) * shares[0])
        end = (x1, y1) if shares[1] == 1 else (x0 + (x1 - x0) * shares[1], y0 + (y1 - y0) * shares[1])
        if pieces and pieces[-1][-1] == start:
            pieces[-1].append(end)
        else:
            pieces.append([start, end])
    return pieces


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places moved as little as it takes to be ``apart`` and between two bounds, so that labels do not collide."""
    apart = min(apart, (high - low) / max(1, len(places) - 1))
    groups: list[tuple[float, list[int]]] = []  # the middle of labels that touch, and which they are
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        middle, group = places[index], [index]
        while groups and middle - groups[-1][0] < apart * (len(group) + len(groups[-1][1])) / 2 - 1e-9:
            other, others = groups.pop()
            middle = (middle * len(group) + other * len(others)) / (len(group) + len(others))
            group = others + group
        groups.append((middle, group))
    order = [index for _, group in groups for index in group]
    wanted = [middle + apart * (rank - (len(group) - 1) / 2) for middle, group in groups for rank in range(len(group))]
    for rank, place in enumerate(wanted):  # down from the upper bound, then up from the lower one
        wanted[rank] = max(place, low if rank == 0 else wanted[rank - 1] + apart)
    for rank in reversed(range(len(wanted))):
        wanted[rank] = min(wanted[rank], high if rank == len(wanted) - 1 else wanted[rank + 1] - apart)
    return [wanted[order.index(index)] for index in range(len(places))]


def _fine(points: Sequence[Point], parts: int = 12) -> list[Point]:
    """A line with more points, so that its shape stays when each is held inside a frame."""
    shares = [step / parts for step in range(parts)]
    between = [
        (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share) for (x0, y0), (x1, y1) in pairwise(points) for share in shares
    ]
    return [*between, *points[-1:]]
