"""Events of a lesson as text for a terminal, and as JSON. Needs no torch."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from zoo_learn.events import Event, flatten
from zoo_learn.source import LANGUAGES, Text

WIDTH = 100
BAR = 40  # characters of the longest bar
BETWEEN_CHINESE = re.compile(r"(?<=[\u2e80-\uffff])\s*\n\s*(?=[\u2018-\u201d\u2e80-\uffff])")  # needs no space
SHADES = " ░▒▓█"
MEASURED, TIMED = "≈", "~"  # in front of a number that differs a little, or much, between machines
WORDS = {
    "printed": ("printed", "讲义"),
    "computed": ("computed", "计算"),
    "wrong": ("wrong in print", "讲义有误"),
    "claim": ("the notes say", "讲义说"),
    "correct": ("right is", "正确的是"),
    "why": ("why", "原因"),
    "exercise": ("Exercise", "练习"),
}


def word(name: str, language: str) -> str:
    """A word of the frame around what a page reports."""
    return WORDS[name][LANGUAGES.index(language)]


def in_language(text: Text, language: str) -> str:
    """A text in one of its languages."""
    return text if isinstance(text, str) else text[language]


def as_json(event: Event, language: str) -> dict[str, Any]:
    """An event as a document, with its texts in one language."""

    def translate(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == set(LANGUAGES):
            return value[language]
        if isinstance(value, dict):
            return {name: translate(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [translate(one) for one in value]
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)

    fields = {name: translate(value) for name, value in event.fields.items()}
    return {"kind": event.kind, **fields, "rows": list(event.rows), "measured": event.measured}


def render(event: Event, language: str) -> str:
    """An event as lines for a terminal."""
    return {
        "text": _text, "code": _code, "value": _value, "comparison": _comparison, "claim": _claim, "table": _table,
        "bars": _bars, "heat": _heat, "exercise": _exercise,
    }[event.kind](event, language)  # fmt: skip


def number(value: Any, digits: int) -> str:
    """A number with at most so many digits after the point; whole ones with commas; words as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value and abs(value) < 0.5 * 10.0**-digits:
        return f"{value:.1e}"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def display_width(text: str) -> int:
    """Columns of a terminal that a text takes: two for a Chinese character."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def wrap(text: str, indent: str = "") -> list[str]:
    """Lines of at most WIDTH columns, broken at spaces and beside Chinese characters."""
    pieces: list[str] = []
    for letter in " ".join(BETWEEN_CHINESE.sub("", text).split()):
        wide = unicodedata.east_asian_width(letter) in "WF"
        ideograph = wide and unicodedata.category(letter)[0] == "L"
        behind_wide = bool(pieces) and not wide and display_width(pieces[-1][-1]) == 2
        opened = bool(pieces) and pieces[-1][-1] in "“（"
        if not pieces or letter == " " or pieces[-1].endswith(" ") or ((ideograph or behind_wide) and not opened):
            pieces.append(letter)
        else:
            pieces[-1] += letter
    lines, line = [], indent
    for piece in pieces:
        if display_width(line) + display_width(piece.rstrip()) > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = indent + piece.lstrip()
        else:
            line += piece
    return [*lines, line.rstrip()]


def pad(text: str, width: int, right: bool = False) -> str:
    """A text with spaces to a width in columns."""
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def _text(event: Event, language: str) -> str:
    lines: list[str] = []
    for paragraph in event.fields["text"][language].split("\n\n"):
        heading = paragraph.startswith("#")
        plain_text = paragraph.lstrip("# ").replace("**", "")
        lines += ["", *wrap(plain_text)]
        if heading:
            lines.append(("═" if paragraph.startswith("# ") else "─") * max(map(display_width, wrap(plain_text))))
    return "\n".join(lines)


def _code(event: Event, language: str) -> str:
    return "\n".join(["", *(f"    │ {line}" for line in event.fields["code"].splitlines())])


def numbers(values: Sequence[Any], digits: int, mark: str = "") -> list[str]:
    """Numbers of one vector or matrix, with as many digits after the point as the one that needs most of them."""
    texts = [number(value, digits) for value in values]
    places = max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=0)
    return [
        mark
        + (f"{value:,.{places}f}" if isinstance(value, float) and "e" not in text and text[-1:].isdigit() else text)
        for value, text in zip(values, texts, strict=True)
    ]


def _numbers(value: Any, digits: int, mark: str = "") -> str:
    if not isinstance(value, list):
        return mark + number(value, digits)
    return f"[{'  '.join(numbers(flatten(value), digits, mark))}]"


def _value(event: Event, language: str) -> str:
    fields, mark = event.fields, MEASURED if event.measured else ""
    label, value = in_language(fields["label"], language), fields["value"]
    if isinstance(value, list) and value and isinstance(value[0], list):
        texts = iter(numbers(flatten(value), fields["digits"], mark))
        cells = [[next(texts) for _ in line] for line in value]
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join([f"  {label} =", *(f"    [{line}]" for line in lines)])
    return f"  {label} = {_numbers(value, fields['digits'], mark)}"


def _comparison(event: Event, language: str) -> str:
    fields = event.fields
    sign, note = ("✓", "") if fields["right"] else ("✗", f"  ← {word('wrong', language)}")
    many = isinstance(fields["computed"], list)
    texts = "  ".join(fields["printed"])
    printed = f"{word('printed', language)} {f'[{texts}]' if many else texts}"
    computed = f"{word('computed', language)} {_numbers(fields['computed'], fields['digits'])}"
    lines = [f"{sign} {in_language(fields['label'], language)}: {printed}, {computed}{note}"]
    if fields["why"]:
        lines += wrap(f"{word('why', language)}: {in_language(fields['why'], language)}", "    ")
    return "\n".join(lines)


def _claim(event: Event, language: str) -> str:
    fields = event.fields
    sign = "✓" if fields["right"] else "✗"
    lines = wrap(f"{word('claim', language)}: {in_language(fields['statement'], language)}", "  ")
    lines[0] = f"{sign} {lines[0][2:]}"
    lines += wrap(f"{word('correct', language)}: {in_language(fields['correct'], language)}", "    ")
    if fields["numbers"] is not None:
        lines.append(f"    {word('computed', language)} {_numbers(fields['numbers'], fields['digits'])}")
    return "\n".join(lines)


def _table(event: Event, language: str) -> str:
    fields = event.fields
    marks = {**dict.fromkeys(fields["measured_columns"], MEASURED), **dict.fromkeys(fields["timed_columns"], TIMED)}
    cells = [[in_language(one, language) for one in fields["headings"]]]
    numeric = [False] * len(cells[0])
    for line in fields["lines"]:
        texts = []
        for column, item in enumerate(line):
            is_number = isinstance(item, int | float | list)
            numeric[column] |= is_number
            mark = marks.get(column, "") if is_number else ""
            texts.append(_numbers(item, fields["digits"], mark) if is_number else in_language(item, language))
        cells.append(texts)
    widths = [max(display_width(line[column]) for line in cells) for column in range(len(cells[0]))]

    def join(line: Sequence[str]) -> str:
        parts = zip(line, widths, numeric, strict=True)
        return "  " + "  ".join(pad(text, width, right) for text, width, right in parts).rstrip()

    return "\n".join([join(cells[0]), "  " + "─" * (sum(widths) + 2 * len(widths) - 2), *map(join, cells[1:])])


def _bars(event: Event, language: str) -> str:
    fields, mark = event.fields, MEASURED if event.measured else ""
    values: dict[str, float] = fields["values"]
    width = max(map(display_width, values))
    most = max(values.values(), default=0.0)
    least = min((value for value in values.values() if value > 0), default=1.0) / 1000 if fields["log"] else 0.0
    lines = [f"  {in_language(fields['label'], language)}"]
    for name, value in values.items():
        if not math.isfinite(value) or most <= 0:
            length = 0.0
        elif fields["log"]:
            length = math.log(max(value, least) / least) / math.log(most / least)
        else:
            length = max(value, 0.0) / most
        lines.append(f"    {pad(name, width)} {'█' * round(BAR * length)} {mark}{number(value, fields['digits'])}")
    return "\n".join(lines)


def _heat(event: Event, language: str) -> str:
    fields = event.fields
    matrix: list[list[float]] = fields["matrix"]
    items = flatten(matrix)
    low, span = min(items), (max(items) - min(items)) or 1.0
    names, columns = ([in_language(name, language) for name in fields[key]] for key in ("names", "columns"))
    width = max(map(display_width, names))
    cell = max([2, *(display_width(name) + 1 for name in columns)])
    lines = [f"  {in_language(fields['label'], language)}"]
    if columns:
        lines.append("    " + " " * width + " " + "".join(pad(name, cell) for name in columns).rstrip())
    for name, line in zip(names, matrix, strict=True):
        shades = [SHADES[min(int((item - low) / span * len(SHADES)), len(SHADES) - 1)] for item in line]
        lines.append(f"    {pad(name, width)} " + "".join(pad(shade * (cell - 1), cell) for shade in shades).rstrip())
    return "\n".join(lines)


def _exercise(event: Event, language: str) -> str:
    title = f"{word('exercise', language)} {event.fields['number']}: "
    return "\n".join(["", *wrap(title + in_language(event.fields["question"], language), "  ")])
