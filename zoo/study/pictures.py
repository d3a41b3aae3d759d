"""Pictures of attention: an alignment of two sentences, a grid of heads, patches on an image. Only Pillow and numpy.

All are drawn at twice the size that they are meant to be seen at, so that text is sharp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from zoo.study.lettering import shortened, text
from zoo.study.ramp import FRAME, GOLD, GREY, PAPER, colours
from zoo.study.sheet import GAP, MARGIN, Sheet

WIDEST = 512  # cells: a longer axis is pooled
TILE = 208  # pixels of an image
LABEL = 16  # characters of a token that are shown
Slots = Sequence[Sequence[int]]
Tokens = Sequence[str]


def alignment(
    weights: Tensor,
    source_tokens: Tokens,
    target_tokens: Tokens,
    gold: Slots | None = None,
    title: str | None = None,
) -> Image.Image:
    """Weights (T, S): a row per target token, a column per source token.

    ``gold`` says what belongs together: each (s0, s1, t0, t1) outlines source tokens [s0, s1) of rows [t0, t1).
    """
    values, steps = pooled(array(weights))
    sheet, cell = Sheet(), _cell(max(values.shape), 48)
    top = _title(sheet, title)
    left = [shortened(word, LABEL) for word in target_tokens][:: steps[0]]
    above = [shortened(word, LABEL) for word in source_tokens][:: steps[1]]
    x, y = MARGIN + _longest(left, cell) + GAP, top + _longest(above, cell) + GAP
    peak = float(values.max(initial=0.0)) or 1.0
    _panel(sheet, values / peak, (x, y), cell)
    _rows(sheet, left, (x - GAP, y), cell)
    _columns(sheet, above, (x, y - GAP), cell)
    for slot in gold or ():
        a, b, c, d = _cells(slot, steps)
        sheet.outline((x + a * cell, y + c * cell, x + b * cell, y + d * cell), GOLD, 4 if cell > 15 else 2)
    told = ["row: token written · column: token read"] + (["outlined: what belongs together"] if gold else [])
    _legend(sheet, (x, y + len(values) * cell + 2 * GAP), [(0.0, "0"), (1.0, f"{peak:.2g}")], told)
    return sheet.image()


def head_grid(
    layers: Sequence[Tensor], tokens: Tokens | None = None, title: str | None = None, names: Sequence[str] | None = None
) -> Image.Image:
    """A panel per layer (row) and head (column), from weights (H, T, S) per layer; ``names`` of the layers.

    The square root of a weight is what is coloured, alike in all panels: heads that look at everything stay visible.
    """
    grids = [[pooled(array(head), 128)[0] for head in layer] for layer in layers]
    longest = max(max(grid.shape) for row in grids for grid in row)
    sheet, cell = Sheet(), 20 if tokens else max(2, min(20, 384 // longest))
    words = [shortened(word, LABEL) for word in tokens or ()]
    room = _longest(words, cell) + GAP if words else 0
    top = _title(sheet, title)
    left, y = MARGIN + 30 + GAP + room, top + 30 + room
    for number, row in enumerate(grids):
        x, high = left, row[0].shape[0] * cell
        name = names[number] if names else f"layer {number + 1}"
        sheet.write(name, MARGIN, y + (high - text(name, 22).width) // 2, 22, GREY, up=True)
        _rows(sheet, words, (x - GAP // 2, y), cell)
        for head, grid in enumerate(row):
            if number == 0:
                label = f"head {head + 1}"
                sheet.write(label, x + (grid.shape[1] * cell - text(label, 22).width) // 2, top - 6, 22, GREY)
                _columns(sheet, words, (x, y - GAP // 2), cell)
            _panel(sheet, np.sqrt(grid), (x, y), cell)
            x += grid.shape[1] * cell + 2 * GAP
        y += high + 2 * GAP
    ticks = [(0.0, "0"), (0.5, "0.25"), (1.0, "1")]
    _legend(sheet, (left, y), ticks, ["row: token that looks · column: token looked at"])
    return sheet.image()


def over_image(
    image: Tensor, weights: Tensor, caption: str | None = None, title: str | None = None, headings: bool = True
) -> Image.Image:
    """An image (C, H, W) in 0..1, and under the weights of its patches, (heads, rows, columns): their mean and each."""
    shown, maps = array(image).transpose(1, 2, 0), array(weights)
    shown = np.clip(shown if shown.shape[2] == 3 else shown[..., :1].repeat(3, 2), 0, 1)
    plain = Image.fromarray(np.round(shown * 255).astype(np.uint8)).resize((TILE, TILE), _method(shown))
    pixels = np.asarray(plain)
    named = [(f"head {number + 1}", head) for number, head in enumerate(maps)]
    tiles = [("mean of heads", maps.mean(0)), *named] if len(maps) > 1 else [("attention", maps[0])]
    sheet = Sheet()
    x, y = MARGIN, _title(sheet, title)
    start = y + (34 if headings else 0)
    veiled = [_lit(pixels, each) for _, each in tiles]
    notes = [caption or "", *(f"orange: {each.max():.2g}" for _, each in tiles)]
    for name, filled, note in zip(["image", *(name for name, _ in tiles)], [pixels, *veiled], notes, strict=True):
        if headings:
            sheet.write(name, x + (TILE - text(name, 22).width) // 2, y - 6, 22, GREY)
        sheet.put(filled, x, start)
        sheet.outline((x - 1, start - 1, x + TILE + 1, start + TILE + 1), FRAME, 1)
        sheet.write(note, x, start + TILE + 4, 20, GREY)
        x += TILE + 2 * GAP
    return sheet.image()


def stacked(images: Sequence[Image.Image]) -> Image.Image:
    """Pictures below each other."""
    page = Image.new("RGB", (max(i.width for i in images), sum(i.height - MARGIN for i in images) + MARGIN), PAPER)
    y = 0
    for image in images:
        page.paste(image, (0, y))
        y += image.height - MARGIN
    return page


def array(values: Tensor) -> np.ndarray:
    """The numbers, wherever they are and however short; what is not a number is drawn as nothing."""
    return np.nan_to_num(values.detach().float().cpu().numpy())


def pooled(values: np.ndarray, widest: int = WIDEST) -> tuple[np.ndarray, tuple[int, int]]:
    """A matrix of at most ``widest`` rows and columns, and how many old ones each holds: their largest is kept."""
    rows, columns = (-(-size // widest) for size in values.shape)
    short = [(0, -size % step) for size, step in zip(values.shape, (rows, columns), strict=True)]
    filled = np.pad(values, short)
    return filled.reshape(filled.shape[0] // rows, rows, -1, columns).max((1, 3)), (rows, columns)


def _cells(slot: Sequence[int], steps: tuple[int, int]) -> tuple[int, int, int, int]:
    """A slot's columns and rows of pooled cells."""
    s0, s1, t0, t1 = slot
    return s0 // steps[1], -(-s1 // steps[1]), t0 // steps[0], -(-t1 // steps[0])


def _title(sheet: Sheet, title: str | None) -> int:
    """Write the title; where the rest begins."""
    if not title:
        return MARGIN
    sheet.write(title, MARGIN, MARGIN - 6, 30)
    return MARGIN + 52


def _cell(longest: int, largest: int) -> int:
    return max(3, min(largest, 1280 // longest))


def _panel(sheet: Sheet, shares: np.ndarray, place: tuple[int, int], cell: int) -> None:
    """Cells of shares in 0..1, with the upper left corner at a place."""
    pixels = colours(shares).repeat(cell, 0).repeat(cell, 1)
    if cell >= 12:  # hairlines tell neighbours apart
        pixels[cell - 1 :: cell] = pixels[:, cell - 1 :: cell] = PAPER
    sheet.put(pixels, *place)
    (x, y), (high, wide) = place, pixels.shape[:2]
    sheet.outline((x - 2, y - 2, x + wide + 1, y + high + 1), FRAME, 1)


def _every(cell: int) -> tuple[int, int]:
    """The size of a label beside cells, and which of them get one."""
    size = max(16, min(26, cell - 2))
    return size, -(-size // cell)


def _rows(sheet: Sheet, words: Tokens, end: tuple[int, int], cell: int) -> None:
    """Labels of rows that end at a place, of which the first is the first row's."""
    size, every = _every(cell)
    for number in range(0, len(words), every):
        mask = text(words[number], size)
        sheet.write(words[number], end[0] - mask.width, end[1] + number * cell + (cell - mask.height) // 2, size)


def _columns(sheet: Sheet, words: Tokens, end: tuple[int, int], cell: int) -> None:
    """Labels of columns, turned, that end at a place above the first column."""
    size, every = _every(cell)
    for number in range(0, len(words), every):
        mask = text(words[number], size)
        x = end[0] + number * cell + (cell - mask.height) // 2
        sheet.write(words[number], x, end[1] - mask.width, size, up=True)


def _longest(words: Tokens, cell: int) -> int:
    """The width that labels beside cells take."""
    size, every = _every(cell)
    return max((text(word, size).width for word in words[::every]), default=0)


def _legend(sheet: Sheet, place: tuple[int, int], ticks: list[tuple[float, str]], told: Sequence[str]) -> None:
    """The ramp with weights at places on it, 0..1, and below it lines about rows and columns."""
    (x, y), (wide, high) = place, (320, 20)
    sheet.put(colours(np.linspace(0, 1, wide)[None].repeat(high, 0)), x, y)
    sheet.outline((x - 1, y - 1, x + wide + 1, y + high + 1), FRAME, 1)
    for share, label in ticks:
        sheet.write(label, x + round((wide - text(label, 20).width) * share), y + high + 4, 20, GREY)
    for number, line in enumerate(told):
        sheet.write(line, x, y + high + 36 + 28 * number, 20, GREY)


def _method(shown: np.ndarray) -> Image.Resampling:
    """Small images keep their pixels."""
    return Image.Resampling.NEAREST if max(shown.shape[:2]) <= 64 else Image.Resampling.BICUBIC


def _lit(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pixels, paler, under a veil that is the denser the more a patch weighs, up to the largest weight of all."""
    share = weights / (float(weights.max(initial=0.0)) or 1.0)
    veil = Image.fromarray(np.round(share * 0.85 * 255).astype(np.uint8)).resize((TILE, TILE), Image.Resampling.NEAREST)
    pale = Image.blend(Image.fromarray(pixels), Image.new("RGB", (TILE, TILE), PAPER), 0.5)
    return np.asarray(Image.composite(Image.new("RGB", (TILE, TILE), GOLD), pale, veil))
