"""`zoo matrix`: build and train every combination of installed parts, and print a table of the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zoo import console, registry
from zoo.command_line import ParsedOptions
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.registry import Part

if TYPE_CHECKING:
    from zoo.conformance.combinations import Cell, CombinationOutcome

SIGN = "<!-- written by: "
INTRODUCTION = """\
# What works with what

Every combination was built and trained for two steps, with sizes too small to learn anything: a finite loss, a finite
gradient for every weight, and every weight moved (an expert of a mixture may wait {patience} steps for a token).

✓ trains. A number is the sentence at the end of this page that refuses the combination when it is built. Where tasks
differ there is a mark each for {tasks}."""
MIXING = """\
## Attention, position and backend

Norm, feed-forward and block are the default ones. "None named" leaves the backend to the attention."""
COMPUTING = """\
## Norm, feed-forward and block

Attention, position and backend are the default ones."""
LAYERS = """\
## One layer

A stack of two layers by default, whose first one alone has this part (`overrides`)."""
UNNAMED = "none named"


def run(options: ParsedOptions) -> int:
    """`zoo matrix`."""
    target = Path(options.get("write")) if options.get("write") is not None else None
    if target:
        _check_target(target)
    from zoo.cli import doctor, warning_filters

    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.conformance import combinations
    from zoo.plugins.safe_import import contain_import

    with contain_import():  # a part may print, or call sys.exit
        mixed = list(_with_count("attention, position, backend", combinations.cells(combinations.MIXING)))
        computed = list(_with_count("norm, feed-forward, block", combinations.cells(combinations.COMPUTING)))
        layers = list(_with_count("one layer", combinations.layer_cells()))
    text = matrix_page(mixed, computed, layers, target)
    every = [*mixed, *computed, *layers]
    if target:
        try:
            atomic_files.write_text(target, text)
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
        print(f"{len(every)} combinations → {target}")
    else:
        print(text, end="")
    broken = [cell for cell in every if cell.verdict.status == "BROKEN"]
    for cell in broken[:3]:
        print(f"{cell.task} with {_parts(cell)}: {cell.verdict}", file=sys.stderr)
    if broken:
        print(f"{len(broken)} of {len(every)} combinations are broken", file=sys.stderr)
    return 1 if broken else 0


def matrix_page(
    mixed: Iterable[Cell], computed: Iterable[Cell], layers: Iterable[Cell], target: Path | None = None
) -> str:
    """The table as Markdown: each sentence stands once, at the end, under the number that the cells show."""
    from zoo.conformance.combinations import PATIENCE

    sentences: dict[CombinationOutcome, int] = {}
    mixed, computed, layers = list(mixed), list(computed), list(layers)
    tasks = list(dict.fromkeys(cell.task for cell in mixed))
    tables = [_table(mixed, ["attention", "position"], (1, 0, 2), sentences)]
    tables.append(_table(computed, ["norm", "ffn"], (0, 1, 2), sentences))
    tables.append(_layer_table(layers, sentences))
    off = os.environ.get(registry.DISABLE_VARIABLE)
    command = (
        f"{f'{registry.DISABLE_VARIABLE}={off} ' if off else ''}zoo matrix{f' --write {target}' if target else ''}"
    )
    plugins = {part.origin for cell in [*mixed, *computed, *layers] for part in cell.parts if part and not part.builtin}
    return "\n\n".join(
        [
            f"{SIGN}{command} -->",
            INTRODUCTION.format(tasks=_enumeration(tasks), patience=PATIENCE),
            *([f"Plugins: {', '.join(sorted(plugins))}."] if plugins else []),
            MIXING, tables[0], COMPUTING, tables[1], LAYERS, tables[2], "## Sentences",
            "\n".join(f"{number}. {_sentence(verdict)}" for verdict, number in sentences.items()) or "None was needed.",
        ]
    ) + "\n"  # fmt: skip


def _table(
    cells: list[Cell], headings: list[str], order: tuple[int, int, int], sentences: dict[CombinationOutcome, int]
) -> str:
    """Two kinds in the rows and one in the columns, which stand in the cells' parts at the places ``order``.

    Parts of the second kind that do the same beside a part of the first one share a row.
    """
    choices = [list(dict.fromkeys(cell.parts[place] for cell in cells)) for place in order]
    names = [_names(choice) for choice in choices]
    verdicts: dict[tuple[Part | None, ...], list[CombinationOutcome]] = {}
    for cell in cells:
        verdicts.setdefault(tuple(cell.parts[place] for place in order), []).append(cell.verdict)
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for part in choices[0]:
        for partner in choices[1]:
            marks = tuple(_marks(verdicts[part, partner, column], sentences) for column in choices[2])
            rows.setdefault((names[0][part], marks), []).append(names[1][partner])
    lines = [[part, ", ".join(partners), *marks] for (part, marks), partners in rows.items()]
    return _lines([headings + [names[2][column] for column in choices[2]], *lines])


def _layer_table(cells: list[Cell], sentences: dict[CombinationOutcome, int]) -> str:
    """A row for the parts of one kind that do the same in one layer."""
    verdicts: dict[Part, list[CombinationOutcome]] = {}
    for cell in cells:
        if (part := cell.parts[0]) is not None:
            verdicts.setdefault(part, []).append(cell.verdict)
    rows: dict[tuple[str, str], list[str]] = {}
    for part, marks in verdicts.items():
        rows.setdefault((part.kind, _marks(marks, sentences)), []).append(part.name)
    return _lines(
        [
            ["kind", "part", "in the first layer"],
            *([kind, ", ".join(names), mark] for (kind, mark), names in rows.items()),
        ]
    )


def _lines(rows: list[list[str]]) -> str:
    """A table in Markdown; the first row is its heading."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], ["-"] * len(rows[0]), *rows[1:]])


def _names(choice: list[Part | None]) -> dict[Part | None, str]:
    """The parts' names; their class paths where two packages have one name."""
    all_names = [part.name for part in choice if part]
    return {
        part: UNNAMED if part is None else part.name if all_names.count(part.name) == 1 else part.path
        for part in choice
    }


def _marks(verdicts: list[CombinationOutcome], sentences: dict[CombinationOutcome, int]) -> str:
    """One mark for each task, or one for all."""
    marks = [_mark(verdict, sentences) for verdict in verdicts]
    return marks[0] if len(set(marks)) == 1 else " ".join(marks)


def _mark(verdict: CombinationOutcome, sentences: dict[CombinationOutcome, int]) -> str:
    if verdict.status == "trains":
        return "✓"
    number = sentences.setdefault(verdict, len(sentences) + 1)
    return f"**BROKEN {number}**" if verdict.status == "BROKEN" else str(number)


def _sentence(verdict: CombinationOutcome) -> str:
    text = " ".join(verdict.sentence.split())
    return f"**BROKEN**: {text}" if verdict.status == "BROKEN" else text


def _parts(cell: Cell) -> str:
    return ", ".join(f"{part.kind} {part.name}" for part in cell.parts if part)


def _enumeration(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _check_target(target: Path) -> None:
    """Raise UsageError for a file that cannot be written, or that `zoo matrix` has not written."""
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"cannot write {target}: name a file in a folder that exists.")
    if target.is_file() and not target.read_bytes().startswith(SIGN.encode()):
        raise UsageError(f"{target} exists and was not written by zoo matrix. Name another file, or remove it.")


def _with_count(what: str, cells: Iterator[Cell]) -> Iterator[Cell]:
    """The same cells, with a count on a terminal."""
    terminal = sys.stderr.isatty()
    for number, cell in enumerate(cells, 1):
        if terminal:
            console.draw(f"\r{what}: {number}", sys.stderr, end="")
            sys.stderr.flush()
        yield cell
    if terminal:
        console.draw("\r\033[K", sys.stderr, end="")
