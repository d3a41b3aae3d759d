"""Draw a scene: shapes of several kinds, sizes, turns and colours on a shaded ground, that may cover each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

KINDS = ("circle", "ring", "square", "triangle", "star", "cross")
FINE = 4  # drawn so many times larger than kept: smooth edges
RADII = 0.09, 0.22  # of the circle around a shape, in sides of the image
MIN_VISIBLE = 0.6  # of its own area, at least, what a shape shows behind others
CONTRAST = 90.0  # at least, between a shape and its ground anywhere: sum of differences over three channels of 255
NOISE = 6.0  # standard deviation, of 255
HOLE = 0.5  # of a ring, in its radius
TRIES = 30
Point = tuple[float, float]


@dataclass(frozen=True)
class Thing:
    """A shape: its kind, the circle around it in pixels, and its turn in radians."""

    kind: int
    x: float
    y: float
    radius: float
    turn: float

    def outline(self) -> list[Point]:
        """Its corners; those of the circle around it for what is round."""
        polar = [(self.turn + at, self.radius * far) for at, far in CORNERS[KINDS[self.kind]]]
        return [(self.x + far * math.cos(at), self.y + far * math.sin(at)) for at, far in polar]

    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of all of it, covered or not."""
        if KINDS[self.kind] in ROUND:
            return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius
        across, down = zip(*self.outline(), strict=True)
        return min(across), min(down), max(across), max(down)

    def draw(self, pen: ImageDraw.ImageDraw, ink: tuple[int, int, int] | int, scale: float) -> None:
        """Fill it, on a canvas so many times larger than the image."""
        if KINDS[self.kind] in ROUND:
            edges = [edge * scale for edge in self.box()]
            if KINDS[self.kind] == "ring":
                pen.ellipse(edges, outline=ink, width=max(1, round(self.radius * (1 - HOLE) * scale)))
            else:
                pen.ellipse(edges, ink)
        else:
            pen.polygon([(x * scale, y * scale) for x, y in self.outline()], ink)


def spikes(count: int, inner: float) -> list[tuple[float, float]]:
    """Angles and distances of a star's corners."""
    return [(math.pi * n / count, inner if n % 2 else 1.0) for n in range(2 * count)]


def plus(half: float) -> list[tuple[float, float]]:
    """Angles and distances of the corners of a cross whose arms are twice ``half`` wide."""
    reach = math.sqrt(1 - half**2)  # the tips lie on the circle
    quarter = [(math.atan2(-half, reach), 1.0), (math.atan2(half, reach), 1.0), (math.pi / 4, half * math.sqrt(2))]
    return [(at + turn * math.pi / 2, far) for turn in range(4) for at, far in quarter]


ROUND = ("circle", "ring")
CORNERS = {
    "square": [(math.pi / 4 + math.pi / 2 * n, 1.0) for n in range(4)],
    "triangle": [(2 * math.pi / 3 * n, 1.0) for n in range(3)],
    "star": spikes(5, 0.45),
    "cross": plus(0.3),
}


def random_things(most: int, side: int, draw: np.random.Generator) -> list[Thing]:
    """One to ``most`` shapes, the later ones in front, each of which shows a part of MIN_VISIBLE at least."""
    things: list[Thing] = []
    for _ in range(draw.integers(1, most + 1)):
        for _ in range(TRIES):
            radius = side * draw.uniform(*RADII)
            x, y = draw.uniform(radius, side - radius, 2)
            new = Thing(int(draw.integers(len(KINDS))), float(x), float(y), radius, draw.uniform(0, 2 * math.pi))
            if all(share >= MIN_VISIBLE for share in visible_shares([*things, new], side)):
                things.append(new)
                break
    return things


def visible_shares(things: list[Thing], side: int) -> list[float]:
    """Which share of each shape's pixels no later one covers."""
    page, alone = Image.new("L", (2 * side, 2 * side)), []
    for number, thing in enumerate(things, 1):
        own = Image.new("L", page.size)
        thing.draw(ImageDraw.Draw(own), 1, 2)
        alone.append(int(np.asarray(own).sum()))
        thing.draw(ImageDraw.Draw(page), number, 2)
    counts = np.bincount(np.asarray(page).ravel(), minlength=len(things) + 1)
    return [int(counts[number]) / max(1, area) for number, area in enumerate(alone, 1)]


def picture(things: list[Thing], side: int, draw: np.random.Generator) -> np.ndarray:
    """uint8 (side, side, 3): a ground that is shaded from one colour to another, shapes of one colour each, noise."""
    ground = draw.integers(40, 216, 3)
    ends = ground + draw.integers(-40, 41, (2, 3))
    slope = np.add.outer(*(np.linspace(0, 1, side) * share for share in draw.dirichlet((1, 1))))
    shade = ends[0] + slope[..., None] * (ends[1] - ends[0])
    ramp = np.linspace(ends[0], ends[1], 9)
    canvas = Image.fromarray(shade.clip(0, 255).astype(np.uint8)).resize((side * FINE, side * FINE))
    pen = ImageDraw.Draw(canvas)
    for thing in things:
        ink = ground
        while np.abs(ink - ramp).sum(1).min() < CONTRAST:
            ink = draw.integers(0, 256, 3)
        thing.draw(pen, (int(ink[0]), int(ink[1]), int(ink[2])), FINE)
    pixels = np.asarray(canvas.reduce(FINE), np.float64) + draw.normal(0, NOISE, (side, side, 3))
    return pixels.clip(0, 255).astype(np.uint8)
