"""How series look on a chart, and where their names stand without covering each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.compare.axes import Frame, spread
from zoo.compare.drawing import DASHES, SERIES, SHAPES, Point, width_of
from zoo.study.lettering import shortened

WIDTH, LONGEST = 720, 30
Look = tuple[str, str, tuple[float, ...]]  # colour, shape, dashes
Box = tuple[float, float, float, float]


def look(index: int) -> Look:
    """Colour, shape and dashes of a series: black first, then six colours, and after them the same, dashed."""
    return f"c{index % SERIES}", SHAPES[(index + index // SERIES) % len(SHAPES)], DASHES[index // SERIES % len(DASHES)]


def clipped(name: str, longest: int = LONGEST) -> str:
    """A name without its middle where it is too long: variants differ at either end."""
    whole = shortened(name, len(name) * 4)
    return whole if len(whole) <= longest else f"{whole[: longest // 2]}…{whole[len(whole) - (longest - 1) // 2 :]}"


def end_labels(frame: Frame, ends: Sequence[tuple[str, Look, Point]]) -> None:
    """The name of each line at its end on the right, moved apart, with a hairline to where it belongs."""
    top, bottom = frame.top, frame.bottom
    wanted = [min(max(frame.down(y), top), bottom) if math.isfinite(y) else top for _, _, (_, y) in ends]
    heights = spread(wanted, 17, top, bottom)
    for (name, (colour, shape, _), (x, y)), own, height in zip(ends, wanted, heights, strict=True):
        if math.isfinite(y) and frame.across(x) > frame.right - 1:  # a line that ends before has no tail to here
            frame.drawing.line([(frame.right + 2, own), (frame.right + 8, height)], colour, 0.8, opacity=0.6)
        frame.drawing.mark(frame.right + 13, height, colour, shape, 4)
        frame.drawing.text(name, frame.right + 22, height, 12.5)


def beside(frame: Frame, words: str, place: Point, boxes: list[Box]) -> None:
    """A name beside a mark, on the first side where it covers no other and stays inside; ``boxes`` are taken."""
    x, y = place
    wide = width_of(words, 12.5)
    sides = [(x + 11, y), (x - 11 - wide, y), (x - wide / 2, y - 17), (x - wide / 2, y + 17)]
    sides += [(x + 9, y - 15), (x + 9, y + 15), (x - 9 - wide, y - 15), (x - 9 - wide, y + 15)]
    tried = [(left, middle - 8, left + wide, middle + 8) for left, middle in sides]

    def free(box: Box) -> bool:
        inside = box[0] >= frame.left and box[2] <= frame.right and box[1] >= frame.top and box[3] <= frame.bottom
        return inside and all(box[2] < b[0] or b[2] < box[0] or box[3] < b[1] or b[3] < box[1] for b in boxes)

    box = next((each for each in tried if free(each)), tried[0])
    boxes.append(box)
    frame.drawing.text(words, box[0], (box[1] + box[3]) / 2, 12.5, halo=True)
