"""The colours of weights: one ramp from almost white to a deep blue, in equal steps of lightness."""

import math

import numpy as np

INK, GREY, FRAME, PAPER = (31, 41, 55), (107, 114, 128), (203, 209, 217), (255, 255, 255)
GOLD = (232, 89, 12)  # outlines: far from every colour of the ramp


def srgb(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    """A colour of OKLCh (Ottosson, 2020), in which equal steps look equal, as sRGB in 0..1."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    cube = (
        (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3,
        (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3,
        (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3,
    )
    rows = (
        (4.0767416621, -3.3077115913, 0.2309699292),
        (-1.2684380046, 2.6097574011, -0.3413193965),
        (-0.0041960863, -0.7034186147, 1.7076147010),
    )
    linear = [sum(factor * part for factor, part in zip(row, cube, strict=True)) for row in rows]
    clipped = [min(max(value, 0.0), 1.0) for value in linear]
    red, green, blue = (12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in clipped)
    return red, green, blue


def _table() -> np.ndarray:
    steps = [step / 255 for step in range(256)]
    rows = [srgb(0.985 - 0.70 * t, 0.14 * math.sin(math.pi * t**0.8 * 0.82), 218 + 52 * t) for t in steps]
    return np.round(np.array(rows) * 255).astype(np.uint8)


TABLE = _table()


def colours(values: np.ndarray) -> np.ndarray:
    """Numbers in 0..1 to colours, uint8 (..., 3)."""
    return TABLE[np.round(np.clip(values, 0.0, 1.0) * 255).astype(np.int64)]
