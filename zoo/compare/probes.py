"""Charts of what a comparison measures beside its runs: lines over lengths, bars of parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zoo.compare.axes import Frame, padded, signed
from zoo.compare.drawing import Drawing, width_of
from zoo.compare.labels import WIDTH, clipped, end_labels, look
from zoo.compare.numbers import decimals, fixed


@dataclass(frozen=True)
class Bar:
    """One bar: what it stands for, how much, and the interval around it where there is one."""

    label: str
    value: float
    low: float = math.nan
    high: float = math.nan


def lines(
    title: str,
    series: Mapping[str, Mapping[float, float | None]],
    labels: tuple[str, str],
    ticks: Sequence[str] | None = None,
    bands: Mapping[str, Mapping[float, float]] | None = None,
) -> Drawing:
    """A line per name over few x on a logarithmic axis, such as lengths 1, 2, 4 and 8; ``labels`` name x and y.

    What is None is undefined, and marked below the frame. ``bands`` are standard deviations, ``ticks`` words for the x.
    """
    names = list(series)
    xs = sorted({x for points in series.values() for x in points})
    undefined = [name for name in names if any(y is None for y in series[name].values())]
    finite = [y for points in series.values() for y in points.values() if y is not None]
    room = max((width_of(clipped(name), 12.5) for name in names), default=0) + 30
    strip = 18 * len(undefined)
    drawing = Drawing(WIDTH, 386 + strip, title)
    frame = Frame(drawing, 74, 14, WIDTH - room, 330, (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] / 2, xs[0] * 2),
                  padded(finite), log=True)  # fmt: skip
    frame.vertical(labels[1])
    told = list(ticks) if ticks else [f"{x:g}" for x in xs]
    below = Frame(drawing, frame.left, frame.top, frame.right, frame.bottom + strip, frame.x, frame.y, log=True)
    below.horizontal(labels[0], xs, lambda _: told)
    if strip:
        drawing.line([(frame.left, frame.bottom), (frame.right, frame.bottom)], "frame")
        drawing.text("undefined", frame.left - 6, frame.bottom + strip / 2, 11.5, "grey", "end")
    ends = []
    for index, name in enumerate(names):
        seen = look(index)
        points = [(x, math.nan if y is None else y) for x, y in sorted(series[name].items())]
        sds = (bands or {}).get(name, {})
        if sds:
            frame.band(points, [sds.get(x, 0.0) for x, _ in points], seen[0])
        frame.curve(points, seen[0], 2.2, dash=seen[2])
        for x, y in points:
            if math.isfinite(y):
                drawing.mark(*frame.point(x, y), seen[0], seen[1], 4.5)
            else:
                drawing.mark(frame.across(x), frame.bottom + 18 * (undefined.index(name) + 0.5), seen[0], "cross", 4)
        ends.append(
            (
                clipped(name),
                seen,
                next((p for p in reversed(points) if math.isfinite(p[1])), (xs[-1], math.nan)),
            )
        )
    end_labels(frame, ends)
    return drawing


def bars(title: str, rows: Sequence[Bar], label: str, good: str = "low") -> Drawing:
    """Horizontal bars from zero, such as what each part brought: green where ``good`` ("low" or "high") says so."""
    names = [clipped(row.label) for row in rows]
    left = 30 + max((width_of(name) for name in names), default=0)
    drawing = Drawing(WIDTH, 34 * len(rows) + 76, title)
    values = [end for row in rows for end in (row.value, row.low, row.high)]
    frame = Frame(drawing, left, 14, WIDTH - 84, 14 + 34 * len(rows), padded([0.0, *values], 0.08), (0.0, 1.0))
    frame.horizontal(label, told=signed, lines=True)
    places = decimals([abs(row.value) / 10 for row in rows])
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        y, zero = frame.top + 34 * (index + 0.5), frame.across(0.0)
        drawing.text(name, left - 10, y, anchor="end")
        if not math.isfinite(row.value):
            drawing.text("undefined", zero + 8, y, 12, "grey")
            continue
        helps = (row.value < 0) == (good == "low")
        end = frame.across(row.value)
        drawing.rectangle((min(zero, end), y - 10, max(zero, end), y + 10), "c1" if helps else "c2", 0.85)
        if math.isfinite(row.low):
            drawing.line([(frame.across(row.low), y), (frame.across(row.high), y)], "ink", 1.6)
        drawing.text(fixed(row.value, places, sign=True), frame.right + 12, y, 12, "ink")
    drawing.line([(frame.across(0.0), frame.top - 2), (frame.across(0.0), frame.bottom)], "ink", 1.2)
    return drawing
