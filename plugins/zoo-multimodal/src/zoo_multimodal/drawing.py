"""Draw a scene: one shape per corner, on a grey ground, with noise."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw

from zoo_multimodal.captions import COLOURS, PLACES, SHAPES, SIZES, Scene, Thing, held_out

FINE = 4  # drawn so many times larger than kept: smooth edges
RADII = {"small": 0.10, "large": 0.20}  # in sides of the image
PAINT = {
    "red": (214, 40, 40), "green": (44, 160, 60), "blue": (40, 80, 220), "yellow": (245, 215, 40),
    "purple": (140, 50, 175), "orange": (250, 140, 20),
}  # fmt: skip
NOISE = 6.0  # standard deviation, of 255


def random_scene(things: int, is_held_out: bool, draw: np.random.Generator) -> Scene:
    """One to ``things`` of them in different corners, all of held-out kinds or none."""
    places = draw.permutation(len(PLACES))[: draw.integers(1, things + 1)]
    return tuple(random_thing(int(place), is_held_out, draw) for place in sorted(places))


def random_thing(place: int, is_held_out: bool, draw: np.random.Generator) -> Thing:
    """A random thing at a place, of a kind that is held out of training or not."""
    while True:
        size, colour, shape = (int(draw.integers(len(names))) for names in (SIZES, COLOURS, SHAPES))
        thing = Thing(size, colour, shape, place)
        if held_out(thing) == is_held_out:
            return thing


def picture(scene: Scene, side: int, draw: np.random.Generator) -> np.ndarray:
    """uint8 (3, side, side): places, sizes, colours and brightness of the ground vary a little."""
    ground = int(draw.integers(215, 246))
    canvas = Image.new("RGB", (side * FINE, side * FINE), (ground,) * 3)
    pen = ImageDraw.Draw(canvas)
    for thing in scene:
        row, column = divmod(thing.place, 2)
        x, y = (side * FINE * (0.27 + 0.46 * at + draw.uniform(-0.04, 0.04)) for at in (column, row))
        radius = side * FINE * RADII[SIZES[thing.size]] * draw.uniform(0.92, 1.08)
        colour = np.clip(np.array(PAINT[COLOURS[thing.colour]]) + draw.integers(-12, 13, 3), 0, 255)
        stroke(pen, SHAPES[thing.shape], (x, y), radius, (int(colour[0]), int(colour[1]), int(colour[2])), ground)
    pixels = np.asarray(canvas.reduce(FINE), np.float64) + draw.normal(0, NOISE, (side, side, 3))
    return pixels.clip(0, 255).astype(np.uint8).transpose(2, 0, 1)


def stroke(
    pen: ImageDraw.ImageDraw,
    shape: str,
    centre: tuple[float, float],
    radius: float,
    ink: tuple[int, int, int],
    ground: int,
) -> None:
    """One shape that fits into a circle of this radius."""
    x, y = centre

    def box(r: float, s: float | None = None) -> tuple[float, float, float, float]:
        s = r if s is None else s
        return x - r, y - s, x + r, y + s

    if shape == "circle":
        pen.ellipse(box(radius), ink)
    elif shape == "ring":
        pen.ellipse(box(radius), ink)
        pen.ellipse(box(radius * 0.5), (ground,) * 3)
    elif shape == "square":
        pen.rectangle(box(radius * 0.86), ink)
    elif shape == "triangle":
        angles = (-math.pi / 2 + turn * 2 * math.pi / 3 for turn in range(3))
        pen.polygon([(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles], ink)
    else:
        pen.rectangle(box(radius, radius * 0.3), ink)
        pen.rectangle(box(radius * 0.3, radius), ink)
