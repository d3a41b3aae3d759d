"""A drawing of lines, areas, marks and text that becomes a PNG by Pillow or SVG for a page, from the same calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import Literal

from PIL import Image, ImageDraw, ImageFilter, ImageOps

from zoo.console import printable
from zoo.study.lettering import text as lettered

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
# black and the colours of Okabe and Ito (2008), which people with any colour vision tell apart, the palest ones last
LIGHT = {
    "ink": "#1f2937", "grey": "#6b7280", "frame": "#d8dce2", "paper": "#ffffff", "good": "#047857", "bad": "#b42318",
    "c0": "#1f2937", "c1": "#0072b2", "c2": "#d55e00", "c3": "#009e73", "c4": "#cc79a7", "c5": "#56b4e9",
    "c6": "#e69f00",
}  # fmt: skip
DARK = {
    "ink": "#e5e7eb", "grey": "#9ca3af", "frame": "#3a4251", "paper": "#14181f", "good": "#34d399", "bad": "#f97066",
    "c0": "#e5e7eb", "c1": "#4da3e0", "c2": "#f2803a", "c3": "#2cc79a", "c4": "#e59ac5", "c5": "#8fd0f5",
    "c6": "#f0b440",
}  # fmt: skip
SERIES = 7
SHAPES = ("circle", "square", "triangle", "diamond", "down", "star", "pentagon")
DASHES = ((), (7, 4), (2, 3))
SHARP, SMOOTH = 2, 3  # a PNG has 2 pixels per unit, and is drawn with 3 times as many: edges without steps


class Drawing:
    """Collects what is drawn on ``width`` x ``height`` units, of which a page shows one per CSS pixel.

    Colours are names of LIGHT; SVG takes them from CSS variables, so that a page can be dark.
    """

    def __init__(self, width: int, height: int, label: str):
        self.width, self.height, self.label = width, height, label
        self._svg: list[str] = []
        self._shapes: list[Callable[[ImageDraw.ImageDraw, float], None]] = []
        self._texts: list[tuple[str, float, float, float, str, Anchor, bool, bool]] = []

    def line(
        self, points: Sequence[Point], colour: str, width: float = 1.0, dash: Sequence[float] = (), opacity: float = 1.0
    ) -> None:
        """A line through points; ``dash`` are lengths drawn and left out."""
        if len(points) < 2:
            return
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{" ".join(f"{d:g}" for d in dash)}"' if dash else ""
        faint = f' stroke-opacity="{opacity:g}"' if opacity < 1 else ""
        self._svg.append(
            f'<polyline points="{path}" fill="none" style="stroke:{_css(colour)}" stroke-width="{width:g}" '
            f'stroke-linejoin="round" stroke-linecap="round"{dashed}{faint}/>'
        )
        ink = _mixed(colour, opacity)
        for piece in dashes(points, dash) if dash else [list(points)]:
            self._shapes.append(
                lambda draw, k, piece=piece: draw.line(  # type: ignore[misc]
                    [(x * k, y * k) for x, y in piece], fill=ink, width=max(1, round(width * k)), joint="curve"
                )
            )

    def area(self, points: Sequence[Point], colour: str, opacity: float = 1.0, outline: str = "") -> None:
        """A filled polygon."""
        if len(points) < 3:
            return
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        edge = f";stroke:{_css(outline)}" if outline else ""
        faint = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._svg.append(f'<polygon points="{path}" style="fill:{_css(colour)}{edge}"{faint}/>')
        ink = (*_rgb(colour), round(255 * opacity))
        self._shapes.append(lambda draw, k: draw.polygon([(x * k, y * k) for x, y in points], fill=ink))
        if outline:
            closed, edge_ink = [*points, points[0]], _rgb(outline)
            self._shapes.append(
                lambda draw, k: draw.line([(x * k, y * k) for x, y in closed], edge_ink, round(k), joint="curve")
            )

    def rectangle(self, box: tuple[float, float, float, float], colour: str, opacity: float = 1.0) -> None:
        """Left, top, right, bottom."""
        left, top, right, bottom = box
        self.area([(left, top), (right, top), (right, bottom), (left, bottom)], colour, opacity)

    def mark(self, x: float, y: float, colour: str, shape: str = "circle", size: float = 4.0) -> None:
        """A mark with a thin rim of paper, so that marks on lines and on each other stay apart."""
        if shape == "cross":  # for what diverged or is undefined
            for slope in (-1, 1):
                self.line([(x - size, y - slope * size), (x + size, y + slope * size)], colour, 2.2)
            return
        self.area([(x + size * dx, y + size * dy) for dx, dy in _outline(shape)], colour, outline="paper")

    def text(
        self, words: str, x: float, y: float, size: float = 13, colour: str = "ink", anchor: Anchor = "start",
        up: bool = False, halo: bool = False,
    ) -> None:  # fmt: skip
        """A line of text around the height ``y``; ``up`` turns it to read from below, ``halo`` keeps lines off it."""
        words = printable(words)
        rim = f";stroke:{_css('paper')};stroke-width:4;paint-order:stroke" if halo else ""
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if up else ""
        self._svg.append(
            f'<text x="{x:.1f}" y="{y:.1f}" dy="0.35em" font-size="{size:g}" text-anchor="{anchor}" '
            f'style="fill:{_css(colour)}{rim}"{turned}>{escape(words)}</text>'
        )
        self._texts.append((words, x, y, size, colour, anchor, up, halo))

    def svg(self) -> str:
        """An <svg> element for a page, as wide as it may be."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'width="{self.width}" height="{self.height}" aria-label="{escape(self.label)}" '
            f'font-family="DejaVu Sans,Verdana,system-ui,sans-serif"><title>{escape(self.label)}</title>'
            f"{''.join(self._svg)}</svg>"
        )

    def image(self) -> Image.Image:
        """The picture, with 2 pixels per unit."""
        factor = SHARP * SMOOTH
        page = Image.new("RGB", (self.width * factor, self.height * factor), LIGHT["paper"])
        draw = ImageDraw.Draw(page, "RGBA")
        for shape in self._shapes:
            shape(draw, factor)
        page = page.reduce(SMOOTH)
        for words, x, y, size, colour, anchor, up, halo in self._texts:
            mask = lettered(words, round(size * SHARP))
            shift = {"start": 0.0, "middle": mask.width / 2, "end": float(mask.width)}[anchor]
            across, down = x * SHARP, y * SHARP
            place = (across - shift, down - mask.height / 2)
            if up:
                mask = mask.transpose(Image.Transpose.ROTATE_90)
                place = (across - mask.width / 2, down - mask.height + shift)
            left, top = round(place[0]), round(place[1])
            if halo:
                around = ImageOps.expand(mask, 4, 0).filter(ImageFilter.MaxFilter(7))
                page.paste(_rgb("paper"), (left - 4, top - 4), around)
            page.paste(_rgb(colour), (left, top), mask)
        return page


def width_of(words: str, size: float = 13) -> float:
    """How wide a line of text is, in units."""
    return lettered(printable(words), round(size * SHARP)).width / SHARP


def dashes(points: Sequence[Point], pattern: Sequence[float]) -> list[list[Point]]:
    """The pieces of a line that a pattern of drawn and left-out lengths draws."""
    pieces: list[list[Point]] = []
    index, left, drawing = 0, pattern[0], [points[0]]
    for (x0, y0), (x1, y1) in pairwise(points):
        length, done = math.hypot(x1 - x0, y1 - y0), 0.0
        while length - done > left:
            done += left
            here = (x0 + (x1 - x0) * done / length, y0 + (y1 - y0) * done / length)
            if index % 2 == 0:
                pieces.append([*drawing, here])
            index, drawing = index + 1, [here]
            left = pattern[index % len(pattern)]
        left -= length - done
        drawing.append((x1, y1))
    return [*pieces, drawing] if index % 2 == 0 else pieces


def _outline(shape: str) -> list[Point]:
    """The corners of a shape around (0, 0), all of about the same area."""
    if shape == "square":
        return [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]
    if shape in ("triangle", "down"):
        flip = -1 if shape == "down" else 1
        return [(0, -1.2 * flip), (1.15, 0.85 * flip), (-1.15, 0.85 * flip)]
    corners, outer, inner = {"circle": (24, 1.0, 1.0), "diamond": (4, 1.25, 1.25), "pentagon": (5, 1.15, 1.15),
                             "star": (10, 1.45, 0.65)}[shape]  # fmt: skip
    turns = [2 * math.pi * corner / corners - math.pi / 2 for corner in range(corners)]
    sizes = [outer if corner % 2 == 0 else inner for corner in range(corners)]
    return [(size * math.cos(turn), size * math.sin(turn)) for size, turn in zip(sizes, turns, strict=True)]


def _css(colour: str) -> str:
    return f"var(--{colour},{LIGHT[colour]})"


def _rgb(colour: str) -> tuple[int, int, int]:
    value = LIGHT[colour]
    return int(value[1:3], 16), int(value[3:5], 16), int(value[5:7], 16)


def _mixed(colour: str, opacity: float) -> tuple[int, int, int]:
    """A colour on paper: where lines overlap themselves, Pillow would draw them darker."""
    red, green, blue = (round(c * opacity + 255 * (1 - opacity)) for c in _rgb(colour))
    return red, green, blue
