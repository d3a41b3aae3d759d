"""Text on pictures, in whatever fonts the machine has; a character that none of them has is still seen."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

# Linux, macOS and Windows; then Chinese, Japanese and Korean. Pillow's own font knows little but ASCII
FACES = (
    "DejaVuSans.ttf", "Arial.ttf", "LiberationSans-Regular.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf",
    "NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "wqy-microhei.ttc", "PingFang.ttc", "msyh.ttc",
)  # fmt: skip
NOWHERE = "\uffff"  # no character: shows how a font draws what it does not have


@lru_cache
def faces() -> tuple[str, ...]:
    """The files of those fonts that are installed."""
    found = []
    for name in FACES:
        try:
            found.append(str(ImageFont.truetype(name, 10).path))
        except OSError:
            continue
    return tuple(found)


@lru_cache(64)
def fonts(size: int) -> tuple[ImageFont.FreeTypeFont | ImageFont.ImageFont, ...]:
    """The fonts to look for a character in, first to last; Pillow's own is the last."""
    return (*(ImageFont.truetype(path, size) for path in faces()), ImageFont.load_default(size))


@lru_cache(8192)
def font_of(character: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont | None:
    """The first font that has this character."""
    for font in fonts(size):
        if character == " " or _drawn(font, character) != _drawn(font, NOWHERE):
            return font
    return None


def _drawn(font: ImageFont.FreeTypeFont | ImageFont.ImageFont, character: str) -> tuple[object, bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)


@lru_cache(4096)
def text(words: str, size: int) -> Image.Image:
    """A line of text as a mask ("L"), as wide as its letters and as high as any line of this size."""
    width = sum(_advance(character, size) for character in words)
    mask = Image.new("L", (max(1, round(width)), round(size * 1.3)))
    draw, x, baseline = ImageDraw.Draw(mask), 0.0, round(size * 0.98)
    for character in words:
        _letter(draw, character, x, baseline, size)
        x += _advance(character, size)
    return mask


def shortened(words: str, longest: int) -> str:
    """At most so many characters; what cannot be seen is spelled."""
    spelled = "".join(SPELLED.get(c, c if unicodedata.category(c)[0] != "C" else f"\\x{ord(c):02x}") for c in words)
    return spelled if len(spelled) <= longest else spelled[: longest - 1] + "…"


SPELLED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _advance(character: str, size: int) -> float:
    font = font_of(character, size)
    if font is not None:
        return font.getlength(character)
    base = _plain(character, size)
    return _advance(base, size) if base else size * 0.95


def _plain(character: str, size: int) -> str | None:
    """The letter under an accent, where some font has it."""
    parts = unicodedata.normalize("NFD", character)
    return parts[0] if len(parts) == 2 and unicodedata.combining(parts[1]) and font_of(parts[0], size) else None


def _letter(draw: ImageDraw.ImageDraw, character: str, x: float, baseline: int, size: int) -> None:
    font = font_of(character, size)
    if font is not None:
        draw.text((x, baseline), character, fill=255, font=font, anchor="ls")
        return
    base, width = _plain(character, size), _advance(character, size)
    if base is None:  # a box with the character's number, as browsers draw it
        _box(draw, f"{ord(character):04X}", x, baseline, size)
        return
    _letter(draw, base, x, baseline, size)
    y, thick = baseline - size * (0.92 if base.isupper() else 0.78), max(1, size // 12)
    middle, gap = x + width / 2, size * 0.16
    if unicodedata.normalize("NFD", character)[1] == "\u0308":
        for dot in (middle - gap, middle + gap):
            draw.ellipse((dot - thick, y - thick, dot + thick, y + thick), fill=255)
    else:
        draw.line((middle - gap, y, middle + gap, y), fill=255, width=thick)


def _box(draw: ImageDraw.ImageDraw, number: str, x: float, baseline: int, size: int) -> None:
    top, right = baseline - size * 0.85, x + size * 0.85
    draw.rectangle((x + 1, top, right, baseline), outline=255)
    font = ImageFont.load_default(max(4, round(size * 0.4)))
    for row, pair in enumerate((number[:-2][-2:], number[-2:])):
        place = (x + 1 + size * 0.42, top + size * 0.43 * (row + 0.5))
        draw.text(place, pair, fill=255, font=font, anchor="mm")
