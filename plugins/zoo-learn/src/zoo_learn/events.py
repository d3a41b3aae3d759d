"""What a page reports, as values. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zoo_learn.source import LANGUAGES, Text

Pair = tuple[str, str]  # a text in English and in Chinese


@dataclass(frozen=True)
class Event:
    """One thing that a page has reported.

    ``fields`` hold texts, values and numbers by name, ``rows`` the examples of the course that it is about.
    ``measured``: numbers come from a measurement or a training, and differ a little on another machine.
    """

    kind: str  # text, code, value, comparison, claim, table, bars, heat, exercise
    fields: Mapping[str, Any]
    rows: tuple[str, ...] = ()
    measured: bool = False


def both(text: Pair | str) -> Text:
    """A text by language, or the same for all."""
    return text if isinstance(text, str) else dict(zip(LANGUAGES, text, strict=True))


def as_lists(value: Any) -> Any:
    """A tensor as nested lists of numbers; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value


def flatten(value: Any) -> list[Any]:
    """The items of nested lists in order."""
    return [item for one in value for item in flatten(one)] if isinstance(value, list) else [value]
