"""The names of variants, `position=rope,max_steps=200`: shorter ones, and which variant a text means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

DEFAULT = "default"


def pieces(variant: str) -> list[str]:
    """The options in which a variant differs from its recipe, as its folder's name has them; their order varies."""
    last = variant.rpartition("/")[2]
    return [] if last == DEFAULT else last.split(",")


def short_names(variants: Iterable[str]) -> dict[str, str]:
    """Names without the options that all variants share, such as a number of steps; "default" where none is left.

    A single variant keeps its name, which would otherwise be that of another.
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


def closest_to_recipe(variants: Iterable[str]) -> str:
    """The variant that differs least from its recipe, the first of equals."""
    return min(variants, key=lambda name: len(pieces(name)))


def match_variant(text: str, choices: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The variants that ``text`` may mean: by name, or by what they choose, `position=rope` or `rope`.

    ``choices`` holds the options of each variant by its name.
    """
    exact = [name for name in choices if text in (name, name.rpartition("/")[2], name.partition("/")[0])]
    exact = exact or [name for name, short in short_names(choices).items() if text == short]
    exact = exact or [name for name in choices if sorted(pieces(text)) == sorted(pieces(name))]
    if exact:
        return exact
    words = [word.strip().casefold() for word in text.split(",") if word.strip()]
    return [name for name, choice in choices.items() if words and all(_chooses(word, name, choice) for word in words)]


def _chooses(word: str, name: str, choice: Mapping[str, str]) -> bool:
    values = {f"{key.rpartition('.')[2]}={value}" for key, value in choice.items()}
    values |= {f"{key}={value}" for key, value in choice.items()} | set(choice.values()) | set(pieces(name))
    return word in {value.casefold() for value in values}
