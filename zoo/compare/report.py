"""A comparison as one HTML page that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from zoo.compare import table, wording
from zoo.compare.answer import Answer, Row, told
from zoo.compare.charts import Figure, figures
from zoo.compare.ledgers import number
from zoo.compare.numbers import duration, fixed, short
from zoo.compare.style import CSS

# nothing may be loaded: a page that somebody gets by mail does not call home
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
SIGNS = {"better": "▲ ", "worse": "▼ ", "not comparable": "✕ "}
CLASSES = {"better": "better", "worse": "worse", "baseline": "muted"}
SETTINGS = (
    "precision", "optimizer", "schedule", "max_steps", "accumulate", "batch", "budget", "device", "machine", "threads",
    "processes", "zoo", "torch", "python",
)  # fmt: skip


def page(answer: Answer, more: Sequence[Figure] = ()) -> str:
    """The report as HTML; ``more`` are figures beside its own, such as a probe of lengths."""
    drawn = [*figures(answer), *more]
    body = [
        f'<p class="over">zoo compare · {escape(answer.recipe)}</p>',
        f"<h1>{escape(wording.question(answer))}</h1>",
        _list("answer", [(sentence, "") for sentence in wording.sentences(answer)]),
        _refusals(answer),
        _section("Verdicts", _table(*table.verdicts(answer), answer), _notes(wording.legend(answer))),
        *(_section(figure.title, _figure(figure)) for figure in drawn),
        _section("What differs", _differences(answer)),
        _section("Cost", _table(*table.costs(answer), answer), _notes([COSTING])),
        _section("What is not equal", _flags(answer)),
    ]
    if others := table.goals(answer):
        body.append(_section("Other figures", _table(*others, answer), _notes([OTHERS])))
    body.append(_section("Every run", _runs(answer)))
    body.append(_section("Common to all runs", _common(answer)))
    if answer.commands:
        body.append(_section("Commands", f"<pre>{escape(chr(10).join(answer.commands))}</pre>"))
    body.append(f"<footer>Made by zoo {escape(_setting(answer, 'zoo'))}. {METHOD}</footer>")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(wording.question(answer))}</title><style>{CSS}</style>"
    )
    inside = "\n".join(piece for piece in body if piece)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{inside}\n</main></body></html>\n'


COSTING = "FLOPs are those of the forward pass. Speed is the median of steady steps, memory the largest of any seed."
OTHERS = (
    "Mean ± standard deviation over seeds. Nothing is tested on these: one figure decides, and it was named before."
)
EQUAL = (
    "Nothing. Tokens, data, order of batches and the initial weights of shared parts are the same, and so are "
    "precision, optimizer, schedule, versions and hardware; parameters are within 5 %."
)
METHOD = (
    "Student's paired t test on differences seed by seed, Holm's (1979) correction over the variants, "
    "Cohen's d<sub>z</sub> and the noncentral t distribution for the seeds that would be needed."
)


def _section(title: str, *parts: str) -> str:
    inside = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{inside}</section>" if inside else ""


def _refusals(answer: Answer) -> str:
    return _list("flags", [(sentence, "fatal") for sentence in answer.refused]) if answer.refused else ""


def _flags(answer: Answer) -> str:
    if not answer.flags:
        return f'<p class="note">{EQUAL}</p>'
    return _list("flags", [(flag.sentence, "fatal" if flag.fatal else "") for flag in answer.flags])


def _list(kind: str, items: Iterable[tuple[str, str]]) -> str:
    told = "".join(f'<li class="{name}">{escape(text)}</li>' for text, name in items)
    return f'<ul class="{kind}">{told}</ul>'


def _notes(lines: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines if line)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], answer: Answer) -> str:
    """Cells of `table`, one row per variant; the verdict is told by a sign as well as by a colour."""
    lines = []
    for row, cells in zip(answer.rows, rows, strict=True):
        drawn = []
        for heading, cell in zip(headings, cells, strict=True):
            name = CLASSES.get(row.verdict.word, "") if heading == "verdict" else "n"
            sign = SIGNS.get(row.verdict.word, "") if heading == "verdict" else ""
            drawn.append(f'<td class="{name}">{sign}{escape(cell)}</td>')
        drawn[0] = f"<td>{_name(cells[0])}{_tuned(row)}</td>"
        lines.append(f"<tr{_class(answer, row)}>{''.join(drawn)}</tr>")
    return _rows(headings, lines)


def _rows(headings: Sequence[str], lines: Iterable[str]) -> str:
    top = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _tuned(row: Row) -> str:
    return f'<div class="note">{escape(row.tuned)}</div>' if row.tuned else ""


def _figure(figure: Figure) -> str:
    return f"<figure>{figure.drawing.svg()}<figcaption>{escape(figure.caption)}</figcaption></figure>"


def _differences(answer: Answer) -> str:
    """The choices that vary, one column each; what differs from the baseline stands out."""
    if not answer.varied:
        return '<p class="note">No choice of the model differs between the variants.</p>'
    lines = []
    for row in answer.rows:
        tags = ["td" if value == answer.base.choices[name] else "th" for name, value in row.choices.items()]
        pairs = zip(tags, row.choices.values(), strict=True)
        cells = "".join(f"<{tag}>{escape(value)}</{tag}>" for tag, value in pairs)
        lines.append(f"<tr{_class(answer, row)}><td>{_name(row.variant)}</td>{cells}</tr>")
    return _rows(["variant", *answer.varied], lines)


def _runs(answer: Answer) -> str:
    """A line per run: what it reached and when, what it was given and took, or what became of it."""
    lines = []
    for row in answer.rows:
        for seed, run in answer.runs[row.variant].items():
            state = "not finished" if seed in row.unfinished else "diverged" if seed in row.diverged else ""
            figure = row.figures.get(seed, math.nan)
            when = next((each.get("step") for each in run.validations if each.get(answer.goal) == figure), None)
            cells = [
                row.label, f"s{seed}", state or fixed(figure, 4), f"{when:,}" if when and not state else "",
                short(run.tokens), f"{run.steps:,}", duration(number(run.cost.get("seconds"))),
                short(number(run.cost.get("tokens_per_s"))),
            ]  # fmt: skip
            lines.append(f"<tr>{''.join(f'<td class=n>{escape(cell)}</td>' for cell in cells)}</tr>")
    unit, reached = f"{answer.unit}s", f"{answer.at} {wording.goal(answer)}"
    return _rows(["variant", "seed", reached, "at step", unit, "steps", "time", f"{unit}/s"], lines)


def _common(answer: Answer) -> str:
    """Choices and settings that all runs share, as a list of terms."""
    runs = [run for seeds in answer.runs.values() for run in seeds.values()]
    terms: dict[str, str] = {}
    if data := {str(run.data.get("class", "")) for run in runs} - {""}:
        terms["data"] = ", ".join(sorted(data)) + f" (fingerprint {str(runs[0].data.get('fingerprint', ''))[:12]})"
    for part in ("choices", "setting"):
        names = dict.fromkeys(name for run in runs for name in getattr(run, part))
        for name in names if part == "choices" else [name for name in SETTINGS if name in names]:
            values = {_plain(getattr(run, part).get(name)) for run in runs}
            if len(values) == 1:
                terms[name.replace("_", " ")] = values.pop()
    inside = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in terms.items())
    return f"<dl>{inside}</dl>" if inside else ""


def _name(variant: str) -> str:
    """A variant's name, which may be broken after a comma."""
    return escape(variant).replace(",", ",<wbr>")


def _class(answer: Answer, row: Row) -> str:
    return " class=base" if row.variant == answer.baseline else ""


def _plain(value: Any) -> str:
    return ", ".join(f"{name}={told(v)}" for name, v in value.items()) if isinstance(value, dict) else told(value)


def _setting(answer: Answer, name: str) -> str:
    return str(next(iter(answer.runs[answer.baseline].values())).setting.get(name, ""))
