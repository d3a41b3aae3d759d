"""What the site changes while Sphinx writes it: the language of Chinese pages, and docstrings as plain text."""

from __future__ import annotations

import re
from typing import Any

from pygments.lexers import TextLexer

HIDDEN_COLON = "\x00"


def register(app: Any) -> None:
    """Connect to Sphinx's events."""
    app.add_lexer("mermaid", TextLexer)  # a chart on code hosts; here its text, which is readable
    app.connect("html-page-context", set_language)
    app.connect("autodoc-process-docstring", escape_docstring, priority=100)  # before napoleon reads "Args:"
    app.connect("autodoc-process-docstring", restore_colons, priority=900)  # and behind it


def set_language(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Let browsers and screen readers know that a page is in Chinese."""
    if page.startswith("lessons/zh/"):
        context["language"] = "zh"


def escape_docstring(app: Any, what: str, name: str, owner: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with code in double backticks: other signs of reStructuredText mean themselves."""
    text = escape_markup("\n".join(lines))
    # napoleon would take what stands before the colon in an attribute's first line for its type
    lines[:] = (text.replace(":", HIDDEN_COLON) if what in ("attribute", "property") else text).split("\n")


def restore_colons(app: Any, what: str, name: str, owner: Any, options: Any, lines: list[str]) -> None:
    """Undo what ``escape_docstring`` does to colons."""
    lines[:] = [line.replace(HIDDEN_COLON, ":") for line in lines]


def escape_markup(text: str) -> str:
    """A text with ``*``, ``|``, single backticks and trailing underscores escaped outside of double backticks."""
    pieces = re.split(r"(``.+?``)", text, flags=re.DOTALL)
    pieces[::2] = [re.sub(r"([*|`])|_(?=\W|$)", lambda match: f"\\{match[0]}", piece) for piece in pieces[::2]]
    return "".join(pieces)
