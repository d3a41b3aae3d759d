"""The charts of a comparison: curves with seed bands, differences with intervals, quality against cost.

Each is a Drawing, for a PNG and for a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zoo.compare import wording
from zoo.compare.answer import Answer, Row
from zoo.compare.axes import Frame, padded, signed
from zoo.compare.drawing import Drawing, Point, width_of
from zoo.compare.labels import WIDTH, Box, Look, beside, clipped, end_labels, look
from zoo.compare.ledgers import number

# the axis of each cost, whether little of it is good, and a word for it
COSTS = {
    "flops": ("forward FLOPs per token", True, "computation"),
    "speed": ("tokens per second", False, "speed"),
    "parameters": ("parameters", True, "size"),
    "memory": ("peak memory (bytes)", True, "memory"),
    "seconds": ("training time (s)", True, "time"),
}
Lines = list[list[Point]]


@dataclass(frozen=True)
class Figure:
    """A chart with the name of its file, its title, and a sentence that says how to read it."""

    name: str
    title: str
    caption: str
    drawing: Drawing


WARM = 0.33  # the first third of training, where a loss falls from chance, does not set the scale


def figures(answer: Answer) -> list[Figure]:
    """The charts that this answer has enough for."""
    told = (
        "Thick: mean over seeds; the band is one standard deviation; each thin line is a seed. "
        "A cross: training diverged."
    )
    drawn = [Figure("curves", "Training", told, curves(answer))]
    if any(math.isfinite(row.pair.mean) for row in answer.rows):
        told = "Mean of the differences seed by seed, with its 95 % interval; an arrow: it goes on beyond the frame."
        drawn.append(Figure("differences", f"Difference from {answer.base.label}", told, forest(answer)))
    for cost in ("flops", "speed"):
        drawing = pareto(answer, cost)
        if drawing is not None:
            told = "Mean and standard deviation over seeds. A dashed line joins what no other variant beats in both."
            drawn.append(Figure(cost, f"Quality against {COSTS[cost][2]}", told, drawing))
    return drawn


def curves(answer: Answer) -> Drawing:
    """The headline over tokens seen: a thick line per variant, the mean over seeds; a band of one standard deviation;
    a thin line per seed. A cross marks where training diverged.
    """
    styles, drawing = style(answer), Drawing(WIDTH, 400, f"{wording.goal(answer)} over {answer.unit}s seen")
    lines = {row.variant: _lines(answer, row) for row in answer.rows}
    every = [points for seeds in lines.values() for points in seeds if points]
    end = max((x for points in every for x, _ in points), default=1.0)
    names = {row.variant: clipped(row.label) for row in answer.rows}
    room = max(width_of(name, 12.5) for name in names.values()) + 30
    frame = Frame(drawing, 74, 14, WIDTH - room, 346, (0.0, end), _interesting(every, end))
    frame.vertical(_axis(answer))
    frame.horizontal(f"{answer.unit}s seen")
    ends = []
    for row in reversed(answer.rows):
        colour, _, dash = styles[row.variant]
        mean, sd = _average(lines[row.variant])
        if len(lines[row.variant]) > 1:
            for points in lines[row.variant]:
                frame.curve(points, colour, 0.8, 0.35)
            frame.band(mean, sd, colour, 0.16 if len(lines) < 5 else 0.1)
    for row in reversed(answer.rows):
        colour, _, dash = styles[row.variant]
        mean, _ = _average(lines[row.variant])
        frame.curve(mean, colour, 2.2, dash=dash)
        for points in lines[row.variant]:
            if points and not math.isfinite(points[-1][1]):
                last = next((p for p in reversed(points) if math.isfinite(p[1])), None)
                if last:
                    y = min(max(frame.down(last[1]), frame.top + 6), frame.bottom)
                    drawing.mark(frame.across(last[0]), y, colour, "cross", 4.5)
        last = next((p for p in reversed(mean) if math.isfinite(p[1])), (end, math.nan))
        ends.append((row, last))
    end_labels(frame, [(names[row.variant], styles[row.variant], last) for row, last in ends])
    return drawing


def forest(answer: Answer) -> Drawing:
    """Paired differences from the baseline with 95 % intervals, and the verdicts beside them."""
    rows = answer.rows[1:]
    names = [clipped(row.label) for row in rows]
    told = [row.verdict.word + (f", {len(row.diverged)} diverged" if row.diverged else "") for row in rows]
    left = 40 + max((width_of(name) for name in names), default=0)
    room = max((width_of(word, 12) for word in told), default=0) + 24
    drawing = Drawing(WIDTH, 34 * len(rows) + 92, f"differences in {wording.goal(answer)} from {answer.base.label}")
    scaled = [row for row in rows if not row.diverged and not answer.base.diverged] or rows
    values = [end for row in scaled for end in (row.pair.mean, row.pair.low, row.pair.high)]
    frame = Frame(drawing, left, 30, WIDTH - room, 30 + 34 * len(rows), padded([0.0, *values], 0.08), (0.0, 1.0))
    frame.horizontal(
        f"{wording.goal(answer)}: difference from {clipped(answer.base.label)}{_bracketed(answer)}",
        told=signed, lines=True,
    )  # fmt: skip
    zero, sides = frame.across(0.0), ("better", "worse") if answer.lower_is_better else ("worse", "better")
    drawing.line([(zero, frame.top - 4), (zero, frame.bottom)], "ink", 1.2)
    drawing.text(f"← {sides[0]}", zero - 8, frame.top - 14, 11.5, "grey", "end")
    drawing.text(f"{sides[1]} →", zero + 8, frame.top - 14, 11.5, "grey")
    for index, (row, name, word) in enumerate(zip(rows, names, told, strict=True)):
        y = frame.top + 34 * (index + 0.5)
        colour, shape, _ = style(answer)[row.variant]
        drawing.text(name, left - 16, y, anchor="end")
        shade = {"better": "good", "worse": "bad"}.get(row.verdict.word, "grey")
        drawing.text(word, frame.right + 14, y, 12, shade)
        if not math.isfinite(row.pair.mean):
            continue
        if math.isfinite(row.pair.low):
            _whisker(frame, (row.pair.low, row.pair.high), y, colour)
        if frame.x[0] <= row.pair.mean <= frame.x[1]:
            drawing.mark(frame.across(row.pair.mean), y, colour, shape, 5.5)
    return drawing


def pareto(answer: Answer, cost: str = "flops") -> Drawing | None:
    """The headline against "flops", "speed", "parameters", "memory" or "seconds"; the line joins what nothing beats.

    None where fewer than two variants know their cost, or all cost the same.
    """
    label, cheap_is_low, _ = COSTS[cost]
    known = [row for row in answer.rows if math.isfinite(getattr(row.cost, cost)) and math.isfinite(row.mean)]
    across = [getattr(row.cost, cost) for row in known]
    if len(known) < 2 or max(across) - min(across) <= 1e-3 * max(across):
        return None
    drawing = Drawing(WIDTH, 380, f"{wording.goal(answer)} against {label}")
    heights = [row.mean + side * (row.sd if math.isfinite(row.sd) else 0) for row in known for side in (-1, 1)]
    frame = Frame(drawing, 74, 14, WIDTH - 24, 326, padded(across, 0.14), padded(heights, 0.12))
    frame.vertical(_axis(answer))
    frame.horizontal(label.replace("token", answer.unit))
    points = [(x, row.mean) for x, row in zip(across, known, strict=True)]
    best = frontier(points, cheap_is_low, answer.lower_is_better)
    frame.curve(best, "grey", 1.4, dash=(5, 4))
    boxes: list[Box] = []
    for row, point in zip(known, points, strict=True):
        at, down = frame.point(*point)
        reach = abs(frame.down(row.mean + row.sd) - down) if math.isfinite(row.sd) else 8.0
        boxes += [(at - 7, down - 8, at + 7, down + 8), (at - 1, down - reach, at + 1, down + reach)]
    for row, (x, y) in zip(known, points, strict=True):
        colour, shape, _ = style(answer)[row.variant]
        at, down = frame.point(x, y)
        if math.isfinite(row.sd):
            drawing.line([(at, frame.down(y - row.sd)), (at, frame.down(y + row.sd))], colour, 1.4)
        drawing.mark(at, down, colour, shape, 6)
        beside(frame, clipped(row.label), (at, down), boxes)
    return drawing


def style(answer: Answer) -> dict[str, Look]:
    """A look per variant, the baseline's first; the others' follow their names, so that no result changes them."""
    names = sorted(row.variant for row in answer.rows[1:])
    return {name: look(index) for index, name in enumerate([answer.baseline, *names])}


def frontier(points: Sequence[Point], cheap_is_low: bool, good_is_low: bool) -> list[Point]:
    """The points that no other beats in both, from cheap to dear: quality and cost that can be had."""
    signs = 1 if cheap_is_low else -1, 1 if good_is_low else -1
    ordered = sorted(points, key=lambda point: (signs[0] * point[0], signs[1] * point[1]))
    best: list[Point] = []
    for point in ordered:
        if not best or signs[1] * point[1] < signs[1] * best[-1][1]:
            best.append(point)
    return best


def _lines(answer: Answer, row: Row) -> Lines:
    """The headline over tokens, of every run that counts."""
    runs = [run for seed, run in answer.runs[row.variant].items() if seed in row.figures]
    return [
        [(number(each.get("tokens")), number(each[answer.goal])) for each in run.validations if answer.goal in each]
        for run in runs
    ]


def _average(seeds: Lines) -> tuple[list[Point], list[float]]:
    """Mean and standard deviation over seeds, where all that converged have a value; runs that were continued may have
    validated elsewhere, so each is interpolated at the first one's places.
    """
    whole = [points for points in seeds if points and all(math.isfinite(y) for _, y in points)]
    if not whole:
        return max(seeds, key=len, default=[]), [0.0] * len(max(seeds, key=len, default=[]))
    start, end = max(points[0][0] for points in whole), min(points[-1][0] for points in whole)
    xs = [x for x, _ in whole[0] if start <= x <= end]
    values = np.array([np.interp(xs, [x for x, _ in points], [y for _, y in points]) for points in whole])
    sd = values.std(0, ddof=1) if len(whole) > 1 else np.zeros(len(xs))
    return list(zip(xs, values.mean(0).tolist(), strict=True)), sd.tolist()


def _interesting(every: Lines, end: float) -> tuple[float, float]:
    """The range after the start of training, from which a loss falls so far that nothing else could be seen."""
    late = [y for points in every for x, y in points if x >= WARM * end]
    return padded(late or [y for points in every for _, y in points])


def _whisker(frame: Frame, ends: tuple[float, float], y: float, colour: str) -> None:
    """An interval; an arrow where it goes on outside of the frame."""
    left, right = (min(max(frame.across(end), frame.left), frame.right) for end in ends)
    frame.drawing.line([(left, y), (right, y)], colour, 2)
    for x, end, way in ((left, ends[0], 1), (right, ends[1], -1)):
        inside = frame.x[0] <= end <= frame.x[1]
        tip = [(x, y - 5), (x, y + 5)] if inside else [(x + way * 7, y - 5), (x, y), (x + way * 7, y + 5)]
        frame.drawing.line(tip, colour, 2)


def _axis(answer: Answer) -> str:
    return f"{wording.goal(answer)}{_bracketed(answer)}"


def _bracketed(answer: Answer) -> str:
    return f" ({wording.unit(answer).strip()})" if wording.unit(answer) else ""
