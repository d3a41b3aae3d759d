"""What is said of a comparison, as the sections of its report, CSV and JSON; the last two with all digits."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from zoo import console
from zoo.compare import prose
from zoo.compare.comparability import shares_gpu
from zoo.compare.document import Report, Section
from zoo.compare.number_format import (
    NONE,
    format_duration,
    format_short,
)
from zoo.compare.run_records import target_of
from zoo.compare.simultaneous_tests import ASSUMPTIONS
from zoo.compare.targets import MEASURES as TARGET_MEASURES
from zoo.compare.targets import describe_targets, target_ratio
from zoo.compare.verdict import EXIT_CODES, Answer, Row
from zoo.console import format_bytes
from zoo.io.content_digests import json_value
from zoo.logging.cost_measures import MEASURES


def compose_report(answer: Answer) -> Report:
    """The report of an answer."""
    headings, rows = verdicts(answer)
    narrow = [
        [*cells[:-4], f"{cells[-4]} {cells[-3]}".strip(), cells[-2], prose.brief(row)]
        for cells, row in zip(rows, answer.rows, strict=True)
    ]
    sections = [
        Section(
            "", headings, rows, notes=prose.legend(answer), words=[row.verdict.word for row in answer.rows],
            narrow=([*headings[:-4], f"{headings[-4]}, {headings[-3]}", *headings[-2:]], narrow),
        )
    ]  # fmt: skip
    if answer.effects:
        sections.append(Section("Main effects and interactions", *grid(answer), notes=[prose.GRID_LEGEND]))
    sections += answer.design.load().sections(answer)
    if targets := describe_targets(answer):
        sections.append(Section("Until the target", *targets))
    sections.append(Section("Cost", *costs(answer)))
    if others := goals(answer):
        sections.append(Section("Other figures", *others, in_text=False))
    if tuned := [f"{row.label}: {row.tuned}" for row in answer.rows if row.tuned]:
        sections.append(Section("Solved or tuned for each variant", items=tuned))
    return Report(prose.question(answer), prose.sentences(answer), sections, answer.flags, answer.commands)


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
            "correction": answer.correction,
            "intervals": "simultaneous, 1 - level / tests each" if answer.correction == "Holm" else "simultaneous",
        },
        "looks": [asdict(look) for look in answer.looks],
        "look_number": answer.look_number,
        "effects": [
            {"effect": effect.name, "interaction": effect.interaction, "p_holm": effect.tested.adjusted}
            | {"verdict": effect.verdict.word, **asdict(effect.tested.pair)}
            for effect in answer.effects
        ],
        "tuning": answer.tuning,
        "scale": None,  # as it has always been without it
        **({answer.design.name: answer.design.load().as_data(answer)} if answer.finding else {}),
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
    return console.as_json(json_value(content), indent=2, allow_nan=False) + "\n"


FORMS: dict[str, Callable[[float], str]] = {"count": format_short, "bytes": format_bytes, "seconds": format_duration}


def record(answer: Answer, row: Row) -> dict[str, Any]:
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
    rows = [[row.label, prose.seeds(row), *prose.figure_cells(answer, row), row.sentence] for row in answer.rows]
    if len({row[1] for row in rows}) == 1:  # the legend says how many
        headings, rows = headings[:1] + headings[2:], [row[:1] + row[2:] for row in rows]
    return headings, rows


def grid(answer: Answer) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: main effects and interactions."""
    rows = [
        [
            effect.name,
            *prose.difference_and_interval(answer, effect.tested.pair),
            prose.chance(effect.tested.adjusted),
            prose.brief_verdict(effect.verdict),
        ]
        for effect in answer.effects
    ]
    return ["effect", "difference", prose.BETWEEN, "p", "verdict"], rows


def costs(answer: Answer) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: what each variant costs."""
    measures = [m for m in MEASURES if m.name != "state_bytes" or any(row.cost[m.name] >= 0 for row in answer.rows)]
    shared = " (shared GPU)" if shares_gpu(answer.runs) else ""
    measured = ("seconds", "tokens_per_s", "peak_memory_bytes")
    headings = [measure.heading.format(unit=answer.unit) + (shared if measure.name in measured else "")
                for measure in measures]  # fmt: skip
    headings = [_heading(answer), *headings, "kernel"]
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


def _unknown(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
