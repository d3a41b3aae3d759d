"""The names of variants, `max_steps=200,position=rope`: short ones, and which is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

DEFAULT = "default"


def pieces(variant: str) -> list[str]:
    """What a variant differs in from its recipe, as its folder is named."""
    last = variant.rpartition("/")[2]
    return [] if last == DEFAULT else last.split(",")


def concise(variants: Iterable[str]) -> dict[str, str]:
    """Names without the pieces that all share, such as a number of steps; "default" where none is left.

    One variant alone shares nothing: it keeps its name, which would else be that of another.
    """
    names = list(variants)
    if len(names) == 1:
        return {names[0]: names[0]}
    shared = set.intersection(*(set(pieces(name)) for name in names)) if names else set()
    short = {}
    for name in names:
        recipe, slash, _ = name.rpartition("/")
        short[name] = recipe + slash + (",".join(p for p in pieces(name) if p not in shared) or DEFAULT)
    return short if len(set(short.values())) == len(names) else {name: name for name in names}


def plainest(variants: Iterable[str]) -> str:
    """The variant that differs least from its recipe, the first of equals."""
    return min(variants, key=lambda name: len(pieces(name)))


def match_variant(text: str, choices: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The variants that ``text`` may stand for: by name, or by what they chose, `position=rope` or `rope`."""
    exact = [name for name in choices if text in (name, name.rpartition("/")[2], name.partition("/")[0])]
    exact = exact or [name for name, short in concise(choices).items() if text == short]
    if exact:
        return exact
    pieces = [piece.strip().casefold() for piece in text.split(",") if piece.strip()]
    return [name for name, choice in choices.items() if pieces and all(_chose(piece, name, choice) for piece in pieces)]


def _chose(piece: str, name: str, choice: Mapping[str, str]) -> bool:
    spellings = {f"{key.rpartition('.')[2]}={value}".casefold() for key, value in choice.items()}
    spellings |= {f"{key}={value}".casefold() for key, value in choice.items()}
    return piece in {
        *spellings,
        *(value.casefold() for value in choice.values()),
        *(one.casefold() for one in pieces(name)),
    }
