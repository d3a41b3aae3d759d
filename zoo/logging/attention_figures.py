"""Pictures of attention: an alignment of two sentences, a grid of heads, patches on an image.

All are drawn at twice the size that they are meant to be seen at, so that text is sharp. They are matplotlib figures
without axes, since one axes takes longer than a whole picture here and a validation draws dozens of panels; and text
that was drawn is kept, since most of it is the same at every validation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image
from torch import Tensor

from zoo.palette import LIGHT
from zoo.plotting import UNITS, new_figure, printable, rasterize, style

# from almost white to a deep blue in equal steps of lightness, with more colour where it is light than "Blues" has
CMAP = LinearSegmentedColormap.from_list(
    "attention",
    ["#fafafa", "#aee7fe", "#74cdf8", "#47b0ec", "#2b91d8", "#2374bd", "#24579c", "#233d76", "#1c274f"],
)
WIDEST = 512  # cells: a longer axis is pooled
TILE = 208  # pixels of an image
LABEL = 16  # characters of a token that are shown
MARGIN, GAP = 28, 12  # pixels
INK, GREY, FRAME, PAPER = LIGHT["ink"], LIGHT["grey"], "#cbd1d9", LIGHT["paper"]
ORANGE = "#e8590c"  # outlines and patches: far from every colour of CMAP
Spans = Sequence[Sequence[int]]
Tokens = Sequence[str]


class Pixels(Artist):
    """uint8 (H, W, 3 or 4) with its lower left corner at a pixel: drawn as it is, where an image would be resampled."""

    def __init__(self, values: np.ndarray, x: float, y: float) -> None:
        super().__init__()
        opaque = np.full((*values.shape[:2], 1), 255, np.uint8)
        self.values = values if values.shape[2] == 4 else np.concatenate((values, opaque), 2)
        self.x, self.y = round(x), round(y)

    def draw(self, renderer: Any) -> None:
        """Called by matplotlib."""
        context = renderer.new_gc()
        renderer.draw_image(context, self.x, self.y, self.values[::-1])
        context.restore()


class Page:
    """A matplotlib figure in pixels, counted from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.height = round(height)
        self.figure = new_figure(round(width), self.height)

    def text(self, words: str, x: float, y: float, size: int, colour: str = GREY, align: float = 0.0) -> None:
        """A line of text whose middle is at the height ``y``; ``align`` says which share of it is left of ``x``."""
        line = text_pixels(words, size, colour)
        self.pixels(line, x - align * line.shape[1], y - line.shape[0] / 2)

    def pixels(self, values: np.ndarray, x: float, y: float) -> None:
        """uint8 (H, W, 3), or (H, W, 4) with opacity, with its upper left corner at (x, y)."""
        self.figure.add_artist(Pixels(values, x, self.height - round(y) - len(values)))

    def outline(self, left: float, top: float, right: float, bottom: float, colour: str, width: int) -> None:
        """A rectangle of lines just inside these edges."""
        corner = left + width / 2, self.height - bottom + width / 2
        self.figure.add_artist(
            Rectangle(
                corner, right - left - width, bottom - top - width, fill=False, edgecolor=colour, linewidth=width,
                antialiased=False, snap=False, transform=None,
            )
        )  # fmt: skip

    def image(self) -> Image.Image:
        """RGB pixels."""
        return rasterize(self.figure)


def alignment(
    weights: Tensor,
    source_tokens: Tokens,
    target_tokens: Tokens,
    gold: Spans | None = None,
    title: str | None = None,
) -> Image.Image:
    """Weights (T, S): a row per target token, a column per source token.

    ``gold`` says what belongs together: each (s0, s1, t0, t1) outlines source tokens [s0, s1) of rows [t0, t1).
    """
    values, steps = pooled(array(weights))
    cell = max(3, min(48, 1280 // max(values.shape)))
    rows, columns = _labels(target_tokens[:: steps[0]], cell), _labels(source_tokens[:: steps[1]], cell)
    peak = float(values.max(initial=0.0)) or 1.0
    panel = _panel(values / peak, cell)
    notes = ["row: token written · column: token read", *(["outlined: what belongs together"] if gold else [])]
    x, y = MARGIN + _longest(rows) + GAP, _below_title(title) + _longest(columns) + GAP
    width = max(x + panel.shape[1], MARGIN + _title_width(title), x + 400)
    page = Page(width + MARGIN, y + len(panel) + _legend_height(notes))
    _write_title(page, title)
    _label_rows(page, rows, x - GAP, y, cell)
    _label_columns(page, columns, x, y - GAP, cell)
    _draw_panel(page, panel, x, y)
    for span in gold or ():
        left, right, top, bottom = _cells(span, steps)
        page.outline(
            x + left * cell, y + top * cell, x + right * cell, y + bottom * cell, ORANGE, 4 if cell > 15 else 2
        )
    _draw_legend(page, x, y + len(panel) + 2 * GAP, [(0.0, "0"), (1.0, f"{peak:.2g}")], notes)
    return page.image()


def head_grid(
    layers: Sequence[Tensor], tokens: Tokens | None = None, title: str | None = None, names: Sequence[str] | None = None
) -> Image.Image:
    """A panel per layer (row) and head (column), from weights (H, T, S) per layer; ``names`` of the layers.

    The square root of a weight is what is coloured, alike in all panels: heads that look at everything stay visible.
    """
    grids = [[pooled(array(head), 128)[0] for head in layer] for layer in layers]
    longest = max(max(grid.shape) for row in grids for grid in row)
    cell = 20 if tokens else max(2, min(20, 384 // longest))
    labels = _labels(tokens or (), cell)
    room = _longest(labels) + GAP // 2 if tokens else 0
    notes = ["row: token that looks · column: token looked at"]
    left, top = MARGIN + 40 + room, _below_title(title) + 30 + room
    high = sum(len(row[0]) * cell + 2 * GAP for row in grids)
    wide = max(sum(grid.shape[1] * cell + 2 * GAP for grid in row) for row in grids)
    width = max(left + wide - 2 * GAP, MARGIN + _title_width(title), left + 480)
    page = Page(width + MARGIN, top + high - 2 * GAP + _legend_height(notes))
    _write_title(page, title)
    y = top
    for number, row in enumerate(grids):
        x, middle = left, y + row[0].shape[0] * cell / 2
        name = names[number] if names else f"layer {number + 1}"
        line = np.rot90(text_pixels(name, 22, GREY))
        page.pixels(line, MARGIN, middle - len(line) / 2)
        _label_rows(page, labels, x - GAP // 2, y, cell)
        for head, grid in enumerate(row):
            if number == 0:
                page.text(f"head {head + 1}", x + grid.shape[1] * cell / 2, _below_title(title) + 10, 22, align=0.5)
                _label_columns(page, labels, x, y - GAP // 2, cell)
            _draw_panel(page, _panel(np.sqrt(grid), cell), x, y)
            x += grid.shape[1] * cell + 2 * GAP
        y += row[0].shape[0] * cell + 2 * GAP
    _draw_legend(page, left, y, [(0.0, "0"), (0.5, "0.25"), (1.0, "1")], notes)
    return page.image()


def over_image(image: Tensor, weights: Tensor, caption: str | None = None, title: str | None = None) -> Image.Image:
    """An image (C, H, W) in 0..1, and under the weights of its patches, (heads, rows, columns): their mean and each."""
    return over_images([(image, weights, caption or "")], title)


def over_images(samples: Sequence[tuple[Tensor, Tensor, str]], title: str | None = None) -> Image.Image:
    """A row like that of ``over_image`` for each image, weights and caption."""
    rows = [_tiles(image, array(weights), caption) for image, weights, caption in samples]
    top, step = _below_title(title) + 34, TILE + 30 + MARGIN
    width = max((TILE + 2 * GAP) * max(map(len, rows)) - 2 * GAP, _title_width(title))
    page = Page(width + 2 * MARGIN, top + step * len(rows))
    _write_title(page, title)
    for number, row in enumerate(rows):
        for column, (name, pixels, note) in enumerate(row):
            x, y = MARGIN + column * (TILE + 2 * GAP), top + number * step
            if number == 0:
                page.text(name, x + TILE / 2, y - 20, 22, align=0.5)
            _draw_panel(page, pixels, x, y, 1)
            page.text(note, x, y + TILE + 17, 20)
    return page.image()


def _tiles(image: Tensor, maps: np.ndarray, caption: str) -> list[tuple[str, np.ndarray, str]]:
    """Heading, pixels and note of the image, of the mean of all heads and of each head."""
    shown = array(image).transpose(1, 2, 0)
    shown = np.clip(shown if shown.shape[2] == 3 else shown[..., :1].repeat(3, 2), 0, 1)
    resized = Image.fromarray(np.round(shown * 255).astype(np.uint8)).resize((TILE, TILE), _resampling(shown))
    heads = [(f"head {number + 1}", head) for number, head in enumerate(maps)]
    named = [("mean of heads", maps.mean(0)), *heads] if len(maps) > 1 else [("attention", maps[0])]
    tiles = [(name, _overlaid(resized, weights), f"orange: {weights.max():.2g}") for name, weights in named]
    return [("image", np.asarray(resized), caption), *tiles]


def array(values: Tensor) -> np.ndarray:
    """The numbers, wherever they are and however short; what is not a number is drawn as nothing."""
    return np.nan_to_num(values.detach().float().cpu().numpy())


def pooled(values: np.ndarray, widest: int = WIDEST) -> tuple[np.ndarray, tuple[int, int]]:
    """A matrix of at most ``widest`` rows and columns, and how many old ones each holds: their largest is kept."""
    rows, columns = (-(-size // widest) for size in values.shape)
    short = [(0, -size % step) for size, step in zip(values.shape, (rows, columns), strict=True)]
    filled = np.pad(values, short)
    return filled.reshape(filled.shape[0] // rows, rows, -1, columns).max((1, 3)), (rows, columns)


def coloured(shares: np.ndarray) -> np.ndarray:
    """Numbers in 0..1 to colours of CMAP, uint8 (..., 3)."""
    return np.asarray(CMAP(np.clip(shares, 0.0, 1.0), bytes=True))[..., :3]


@lru_cache(4096)
@style()
def text_pixels(words: str, size: int, colour: str) -> np.ndarray:
    """A line of text, as high as any of its size: uint8 (H, W, 4). Control characters are escaped."""
    height = round(1.3 * size)
    text = Text(1, 0.32 * size, printable(words), fontsize=size, color=colour, figure=_ruler())
    width = text.get_window_extent(_ruler().canvas.get_renderer()).x1 + 1  # type: ignore[attr-defined]
    renderer = RendererAgg(math.ceil(max(1.0, width)), height, UNITS)
    text.draw(renderer)
    return np.array(renderer.buffer_rgba())


@lru_cache(1)
def _ruler() -> Figure:
    """A figure that text is measured with."""
    return new_figure(1, 1)


def _labels(words: Tokens, cell: int) -> list[np.ndarray | None]:
    """A label for each row or column of cells; None where it would cover the one before."""
    size = max(16, min(26, cell - 2))
    every = -(-size // cell)
    short = [printable(word, LABEL) for word in words]
    return [None if number % every else text_pixels(word, size, INK) for number, word in enumerate(short)]


def _longest(labels: Sequence[np.ndarray | None]) -> int:
    return max((label.shape[1] for label in labels if label is not None), default=0)


def _label_rows(page: Page, labels: Sequence[np.ndarray | None], x: float, y: float, cell: int) -> None:
    """Labels that end at ``x``, the first of which is that of a row whose upper edge is ``y``."""
    for number, label in enumerate(labels):
        if label is not None:
            page.pixels(label, x - label.shape[1], y + (number + 0.5) * cell - len(label) / 2)


def _label_columns(page: Page, labels: Sequence[np.ndarray | None], x: float, y: float, cell: int) -> None:
    """Turned labels that begin at ``y`` and go up, the first of which is that of a column whose left edge is ``x``."""
    for number, label in enumerate(labels):
        if label is not None:
            page.pixels(np.rot90(label), x + (number + 0.5) * cell - len(label) / 2, y - label.shape[1])


def _cells(span: Sequence[int], steps: tuple[int, int]) -> tuple[int, int, int, int]:
    """A span's columns and rows of pooled cells: left, right, top, bottom."""
    s0, s1, t0, t1 = span
    return s0 // steps[1], -(-s1 // steps[1]), t0 // steps[0], -(-t1 // steps[0])


def _below_title(title: str | None) -> int:
    return MARGIN + (52 if title else 0)


def _title_width(title: str | None) -> int:
    return text_pixels(title or "", 30, INK).shape[1]


def _write_title(page: Page, title: str | None) -> None:
    page.text(title or "", MARGIN, MARGIN + 13, 30, INK)


def _panel(shares: np.ndarray, cell: int) -> np.ndarray:
    """Cells of shares in 0..1 as pixels (H, W, 3)."""
    pixels = coloured(shares).repeat(cell, 0).repeat(cell, 1)
    if cell >= 12:  # hairlines tell neighbours apart
        pixels[cell - 1 :: cell] = pixels[:, cell - 1 :: cell] = 255
    return pixels


def _draw_panel(page: Page, pixels: np.ndarray, x: float, y: float, room: int = 2) -> None:
    """Pixels within a thin frame."""
    high, wide = pixels.shape[:2]
    page.pixels(pixels, x, y)
    page.outline(x - room, y - room, x + wide + 1, y + high + 1, FRAME, 1)


def _legend_height(notes: Tokens) -> int:
    return 2 * GAP + 48 + 28 * len(notes) + MARGIN


def _draw_legend(page: Page, x: float, y: float, ticks: Sequence[tuple[float, str]], notes: Sequence[str]) -> None:
    """The colours of weights with numbers at places on them, 0..1, and below them lines about rows and columns."""
    wide, high = 320, 20
    _draw_panel(page, coloured(np.linspace(0, 1, wide)[None].repeat(high, 0)), x, y, 1)
    for share, label in ticks:
        page.text(label, x + wide * share, y + high + 17, 20, align=share)
    for number, line in enumerate(notes):
        page.text(line, x, y + high + 49 + 28 * number, 20)


def _resampling(shown: np.ndarray) -> Image.Resampling:
    """Small images keep their pixels."""
    return Image.Resampling.NEAREST if max(shown.shape[:2]) <= 64 else Image.Resampling.BICUBIC


def _overlaid(image: Image.Image, weights: np.ndarray) -> np.ndarray:
    """An image, paler, under an orange that is the denser the more a patch weighs, up to the largest weight of all."""
    share = weights / (float(weights.max(initial=0.0)) or 1.0)
    density = Image.fromarray(np.round(share * 0.85 * 255).astype(np.uint8))
    mask = density.resize(image.size, Image.Resampling.NEAREST)
    pale = Image.blend(image, Image.new("RGB", image.size, PAPER), 0.5)
    return np.asarray(Image.composite(Image.new("RGB", image.size, ORANGE), pale, mask))
