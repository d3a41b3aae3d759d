"""The pages of lessons: scripts in percent format, their cells, and the inputs that a reader may change.

A page is one Python file of ``pages``. A line ``# %%`` begins a cell of code, ``# %% tags=["slow"]`` one
that measures or trains, and ``# %% [markdown] lang="en"`` a text. Each text stands in every language in front of the
code that it is about. The first cell assigns the literal ``LESSON``: title, summary, inputs and the number of
exercises, so that lessons are listed and inputs are checked without running a page. Needs no torch.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.registry import suggest

LANGUAGES = ("en", "zh")
FOLDER = Path(__file__).parent / "pages"
HEADER = re.compile(r'# %%(?P<text> \[markdown\])?(?: lang="(?P<language>\w+)")?(?: tags=\["(?P<tag>\w+)"\])?\s*')
SLOW = "slow"  # tag of a cell that measures or trains; exercises do not need it

Text = str | Mapping[str, str]  # the same in every language, or one text for each


@dataclass(frozen=True)
class Cell:
    """A part of a page: a text in one language, or code."""

    content: str
    line: int  # of its first line in the file
    language: str = ""  # none: code
    slow: bool = False


@dataclass(frozen=True)
class Lesson:
    """One page."""

    path: Path

    @property
    def name(self) -> str:
        """What the command calls it."""
        return self.path.stem

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Texts and code in order."""
        return tuple(split_cells(self.path.read_text(encoding="utf-8")))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The literal LESSON of its first cell of code."""
        tree = ast.parse(next(cell.content for cell in self.cells if not cell.language))
        (value,) = (
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LESSON"
        )
        return ast.literal_eval(value)

    @property
    def inputs(self) -> dict[str, dict[str, Any]]:
        """What a reader may change: default, bounds, and a phrase in each language, by name."""
        return self.facts["inputs"]


SEPARATOR = re.compile(r"\s*,\s*|\s+")  # of several numbers
BRACKETS = re.compile(r"[(\[](.*)[)\]]")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")


def split_cells(source: str) -> list[Cell]:
    """The cells of a script in percent format. Raises ValueError for a header that cannot be read."""
    result: list[Cell] = []
    header: re.Match[str] | None = None
    lines: list[str] = []
    start = 1
    for number, line in enumerate([*source.splitlines(), "# %%"], 1):
        if not line.startswith("# %%"):
            lines.append(line)
            continue
        if header is not None and any(one.strip() for one in lines):
            content = "\n".join(lines)
            if header["text"]:
                content = re.sub(r"^# ?", "", content, flags=re.MULTILINE).strip()
            result.append(Cell(content, start, header["language"] or "", header["tag"] == SLOW))
        header = HEADER.fullmatch(line)
        if header is None:
            raise ValueError(f"line {number}: {line!r} begins no cell")
        lines, start = [], number + 1
    return result


def lessons() -> dict[str, Lesson]:
    """All lessons by name, in the order in which they are read."""
    pages = [Lesson(path) for path in FOLDER.glob("*.py")]
    return {lesson.name: lesson for lesson in sorted(pages, key=lambda lesson: lesson.facts["order"])}


def lesson_names() -> list[str]:
    """The names of all lessons, without reading them."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def get_lesson(name: str) -> Lesson:
    """The lesson of a name. Raises UsageError for an unknown one."""
    every = lessons()
    name = name if name in every else name.lower()  # as names of recipes and parts
    if name not in every:
        raise UsageError(f"no lesson {name!r}.{suggest(name, every)} Lessons: {', '.join(every)}. See: zoo lesson")
    return every[name]


def parse_inputs(lesson: Lesson, settings: Sequence[str]) -> dict[str, Any]:
    """The inputs of a lesson with those of ``settings`` (NAME=VALUE) changed; the last of a name counts.

    Raises UsageError for an unknown name, and for a value of another type, length or size.
    """
    result = {name: facts["default"] for name, facts in lesson.inputs.items()}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(
                f"'--set' needs NAME=VALUE, got {setting!r}. Inputs of {lesson.name}: {', '.join(result)}."
            )
        if name not in result:
            raise UsageError(
                f"lesson {lesson.name} has no input {name!r}.{suggest(name, result)} Its inputs: {', '.join(result)}."
            )
        result[name] = parse_value(f"'--set {name}'", text, lesson.inputs[name])
    return result


def parse_value(label: str, text: str, facts: Mapping[str, Any]) -> Any:
    """A value like ``facts["default"]`` from its text. Raises UsageError, which begins with ``label``.

    Several numbers may stand in brackets, with spaces in place of commas; one may have commas between thousands.
    """
    default = facts["default"]
    items = default if isinstance(default, list) else [default]
    kind, stripped = type(items[0]), text.strip()
    if isinstance(default, list):
        words = SEPARATOR.split(BRACKETS.sub(r"\1", stripped).strip())
    else:
        words = [stripped.replace(",", "") if THOUSANDS.fullmatch(stripped) else stripped]
    least, most = facts.get("least", -math.inf), facts.get("most", math.inf)
    try:
        values = [kind(word) for word in words]
        fits = len(values) == len(items) and all(
            kind is str or (least <= value <= most and value % facts.get("multiple", value or 1) == 0)
            for value in values
        )
    except ValueError:
        fits = False
    if not fits or "" in words:
        raise UsageError(f"{label} must be {requirement(facts)}, got {text!r}.")
    return values if isinstance(default, list) else values[0]


def requirement(facts: Mapping[str, Any]) -> str:
    """What a value like ``facts["default"]`` must be, as a phrase."""
    default = facts["default"]
    many = isinstance(default, list)
    kind = type(default[0] if many else default)
    singular, plural = {int: ("a whole number", "whole numbers"), float: ("a number", "numbers"), str: ("a word",) * 2}[
        kind
    ]
    bounds = [f"at {name} {facts[name]:g}" for name in ("least", "most") if name in facts]
    if "multiple" in facts:
        bounds.append(f"a multiple of {facts['multiple']}")
    text = f"{len(default)} {plural} with commas" if many else singular
    return f"{text}, {' and '.join(bounds)}" if bounds else text
