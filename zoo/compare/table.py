"""The tables of a comparison as terminal text, Markdown, CSV and JSON; the last two with all digits."""

from __future__ import annotations

import csv
import io
import itertools
import math
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from zoo import console
from zoo.cli.tables import is_terminal
from zoo.compare import prose, scale_table
from zoo.compare.number_format import (
    NONE,
    format_duration,
    format_probability,
    format_short,
    strict_values,
)
from zoo.compare.paired_tests import ASSUMPTIONS
from zoo.compare.run_records import target_of
from zoo.compare.targets import MEASURES as TARGET_MEASURES
from zoo.compare.targets import describe_targets, target_ratio
from zoo.compare.verdict import EXIT_CODES, Answer, VariantRow
from zoo.console import format_bytes, printable
from zoo.logging.cost_measures import MEASURES

WIDTH, LABEL, NARROW = 100, 26, 14
COLOURS = {
    "better": "32", "as good as": "32", "worse": "31", "not comparable": "33", "no verdict": "2",
    "not distinguishable": "2",
}  # fmt: skip


def terminal_width() -> int:
    """The columns of the terminal, at most 160; WIDTH without one."""
    return min(shutil.get_terminal_size((WIDTH, 0)).columns, 160) if is_terminal() else WIDTH


def as_text(answer: Answer, width: int = WIDTH, colour: bool = False) -> str:
    """Question, answer, verdicts, costs and flags in at most ``width`` columns; ``colour`` adds ANSI colours."""
    headings, rows = verdicts(answer)
    headings = [*headings[:-4], f"{headings[-4]}, {headings[-3]}", *headings[-2:]]
    narrow = [
        [*cells[:-4], f"{cells[-4]} {cells[-3]}".strip(), cells[-2], prose.brief(row)]
        for cells, row in zip(rows, answer.rows, strict=True)
    ]
    styles = [COLOURS.get(row.verdict.word, "") if colour else "" for row in answer.rows]
    lines = [*wrap_text(prose.question(answer), width, "1" if colour else "")]
    lines += [*wrap_text(" ".join(prose.sentences(answer)), width), ""]
    lines += [*align_columns(headings, narrow, width, styles), ""]
    if effects := grid(answer):
        lines += [*align_columns(*effects, width), ""]
    for section in scale_table.sections(answer):
        lines += [*wrap_text(section.text, width), "", *align_columns(section.headings, section.rows, width), ""]
    if targets := describe_targets(answer):
        lines += [*align_columns(*targets, width), ""]
    lines += [*align_columns(*costs(answer), width), ""]
    for row in answer.rows:
        lines += wrap_text(f"{row.label}: {row.tuned}", width) if row.tuned else []
    for note in (*prose.legend(answer), *([prose.grid_legend()] if effects else [])):
        lines += wrap_text(note, width, "2" if colour else "")
    for flag in answer.flags:
        lines += wrap_text(f"! {flag.sentence}", width, "31" if colour and flag.fatal else "33" if colour else "", "  ")
    return "\n".join(lines)


def as_markdown(answer: Answer) -> str:
    """The same as Markdown, for a file, a pull request or TensorBoard's Text tab."""
    parts = [f"# {prose.question(answer)}", " ".join(prose.sentences(answer))]
    parts += [markdown_table(*verdicts(answer)), "\n".join(prose.legend(answer))]
    if effects := grid(answer):
        parts += ["## Main effects and interactions", markdown_table(*effects), prose.grid_legend()]
    for section in scale_table.sections(answer):
        parts += [f"## {section.title}", section.text, markdown_table(section.headings, section.rows)]
    if targets := describe_targets(answer):
        parts += ["## Until the target", markdown_table(*targets)]
    parts += ["## Cost", markdown_table(*costs(answer))]
    if others := goals(answer):
        parts += ["## Other figures", markdown_table(*others)]
    if tuned := [f"- {row.label}: {row.tuned}" for row in answer.rows if row.tuned]:
        parts += ["## Solved or tuned for each variant", "\n".join(tuned)]
    if answer.flags:
        lines = [f"- {'**refused** ' if flag.fatal else ''}{escape_markdown(flag.sentence)}" for flag in answer.flags]
        parts += ["## What is not equal", "\n".join(lines)]
    if answer.commands:
        parts += ["## Made by", "```bash\n" + "\n".join(answer.commands) + "\n```"]
    return "\n\n".join(parts) + "\n"


def as_csv(answer: Answer) -> str:
    """A CSV line per variant, with all digits; unknown values are empty."""
    extra = list(answer.base.others or {})
    names = [*record(answer, answer.base), *(f"choice.{name}" for name in answer.varied)]
    names += [f"{goal}.{part}" for goal in extra for part in ("mean", "sd")]
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for row in answer.rows:
        cells = record(answer, row) | {f"choice.{name}": value for name, value in row.choices.items()}
        for goal in extra:
            mean, sd = (row.others or {}).get(goal, (math.nan, math.nan))
            cells |= {f"{goal}.mean": mean, f"{goal}.sd": sd}
        writer.writerow({name: "" if _unknown(value) else value for name, value in cells.items()})
    return file.getvalue()


def as_json(answer: Answer) -> str:
    """The whole answer with all digits as strict JSON: NaN and infinity are null."""
    content: dict[str, Any] = {
        "format": 1,
        "question": prose.question(answer),
        "answer": prose.sentences(answer),
        **{name: getattr(answer, name) for name in ("recipe", "goal", "lower_is_better", "at", "unit", "baseline")},
        "varied": answer.varied,
        "tests": answer.tests,
        "late_choices": answer.late_choices,
        "flags": [asdict(flag) for flag in answer.flags],
        "commands": answer.commands,
        "outcome": answer.outcome,
        "exit_code": EXIT_CODES[answer.outcome],
        "test": {
            "name": answer.plan.test,
            "assumes": ASSUMPTIONS[answer.plan.test],
            "level": answer.plan.level,
            "later_level": answer.plan.later_level,
            "margin": answer.plan.margin,
            "correction": "Holm",
            "intervals": "simultaneous, 1 - level / tests each",
        },
        "looks": [asdict(look) for look in answer.looks],
        "look_number": answer.look_number,
        "effects": [
            {"effect": effect.name, "interaction": effect.interaction, "p_holm": effect.tested.adjusted}
            | {"verdict": effect.verdict.word, **asdict(effect.tested.pair)}
            for effect in answer.effects
        ],
        "tuning": answer.tuning,
        "scale": answer.scaling and answer.scaling.as_data(),
    }
    content["variants"] = [
        record(answer, row)
        | {
            "differences": row.differences,
            "choices": row.choices,
            "figures": row.figures,
            "unfinished": row.unfinished,
            "left_out": row.unpaired,
            "rate_of_baseline": prose.has_rate_of_baseline(answer, row),
        }
        | {"failures": row.failures, "outcome": asdict(row.outcome) | {"p": row.outcome.p} if row.outcome else None}
        | {"others": {goal: {"mean": mean, "sd": sd} for goal, (mean, sd) in (row.others or {}).items()}}
        for row in answer.rows
    ]
    if target_of(answer.at) is not None:
        for row, content_of_row in zip(answer.rows[1:], content["variants"][1:], strict=True):
            ratios = {measure: target_ratio(answer, row, measure) for measure in TARGET_MEASURES}
            content_of_row["target_ratios"] = {name: ratio and asdict(ratio) for name, ratio in ratios.items()}
    return console.as_json(strict_values(content), indent=2, allow_nan=False) + "\n"


FORMS: dict[str, Callable[[float], str]] = {"count": format_short, "bytes": format_bytes, "seconds": format_duration}


def record(answer: Answer, row: VariantRow) -> dict[str, Any]:
    """A variant as flat named values."""
    pair, verdict = row.pair, row.verdict
    return {
        "variant": row.variant, "label": row.label, "goal": answer.goal, "seeds": len(row.figures),
        "diverged": len(row.diverged), "failed": len(row.failures), "unfinished": len(row.unfinished),
        "left_out": len(row.unpaired), "mean": row.mean, "sd": row.sd, "pairs": pair.n, "difference": pair.mean,
        "difference_sd": pair.sd, "low": pair.low, "high": pair.high, "t": pair.t, "p": pair.p, "p_holm": row.adjusted,
        "p_margin": row.equivalent, "effect": pair.effect, "verdict": verdict.word, "sentence": row.sentence,
        "seeds_needed": verdict.needed, "seeds_needed_low": verdict.fewest, "seeds_needed_high": verdict.most,
        **{measure.name: row.cost[measure.name] for measure in MEASURES}, "kernel": row.kernel, "tuned": row.tuned,
    }  # fmt: skip


def verdicts(answer: Answer) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: variant, seeds, figure, difference, interval, p and verdict."""
    headline = f"{prose.goal(answer)}{f' ({prose.unit(answer).strip()})' if prose.unit(answer) else ''}"
    headings = [_heading(answer), "seeds", headline, "difference", prose.BETWEEN, "p", "verdict"]
    rows = [
        [
            row.label, prose.seeds(row), prose.figure(answer, row),
            prose.difference(answer, row), prose.interval(answer, row), prose.chance(row), row.sentence,
        ]
        for row in answer.rows
    ]  # fmt: skip
    if len({row[1] for row in rows}) == 1:  # the legend says how many
        headings, rows = headings[:1] + headings[2:], [row[:1] + row[2:] for row in rows]
    return headings, rows


def grid(answer: Answer) -> tuple[list[str], list[list[str]]] | None:
    """Headings and cells: main effects and interactions; None where the variants are no grid."""
    rows = [
        [
            effect.name,
            *prose.difference_and_interval(answer, effect.tested.pair),
            "" if math.isnan(effect.tested.adjusted) else format_probability(effect.tested.adjusted),
            prose.brief_verdict(effect.verdict),
        ]
        for effect in answer.effects
    ]
    return (["effect", "difference", prose.BETWEEN, "p", "verdict"], rows) if rows else None


def costs(answer: Answer) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: what each variant costs."""
    measures = [m for m in MEASURES if m.name != "state_bytes" or any(row.cost[m.name] >= 0 for row in answer.rows)]
    headings = [_heading(answer), *(measure.heading.format(unit=answer.unit) for measure in measures), "kernel"]
    rows = [
        [row.label, *(FORMS[measure.form](row.cost[measure.name]) for measure in measures), row.kernel or "–"]
        for row in answer.rows
    ]
    return headings, rows


def goals(answer: Answer) -> tuple[list[str], list[list[str]]] | None:
    """Headings and cells of the goals besides the headline; None without any."""
    names = list(answer.base.others or {})
    if not names:
        return None
    rows = []
    for row in answer.rows:
        pairs = [(row.others or {}).get(name, (math.nan, math.nan)) for name in names]
        rows.append([row.label, *(prose.plusminus(mean, sd, 4) for mean, sd in pairs)])
    return [_heading(answer), *(name.replace("_", " ") for name in names)], rows


def _heading(answer: Answer) -> str:
    return answer.varied[0] if len(answer.varied) == 1 and answer.base.choices[answer.varied[0]] != NONE else "variant"


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


def _unknown(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
