"""Matplotlib figures without pyplot or global state: one style, fonts with fallbacks, the same bytes every time.

Import this module only where something is drawn: matplotlib takes half a second to load.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from html import escape

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from zoo.palette import LIGHT

# Matplotlib brings DejaVu Sans along; the others have what it lacks: Chinese, Japanese, Korean, Indic scripts, emoji
FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "PingFang SC",
    "Microsoft YaHei", "Arial Unicode MS", "Noto Sans Devanagari", "Noto Emoji", "Arial",
)  # fmt: skip
UNITS = 72  # units per inch: sizes of figures are in points, of which a page shows one per CSS pixel
SALT = "zoo"
ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


@contextmanager
def style() -> Iterator[None]:
    """A context, or a decorator: matplotlib's defaults, whatever the user's matplotlibrc says, and the style of zoo."""
    if matplotlib.rcParams["svg.hashsalt"] == SALT:  # within it already
        yield
        return
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": list(_fonts()),
                "text.parse_math": False,  # "$" in a name is a dollar sign
                "text.color": LIGHT["ink"],
                "axes.labelcolor": LIGHT["ink"],
                "axes.edgecolor": LIGHT["grey"],
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.formatter.useoffset": False,
                "xtick.color": LIGHT["frame"],
                "ytick.color": LIGHT["frame"],
                "xtick.labelcolor": LIGHT["grey"],
                "ytick.labelcolor": LIGHT["grey"],
                "grid.color": LIGHT["frame"],
                "lines.solid_capstyle": "round",
                "svg.fonttype": "none",  # text stays text
                "svg.hashsalt": SALT,  # the same identifiers every time
            }
        )
        warnings.filterwarnings("ignore", "Glyph")  # a visible box stands for it
        yield


@lru_cache(1)
def _fonts() -> tuple[str, ...]:
    """Those of FONTS that are installed: matplotlib warns of each that is not."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in FONTS if name in installed)


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of so many units."""
    figure = Figure(figsize=(width / UNITS, height / UNITS), dpi=UNITS, facecolor=LIGHT["paper"])
    FigureCanvasAgg(figure)
    return figure


@style()
def to_image(figure: Figure, scale: float = 2.0) -> Image.Image:
    """The figure as RGB pixels, ``scale`` of them per unit."""
    figure.set_dpi(UNITS * scale)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG file, two pixels per unit."""
    file = io.BytesIO()
    to_image(figure).save(file, "PNG")
    return file.getvalue()


@style()
def to_svg(figure: Figure, title: str) -> str:
    """The figure as an ``<svg>`` element for an HTML page, whose colours are CSS variables named as in the palette."""
    figure.set_dpi(UNITS)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # numbered per figure: not unique on a page of several
    text = re.sub(r'style="[^"]*"', lambda match: re.sub("#[0-9a-f]{6}", _variable, match[0]), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1).strip()


def _variable(colour: re.Match[str]) -> str:
    name = next((name for name, value in LIGHT.items() if value == colour[0]), None)
    return f"var(--{name},{colour[0]})" if name else colour[0]


@style()
def text_width(figure: Figure, words: str, size: float) -> float:
    """The width of a line of text in units."""
    text = Text(0, 0, words, fontsize=size, figure=figure)
    return float(text.get_window_extent(figure.canvas.get_renderer(), dpi=UNITS).width)  # type: ignore[attr-defined]


def printable(text: str, longest: int | None = None) -> str:
    """At most so many characters; control characters are escaped, accents joined with their letters."""
    joined = unicodedata.normalize("NFC", text)
    visible = "".join(ESCAPES.get(c, c if unicodedata.category(c)[0] != "C" else f"\\x{ord(c):02x}") for c in joined)
    return visible if longest is None or len(visible) <= longest else visible[: longest - 1] + "…"
