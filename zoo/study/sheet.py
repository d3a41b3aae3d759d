"""A white picture that grows to what is drawn on it."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from zoo.study.lettering import text
from zoo.study.ramp import INK, PAPER

MARGIN, GAP = 28, 12
Colour = tuple[int, int, int]
Box = tuple[int, int, int, int]


class Sheet:
    """Collects marks and outlines, and then makes a picture of them."""

    def __init__(self) -> None:
        self.marks: list[tuple[Image.Image, int, int, Colour]] = []
        self.boxes: list[tuple[Box, Colour, int]] = []

    def write(self, words: str, x: int, y: int, size: int = 26, ink: Colour = INK, up: bool = False):
        """Text with its upper left corner at (x, y); ``up`` turns it to read from below."""
        mask = text(words, size)
        self.marks.append((mask.transpose(Image.Transpose.ROTATE_90) if up else mask, x, y, ink))

    def put(self, pixels: np.ndarray, x: int, y: int) -> None:
        """uint8 (H, W, 3)."""
        self.marks.append((Image.fromarray(pixels), x, y, INK))

    def outline(self, box: Box, ink: Colour, width: int) -> None:
        """A frame just inside left, top, right, bottom."""
        self.boxes.append((box, ink, width))

    def image(self) -> Image.Image:
        """All of it, with a margin on each side."""
        ends = [(x + mark.width, y + mark.height) for mark, x, y, _ in self.marks]
        size = tuple(max(end) + MARGIN for end in zip(*ends, strict=True))
        page = Image.new("RGB", (size[0], size[1]), PAPER)
        for mark, x, y, ink in self.marks:
            if mark.mode == "L":
                page.paste(ink, (x, y), mark)
            else:
                page.paste(mark, (x, y))
        draw = ImageDraw.Draw(page)
        for (left, top, right, bottom), ink, width in self.boxes:
            draw.rectangle((left, top, right - 1, bottom - 1), outline=ink, width=width)
        return page
