"""The result of a contract as a small picture for a README: SVG, drawn without a service or a font file."""

from __future__ import annotations

from xml.sax.saxutils import escape

COLOURS = {"passed": "#2e7d32", "failed": "#c62828", "unknown": "#6e6e6e"}
LABEL = "zoo contract"
CHARACTER, MARGIN, HEIGHT = 6.6, 6, 20  # pixels; the width of a character of the font at size 11, on average


def badge(message: str, state: str) -> str:
    """The text of an SVG file with a message behind the label; ``state`` is passed, failed or unknown."""
    widths = [round(len(text) * CHARACTER) + 2 * MARGIN for text in (LABEL, message)]
    middles = [widths[0] / 2, widths[0] + widths[1] / 2]
    title, words = escape(f"{LABEL}: {message}"), [escape(LABEL), escape(message)]
    size = f'width="{sum(widths)}" height="{HEIGHT}"'
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f'<rect {size} rx="3" fill="{COLOURS[state]}"/>',
        f'<rect width="{widths[0]}" height="{HEIGHT}" rx="3" fill="#424242"/>',
        '<g fill="#ffffff" text-anchor="middle" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">',
        *(f'<text x="{middle:g}" y="14">{text}</text>' for middle, text in zip(middles, words, strict=True)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(rows) + "\n"
