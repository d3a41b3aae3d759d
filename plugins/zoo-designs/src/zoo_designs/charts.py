"""Charts of the designs: lines over a few x, bars from zero, and intervals, in the style of a comparison's charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zoo.compare.charts import (
    ROW,
    SMALL,
    Range,
    ReportChart,
    SeriesStyle,
    clip_name,
    draw_interval,
    draw_mark,
    draw_points,
    last_finite,
    line_axes,
    move_system,
    pad_range,
    row_axes,
    series_style,
    sign_ticks,
    write_end_labels,
    write_note,
    xy,
)  # fmt: skip
from zoo.compare.number_format import decimal_places, format_fixed
from zoo.palette import LIGHT


@dataclass(frozen=True)
class IntervalRow:
    """A row of `draw_bars` or `draw_intervals`: label, value, the bounds of its interval (NaN for none), and points."""

    label: str
    value: float
    low: float = math.nan
    high: float = math.nan
    points: tuple[float, ...] = ()


def draw_lines(
    title: str,
    series: Mapping[str, Mapping[float, float | None]],
    labels: tuple[str, str],
    ticks: Sequence[str] | None = None,
    caption: str = "",
    styles: Mapping[str, SeriesStyle] | None = None,
) -> ReportChart:
    """A line per name over a few x on a logarithmic axis, such as lengths 1, 2, 4 and 8.

    ``series`` maps name → x → y, where a y of None is undefined and marked below the axes. ``labels`` name the x and y
    axes, ``ticks`` are the labels of the x, ``styles`` the styles of the names.
    """
    from zoo.plotting import style

    names = {name: clip_name(name) for name in series}
    xs = sorted({x for points in series.values() for x in points})
    undefined = [name for name in series if any(y is None for y in series[name].values())]
    strip = 18 * len(undefined)
    ends = []
    with style():
        figure, axes = line_axes(names.values(), 386 + strip, 330)
        axes.set_xscale("log")
        axes.set_xlim((xs[0], xs[-1]) if len(xs) > 1 else (xs[0] / 2, xs[0] * 2))
        axes.set_ylim(pad_range([y for points in series.values() for y in points.values() if y is not None]))
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.set_xticks(xs, ticks or [f"{x:g}" for x in xs])
        axes.minorticks_off()
        if strip:
            axes.tick_params(axis="x", pad=4 + strip)
            axes.annotate(
                "undefined", (0, 0), (-6, -strip / 2), "axes fraction", textcoords="offset points", fontsize=SMALL,
                color=LIGHT["grey"], ha="right", va="center",
            )  # fmt: skip
        for index, name in enumerate(series):
            colour, marker, dashes = mark_style = (styles or {}).get(name) or series_style(index)
            points = [(x, math.nan if y is None else y) for x, y in sorted(series[name].items())]
            axes.plot(*xy(points), color=colour, linewidth=2.2, dashes=dashes)
            for point in points:
                if math.isfinite(point[1]):
                    draw_mark(axes, point, colour, marker, 10)
                else:
                    moved = move_system(axes, axes.get_xaxis_transform(), 0, -18 * (undefined.index(name) + 0.5))
                    axes.plot(point[0], 0, "x", color=colour, markersize=8, markeredgewidth=2.2, clip_on=False,
                              transform=moved)  # fmt: skip
            ends.append((names[name], mark_style, last_finite(points) or (xs[-1], math.nan)))
        write_end_labels(axes, ends)
    return ReportChart("lengths", title, caption, figure)


def draw_bars(title: str, rows: Sequence[IntervalRow], label: str, good: str = "low", caption: str = "") -> ReportChart:
    """Horizontal bars from zero, such as the share of each part: blue for an improvement, which ``good`` defines as
    "low" (negative) or "high" (positive) values.
    """
    from zoo.plotting import style

    places = decimal_places([abs(row.value) / 10 for row in rows])
    with style():
        figure, axes = row_axes([row.label for row in rows], 30, 14, room=84)
        axes.set_xlim(pad_range([0.0, *(end for row in rows for end in (row.value, row.low, row.high))], 0.08))
        sign_ticks(axes)
        axes.set_xlabel(label)
        axes.axvline(0.0, color=LIGHT["ink"], linewidth=1.2, zorder=3)
        for y, row in enumerate(rows):
            if not math.isfinite(row.value):
                write_note(axes, "undefined", (0.0, y), (8, 0), 12, LIGHT["grey"], "left", axes.transData)
                continue
            helps = (row.value < 0) == (good == "low")
            axes.barh(y, row.value, 20 / ROW, color=LIGHT["c1" if helps else "c2"], alpha=0.85)
            if math.isfinite(row.low):
                axes.plot((row.low, row.high), (y, y), color=LIGHT["ink"], linewidth=1.6)
            value = format_fixed(row.value, places, sign=True)
            write_note(axes, value, (1.0, y), (12, 0), 12, LIGHT["ink"], "left", axes.get_yaxis_transform())
    return ReportChart("shares", title, caption, figure)


def draw_intervals(
    name: str, title: str, rows: Sequence[IntervalRow], label: str, centre: float, limits: Range | None = None,
    caption: str = "",
) -> ReportChart:  # fmt: skip
    """A forest plot: a value per row with its interval and points, and a line at ``centre``, where nothing differs."""
    from zoo.plotting import style

    values = [value for row in rows for value in (row.value, row.low, row.high, *row.points) if math.isfinite(value)]
    with style():
        figure, axes = row_axes([row.label for row in rows], 40, 14)
        axes.set_xlim(limits or pad_range([centre, *values], 0.08))
        axes.set_xlabel(label)
        axes.axvline(centre, color=LIGHT["ink"], linewidth=1.2)
        for y, row in enumerate(rows):
            colour = series_style(y + 1).colour if not row.points else LIGHT["c1"]
            draw_points(axes, row.points, y, colour)
            if math.isfinite(row.low):
                draw_interval(axes, (row.low, row.high), y, colour)
            if math.isfinite(row.value):
                draw_mark(axes, (row.value, y), colour, "o", 11)
    return ReportChart(name, title, caption, figure)
