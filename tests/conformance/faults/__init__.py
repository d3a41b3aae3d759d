"""Parts with one realistic mistake each, which the docstring of their class names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zoo.registry import kind_of


@dataclass(frozen=True)
class Fault:
    """A wrong part, and which checks of its kind's contract must catch it, each with a word that its sentence holds."""

    part: type
    checks: dict[str, str]
    parent: type  # the same part without the mistake
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{kind_of(self.part)}-{self.part.__name__}"


FAULTS: list[Fault] = []


def planted(options: dict[str, Any] | None = None, parent: type | None = None, **checks: str) -> Callable[[type], type]:
    """Plant a class: ``check=word``, the options it is checked with, and its parent unless that is its base."""

    def plant(part: type) -> type:
        part.__test__ = False
        FAULTS.append(Fault(part, checks, parent or part.__base__, options or {}))
        return part

    return plant
