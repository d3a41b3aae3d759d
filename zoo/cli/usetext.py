"""fill, tag and classify texts from the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zoo.cli.words import Asked
from zoo.console import printable
from zoo.errors import UsageError

Line = Callable[[dict[str, Any]], None]
Lines = Callable[[], Iterable[str]]


def texts(asked: Asked, lines: Lines) -> Iterable[str]:
    """The texts that were given, or the lines of standard input."""
    if len(asked.words) > 1:
        raise UsageError(f"{asked.words[1]!r} is one word too many. A text is given with --text.")
    return asked.get("text") or lines()


def fill(asked: Asked, model: Any, line: Line, lines: Lines) -> None:
    """Texts with their blanks filled, or JSON."""
    for text in texts(asked, lines):
        found = model.fill(text, **asked.some("top"))[0]
        if asked.get("json"):
            blanks = [[guess._asdict() for guess in guesses] for guesses in found.guesses]
            line({"text": text, "filled": found.text, "blanks": blanks})
        else:
            print(found.text.replace("\n", " "), flush=True)


def tag(asked: Asked, model: Any, line: Line, lines: Lines) -> None:
    """A token and its class per line, an empty line after each text, or JSON."""
    for text in texts(asked, lines):
        found = model.tag(text)[0]
        if asked.get("json"):
            line({"text": text, "tokens": [one._asdict() for one in found]})
        else:
            print("\n".join(f"{printable(one.text)}\t{printable(one.label)}" for one in found), end="\n\n", flush=True)


def classify(asked: Asked, model: Any, line: Line, lines: Lines) -> None:
    """The likeliest classes of each text, or JSON."""
    if asked.get("resize"):
        raise UsageError("--resize is for images, and this model names texts.")
    for text in texts(asked, lines):
        guesses = model.classify(text, **asked.some("top"))[0]
        if asked.get("json"):
            line({"text": text, "classes": [guess._asdict() for guess in guesses]})
        else:
            print("\t".join(f"{printable(guess.label)} {guess.probability:.3f}" for guess in guesses), flush=True)
