"""fill, tag and classify texts from the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zoo.cli.words import ParsedOptions
from zoo.console import printable
from zoo.errors import UsageError

Line = Callable[[dict[str, Any]], None]
Lines = Callable[[], Iterable[str]]


def texts(options: ParsedOptions, lines: Lines) -> Iterable[str]:
    """The texts that were given, or the lines of standard input."""
    if len(options.words) > 1:
        raise UsageError(f"{options.words[1]!r} is one word too many. A text is given with --text.")
    return options.get("text") or lines()


def fill(options: ParsedOptions, model: Any, line: Line, lines: Lines) -> None:
    """Texts with their blanks filled, or JSON."""
    for text in texts(options, lines):
        result = model.fill(text, **options.some("top"))[0]
        if options.get("json"):
            blanks = [[guess._asdict() for guess in guesses] for guesses in result.guesses]
            line({"text": text, "filled": result.text, "blanks": blanks})
        else:
            print(result.text.replace("\n", " "), flush=True)


def tag(options: ParsedOptions, model: Any, line: Line, lines: Lines) -> None:
    """A token and its class per line, an empty line after each text, or JSON."""
    for text in texts(options, lines):
        result = model.tag(text)[0]
        if options.get("json"):
            line({"text": text, "tokens": [one._asdict() for one in result]})
        else:
            print("\n".join(f"{printable(one.text)}\t{printable(one.label)}" for one in result), end="\n\n", flush=True)


def classify(options: ParsedOptions, model: Any, line: Line, lines: Lines) -> None:
    """The likeliest classes of each text, or JSON."""
    if options.get("resize"):
        raise UsageError("--resize is for images, and this model names texts.")
    for text in texts(options, lines):
        guesses = model.classify(text, **options.some("top"))[0]
        if options.get("json"):
            line({"text": text, "classes": [guess._asdict() for guess in guesses]})
        else:
            print("\t".join(f"{printable(guess.label)} {guess.probability:.3f}" for guess in guesses), flush=True)
