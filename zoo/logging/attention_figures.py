"""Pictures of attention: an alignment of two sentences, a grid of heads, patches on an image.

TensorBoard shows a picture in a card 330 pixels wide, whatever its size: the wider a picture, the larger its text. The
pixels of text, which matplotlib draws in whatever font has its letters, are cached: most of it is the same at every
validation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image, ImageDraw
from torch import Tensor

from zoo.palette import LIGHT
from zoo.plotting import UNITS, new_figure, printable, style

# from almost white to a deep blue in equal steps of lightness, with more colour where it is light than "Blues" has
CMAP = LinearSegmentedColormap.from_list(
    "attention",
    ["#fafafa", "#aee7fe", "#74cdf8", "#47b0ec", "#2b91d8", "#2374bd", "#24579c", "#233d76", "#1c274f"],
)
WIDEST = 512  # cells: a longer axis is max-pooled
TILE = 208  # pixels of an image
ROW = 6  # tiles beside each other
LABEL = 24  # characters of a token; the rest is cut off
MARGIN, GAP = 28, 12  # pixels
CARD = 660  # pixels: the width at which text of the sizes NOTE and TITLE is twice as large as in TensorBoard's card
NOTE, TITLE = 20, 25  # pixels
INK, GREY, FRAME, PAPER = LIGHT["ink"], LIGHT["grey"], "#cbd1d9", LIGHT["paper"]
ORANGE = "#e8590c"  # outlines and patches: far from every colour of CMAP
Spans = Sequence[Sequence[int]]
Tokens = Sequence[str]


class Page:
    """A white picture, in pixels that are counted from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.canvas = Image.new("RGB", (round(width), round(height)), PAPER)

    def text(self, words: str, x: float, y: float, size: int, colour: str = GREY, align: float = 0.0) -> None:
        """A line of text whose middle is at the height ``y``; ``align`` is the share of it that is left of ``x``."""
        line = text_pixels(words, size, colour)
        self.pixels(line, x - align * line.shape[1], y - line.shape[0] / 2)

    def pixels(self, values: np.ndarray, x: float, y: float) -> None:
        """uint8 (H, W, 3), or (H, W, 4) with opacity, with its upper left corner at (x, y)."""
        picture = Image.fromarray(values)
        self.canvas.paste(picture, (round(x), round(y)), picture if picture.mode == "RGBA" else None)

    def outline(self, left: float, top: float, right: float, bottom: float, colour: str, width: int) -> None:
        """A rectangle of lines just inside these edges."""
        edges = round(left), round(top), round(right) - 1, round(bottom) - 1
        ImageDraw.Draw(self.canvas).rectangle(edges, outline=colour, width=width)


@style()
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
    values, steps = max_pool(array(weights))
    cell = max(3, min(48, 960 // max(values.shape)))
    rows, columns = _labels(target_tokens[:: steps[0]], cell), _labels(source_tokens[:: steps[1]], cell)
    peak = float(values.max(initial=0.0)) or 1.0
    panel = _panel(values / peak, cell)
    notes = ["row: target token · column: source token", *(["outlined: translations of each other"] if gold else [])]
    x = MARGIN + _longest(rows) + GAP
    scale = _scale(x + panel.shape[1] + MARGIN)
    y = _below_title(title, scale) + _longest(columns) + GAP
    width = max(x + panel.shape[1], MARGIN + _text_width(title, TITLE, scale), MARGIN + _legend_width(notes, scale))
    page = Page(width + MARGIN, y + len(panel) + _legend_height(notes, scale))
    _write_title(page, title, scale)
    _label_rows(page, rows, x - GAP, y, cell)
    _label_columns(page, columns, x, y - GAP, cell)
    _draw_panel(page, panel, x, y)
    for span in gold or ():
        left, right, top, bottom = _cells(span, steps)
        page.outline(
            x + left * cell, y + top * cell, x + right * cell, y + bottom * cell, ORANGE, 4 if cell > 15 else 2
        )
    _draw_legend(page, y + len(panel) + 2 * GAP, [(0.0, "0"), (1.0, f"{peak:.2g}")], notes, scale)
    return page.canvas


@style()
def head_grid(
    layers: Sequence[Tensor], tokens: Tokens | None = None, title: str | None = None, names: Sequence[str] | None = None
) -> Image.Image:
    """A panel per layer (row) and head (column), from weights (H, T, S) per layer; ``names`` of the layers.

    Colours stand for square roots of weights, alike in all panels: heads that attend to everything stay visible.
    """
    grids = [[max_pool(array(head), 128)[0] for head in layer] for layer in layers]
    longest, heads = max(max(grid.shape) for row in grids for grid in row), max(map(len, grids))
    cell = 20 if tokens else max(2, min(20, 960 // (heads * longest)))
    labels = _labels(tokens or (), cell)
    room = _longest(labels) + GAP // 2 if tokens else 0
    notes = ["row: token that attends · column: token attended to"]
    high = sum(len(row[0]) * cell + 2 * GAP for row in grids)
    wide = max(sum(grid.shape[1] * cell + 2 * GAP for grid in row) for row in grids)
    scale = _scale(2 * MARGIN + room + wide)
    line = round(1.5 * NOTE * scale)  # the height of a name
    left, top = MARGIN + line + room, _below_title(title, scale) + line + room
    width = max(left + wide - 2 * GAP, MARGIN + _text_width(title, TITLE, scale), MARGIN + _legend_width(notes, scale))
    page = Page(width + MARGIN, top + high - 2 * GAP + _legend_height(notes, scale))
    _write_title(page, title, scale)
    y = top
    for number, row in enumerate(grids):
        x, tall = left, row[0].shape[0] * cell
        name = _fitting(names[number] if names else f"layer {number + 1}", tall + GAP, scale)
        pixels = np.rot90(text_pixels(name, round(NOTE * scale), GREY))
        page.pixels(pixels, MARGIN, y + tall / 2 - len(pixels) / 2)
        _label_rows(page, labels, x - GAP // 2, y, cell)
        for head, grid in enumerate(row):
            if number == 0:
                name = _fitting(f"head {head + 1}", grid.shape[1] * cell + GAP, scale)
                middle = x + grid.shape[1] * cell / 2
                page.text(name, middle, top - room - line / 2, round(NOTE * scale), align=0.5)
                _label_columns(page, labels, x, y - GAP // 2, cell)
            _draw_panel(page, _panel(np.sqrt(grid), cell), x, y)
            x += grid.shape[1] * cell + 2 * GAP
        y += tall + 2 * GAP
    _draw_legend(page, y, [(0.0, "0"), (0.5, "0.25"), (1.0, "1")], notes, scale)
    return page.canvas


@style()
def over_images(samples: Sequence[tuple[Tensor, Tensor, str]], title: str | None = None) -> Image.Image:
    """Images (C, H, W) in 0..1 beside weights of their patches (heads, rows, columns), mean and each head; captions."""
    tiles = [_tiles(image, array(weights)) for image, weights, _ in samples]
    step = TILE + 2 * GAP
    across = min(ROW, max(map(len, tiles)))
    note = "orange: the attention weight; number: the largest weight"
    scale = _scale(2 * MARGIN + step * across - 2 * GAP)
    size, line = round(NOTE * scale), round(1.5 * NOTE * scale)
    width = max(
        step * across - 2 * GAP,
        *(_text_width(text, NOTE, scale) for text in (note, *(caption for _, _, caption in samples))),
        _text_width(title, TITLE, scale),
    )
    lines = [-(-len(row) // ROW) for row in tiles]
    captions = [line if caption else 0 for _, _, caption in samples]
    high = sum(captions) + sum(lines) * (TILE + 2 * line + GAP)
    y = _below_title(title, scale)
    page = Page(width + 2 * MARGIN, y + high + line + MARGIN)
    _write_title(page, title, scale)
    for (_, _, caption), row, extra in zip(samples, tiles, captions, strict=True):
        page.text(caption, MARGIN, y + extra / 2, size, INK)
        y += extra
        for start in range(0, len(row), ROW):
            for column, (name, pixels, below) in enumerate(row[start : start + ROW]):
                x = MARGIN + column * step
                page.text(name, x + TILE / 2, y + line / 2, size, align=0.5)
                _draw_panel(page, pixels, x, y + line, 1)
                page.text(below, x + TILE / 2, y + line + TILE + line / 2, size, align=0.5)
            y += TILE + 2 * line + GAP
    page.text(note, MARGIN, y + line / 2, size)
    return page.canvas


def _tiles(image: Tensor, maps: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
    """Heading, pixels (TILE, TILE, 3) and note of the image, of the mean of all heads and of each head."""
    colours = array(image).transpose(1, 2, 0)
    colours = np.clip(colours if colours.shape[2] == 3 else colours[..., :1].repeat(3, 2), 0, 1)
    resized = Image.fromarray(np.round(colours * 255).astype(np.uint8)).resize((TILE, TILE), _resampling(colours))
    heads = [(f"head {number + 1}", head) for number, head in enumerate(maps)]
    panels = [("mean", maps.mean(0)), *heads] if len(maps) > 1 else [("attention", maps[0])]
    tiles = [(name, _overlaid(resized, weights), f"{weights.max():.2g}") for name, weights in panels]
    return [("image", np.asarray(resized), ""), *tiles]


def array(values: Tensor) -> np.ndarray:
    """A tensor of any shape, device and dtype as an array; NaN becomes 0."""
    return np.nan_to_num(values.detach().float().cpu().numpy())


def max_pool(values: np.ndarray, widest: int = WIDEST) -> tuple[np.ndarray, tuple[int, int]]:
    """Max-pool a matrix to at most ``widest`` rows and columns; also the rows and columns per cell."""
    rows, columns = (-(-size // widest) for size in values.shape)
    short = [(0, -size % step) for size, step in zip(values.shape, (rows, columns), strict=True)]
    filled = np.pad(values, short)
    return filled.reshape(filled.shape[0] // rows, rows, -1, columns).max((1, 3)), (rows, columns)


def to_colours(shares: np.ndarray) -> np.ndarray:
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
    size = max(16, min(40, cell - 2))
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


def _scale(width: float) -> float:
    """The factor on the sizes of text in a picture of this width."""
    return max(1.0, width / CARD)


def _below_title(title: str | None, scale: float) -> int:
    return MARGIN + (round(2 * TITLE * scale) if title else 0)


def _text_width(text: str | None, size: int, scale: float) -> int:
    return text_pixels(text or "", round(size * scale), INK).shape[1]


def _fitting(name: str, room: float, scale: float) -> str:
    """``head 3``, or ``3`` where that is wider than the room."""
    return name if _text_width(name, NOTE, scale) <= room else name.rpartition(" ")[2]


def _write_title(page: Page, title: str | None, scale: float) -> None:
    page.text(title or "", MARGIN, MARGIN + TITLE * scale / 2, round(TITLE * scale), INK)


def _panel(shares: np.ndarray, cell: int) -> np.ndarray:
    """Cells of shares in 0..1 as pixels (H, W, 3)."""
    pixels = to_colours(shares).repeat(cell, 0).repeat(cell, 1)
    if cell >= 12:  # hairlines tell neighbours apart
        pixels[cell - 1 :: cell] = pixels[:, cell - 1 :: cell] = 255
    return pixels


def _draw_panel(page: Page, pixels: np.ndarray, x: float, y: float, room: int = 2) -> None:
    """Pixels within a thin frame."""
    high, wide = pixels.shape[:2]
    page.pixels(pixels, x, y)
    page.outline(x - room, y - room, x + wide + 1, y + high + 1, FRAME, 1)


def _legend_width(notes: Tokens, scale: float) -> int:
    return max(_text_width(note, NOTE, scale) for note in notes)


def _legend_height(notes: Tokens, scale: float) -> int:
    return round(2 * GAP + (NOTE + 1.5 * NOTE * (1 + len(notes))) * scale + MARGIN)


def _draw_legend(page: Page, y: float, ticks: Sequence[tuple[float, str]], notes: Sequence[str], scale: float) -> None:
    """The colours of weights with numbers at places on them, 0..1, and below them lines about rows and columns."""
    wide, high, size = round(320 * scale), round(NOTE * scale), round(NOTE * scale)
    _draw_panel(page, to_colours(np.linspace(0, 1, wide)[None].repeat(high, 0)), MARGIN, y, 1)
    for share, label in ticks:
        page.text(label, MARGIN + wide * share, y + high + 0.75 * size, size, align=share)
    for number, line in enumerate(notes):
        page.text(line, MARGIN, y + high + (2.25 + 1.5 * number) * size, size)


def _resampling(pixels: np.ndarray) -> Image.Resampling:
    """Small images keep their pixels."""
    return Image.Resampling.NEAREST if max(pixels.shape[:2]) <= 64 else Image.Resampling.BICUBIC


def _overlaid(image: Image.Image, weights: np.ndarray) -> np.ndarray:
    """An image, paler, under an orange that is the denser the more a patch weighs, up to the largest weight of all."""
    share = weights / (float(weights.max(initial=0.0)) or 1.0)
    density = Image.fromarray(np.round(share * 0.85 * 255).astype(np.uint8))
    mask = density.resize(image.size, Image.Resampling.NEAREST)
    pale = Image.blend(image, Image.new("RGB", image.size, PAPER), 0.5)
    return np.asarray(Image.composite(Image.new("RGB", image.size, ORANGE), pale, mask))
