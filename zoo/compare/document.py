"""What is said of a comparison, in sections, and the one way in which they become terminal text and Markdown."""

from __future__ import annotations

import itertools
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zoo.cli.table_printing import is_terminal
from zoo.compare.comparability import Flag
from zoo.console import printable

WIDTH, LABEL, NARROW = 100, 26, 14
COLOURS = {
    "better": "32", "as good as": "32", "worse": "31", "not comparable": "33", "no verdict": "2",
    "not distinguishable": "2",
}  # fmt: skip


def terminal_width() -> int:
    """The columns of the terminal, at most 160; WIDTH without one."""
    return min(shutil.get_terminal_size((WIDTH, 0)).columns, 160) if is_terminal() else WIDTH


@dataclass(frozen=True)
class Section:
    """A table with its title, a paragraph before it, and ``notes`` on how to read it, which text has at its end.

    ``words`` are the verdicts on the rows, by which they are coloured; ``narrow`` is the table for a terminal, by
    default the same; ``items`` are lines instead of a table. Text has the section only if ``in_text``.
    """

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    text: str = ""
    notes: Sequence[str] = ()
    items: Sequence[str] = ()
    words: Sequence[str] = ()
    narrow: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None
    in_text: bool = True


@dataclass(frozen=True)
class Report:
    """A question, the sentences that answer it, sections, what is not equal, and the commands that made it."""

    question: str
    sentences: Sequence[str]
    sections: Sequence[Section]
    flags: Sequence[Flag]
    commands: Sequence[str] = ()

    def as_text(self, width: int = WIDTH, colour: bool = False) -> str:
        """The report in at most ``width`` columns; ``colour`` adds ANSI colours."""
        sections = [section for section in self.sections if section.in_text]
        lines = wrap_text(self.question, width, "1" if colour else "")
        lines += [*wrap_text(" ".join(self.sentences), width), ""]
        for section in sections:
            lines += [*wrap_text(section.text, width), ""] if section.text else []
            styles = [COLOURS.get(word, "") if colour else "" for word in section.words]
            table = section.narrow or (section.headings, section.rows)
            lines += [*align_columns(*table, width, styles), ""] if table[0] else []
        for item in itertools.chain.from_iterable(section.items for section in sections):
            lines += wrap_text(item, width)
        for note in itertools.chain.from_iterable(section.notes for section in sections):
            lines += wrap_text(note, width, "2" if colour else "")
        for flag in self.flags:
            style = "31" if colour and flag.fatal else "33" if colour else ""
            lines += wrap_text(f"! {flag.sentence}", width, style, "  ")
        return "\n".join(lines)

    def as_markdown(self) -> str:
        """The same as Markdown, for a file, a pull request or TensorBoard's Text tab."""
        parts = [f"# {self.question}", " ".join(self.sentences)]
        for section in self.sections:
            parts += [f"## {section.title}"] if section.title else []
            parts += [section.text] if section.text else []
            parts += [markdown_table(section.headings, section.rows)] if section.headings else []
            parts += ["\n".join(lines) for lines in (section.notes, [f"- {item}" for item in section.items]) if lines]
        if self.flags:
            lines = [f"- {'**refused** ' if flag.fatal else ''}{escape_markdown(flag.sentence)}" for flag in self.flags]
            parts += ["## What is not equal", "\n".join(lines)]
        if self.commands:
            parts += ["## Made by", "```bash\n" + "\n".join(self.commands) + "\n```"]
        return "\n\n".join(parts) + "\n"


def align_columns(
    headings: Sequence[str], rows: Iterable[Sequence[str]], width: int, styles: Sequence[str] = ()
) -> list[str]:
    """Aligned columns without empty ones, the first and the last wrapped; stacked rows if they are too wide."""
    lines = [list(headings), *map(list, rows)]
    filled_columns = [index for index in range(len(headings)) if index == 0 or any(line[index] for line in lines[1:])]
    lines = [[line[index] for index in filled_columns] for line in lines]
    widths = [max(len(line[index]) for line in lines) for index in range(len(filled_columns))]
    spare = width - sum(widths[1:-1]) - 2 * (len(widths) - 1)
    if spare < 2 * NARROW and spare < widths[0] + widths[-1]:
        return _stacked_rows(lines, width, styles)
    widths[0] = min(widths[0], max(NARROW, spare - max(NARROW, min(widths[-1], spare - LABEL))))
    result = []
    for number, line in enumerate(lines):
        ends = ((line[0], widths[0]), (line[-1], spare - widths[0]))
        label_lines, last = (textwrap.wrap(cell, wide) or [""] for cell, wide in ends)
        for part, (left, right) in enumerate(itertools.zip_longest(label_lines, last, fillvalue="")):
            middle = line[1:-1] if part == 0 else [""] * (len(line) - 2)
            cells = [cell.ljust(wide) for cell, wide in zip([left, *middle], widths[:-1], strict=True)]
            result.append(_apply_style("  ".join([*cells, right]).rstrip(), _style(styles, number)))
    return result


def plain_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line per row, of columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _stacked_rows(lines: Sequence[Sequence[str]], width: int, styles: Sequence[str]) -> list[str]:
    """A paragraph per row: its label, and below it the cells with their headings."""
    result = []
    for number, line in enumerate(lines[1:], 1):
        cells = [f"{heading} {cell}" for heading, cell in zip(lines[0][1:], line[1:], strict=True) if cell]
        style = _style(styles, number)
        result += [*wrap_text(line[0], width, style), *wrap_text("  " + " · ".join(cells), width, style, "  ")]
    return result


def _style(styles: Sequence[str], number: int) -> str:
    return styles[number - 1] if 0 < number <= len(styles) else ""


def wrap_text(text: str, width: int, style: str = "", indent: str = "") -> list[str]:
    """Printable lines of at most ``width`` columns; ``indent`` begins all but the first, ``style`` is an ANSI one."""
    return [_apply_style(line, style) for line in textwrap.wrap(text, width, subsequent_indent=indent)]


def _apply_style(text: str, style: str) -> str:
    text = printable(text)
    return f"\x1b[{style}m{text}\x1b[0m" if style else text


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, with its special characters escaped."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(escape_markdown(cell) for cell in line)} |" for line in lines)


def escape_markdown(cell: str) -> str:
    """Text with Markdown's special characters escaped."""
    return "".join(f"\\{c}" if c in "|*_`<[]" else c for c in cell)
