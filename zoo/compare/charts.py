"""Charts of a comparison: curves with seed bands, differences with intervals, quality against cost.

matplotlib is imported inside the functions, so that a comparison that only prints its table starts faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zoo.compare import prose
from zoo.compare.comparability import shares_gpu
from zoo.compare.number_format import format_fixed
from zoo.compare.run_records import number, target_of
from zoo.compare.simultaneous_tests import failure_text
from zoo.compare.statistics import mean_and_deviation
from zoo.compare.verdict import Answer, Row
from zoo.logging.cost_measures import MEASURES
from zoo.palette import LIGHT, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS = {measure.chart: measure for measure in MEASURES if measure.chart}
WIDTH = 720  # width of a chart in units: one CSS pixel in the HTML page, two pixels in a PNG
ROW = 34  # height of a row of names, in units
LONGEST = 30  # characters of a name before it is shortened
MARKERS = ("o", "s", "^", "D", "v", "*", "p")
DASHES: tuple[tuple[float, ...], ...] = ((), (3.2, 1.8), (1.0, 1.4))  # lengths in line widths
TEXT, SMALL = 12.5, 11.5  # font sizes: names and axis labels; tick labels
WARM = 0.33  # share of training at the start that the range of the y axis ignores
Point = tuple[float, float]
Lines = list[list[Point]]
Range = tuple[float, float]


@dataclass(frozen=True)
class ReportChart:
    """A matplotlib figure with the stem of its file name, its title, and a caption that says how to read it."""

    name: str
    title: str
    caption: str
    figure: Figure

    def svg(self) -> str:
        """An ``<svg>`` element for a page."""
        from zoo.plotting import to_svg

        return to_svg(self.figure, self.title)

    def png(self) -> bytes:
        """A PNG file on white, two pixels per unit."""
        from zoo.plotting import to_png

        return to_png(self.figure)


class SeriesStyle(NamedTuple):
    """Style of a series: colour (#rrggbb), matplotlib marker and dashes."""

    colour: str
    marker: str
    dashes: tuple[float, ...]


def draw_charts(answer: Answer) -> list[ReportChart]:
    """All charts for which the answer has enough runs."""
    result = [draw_curves(answer)]
    if any(math.isfinite(row.pair.mean) for row in answer.rows):
        result.append(draw_differences(answer))
    return result + [
        chart
        for cost in ("flops", *([] if shares_gpu(answer.runs) else ["speed"]))
        if (chart := draw_pareto(answer, cost))
    ]


def draw_curves(answer: Answer) -> ReportChart:
    """The headline figure over tokens: a thick line per variant (mean over seeds), a band of one standard deviation,
    a thin line per seed, and a cross where a run failed. Variants with failed runs have no mean: only their seeds.
    """
    from zoo.plotting import style

    styles, names = variant_styles(answer), {row.variant: _name_with_failures(row) for row in answer.rows}
    lines = {row.variant: _lines(answer, row) for row in answer.rows}
    every = [points for seeds in lines.values() for points in seeds if points]
    end = max((x for points in every for x, _ in points), default=1.0)
    ends = []
    with style():
        figure, axes = line_axes(names.values(), 400, 346)
        axes.set(xlim=(0.0, end), ylim=_range_after_warmup(every, end), ylabel=axis_label(answer))
        if (target := target_of(answer.at)) is not None:
            axes.set_ylabel(prose.metric(answer))
            axes.axhline(target, color=LIGHT["grey"], linewidth=1)
        _prefix_ticks(axes, f"{answer.unit}s seen")
        for order, row in enumerate(reversed(answer.rows)):
            colour, _, dashes = styles[row.variant]
            mean, sd = _average(lines[row.variant])
            if len(lines[row.variant]) > 1 or row.failures:
                for points in lines[row.variant]:
                    axes.plot(*xy(points), color=colour, linewidth=1.2 if row.failures else 0.8, alpha=0.35)
            if not row.failures:
                if any(sd):
                    (xs, means), spread = xy(mean), np.array(sd)
                    opacity = 0.16 if len(lines) < 5 else 0.1
                    axes.fill_between(xs, means - spread, means + spread, color=colour, alpha=opacity, linewidth=0)
                axes.plot(*xy(mean), color=colour, linewidth=2.2, dashes=dashes, zorder=3 + order / 100)
            for seed, points in zip(row.figures, lines[row.variant], strict=True):
                if seed in row.failures and (last := last_finite(points)):
                    y = min(last[1], axes.get_ylim()[1])
                    axes.plot(last[0], y, "x", color=colour, markersize=9, markeredgewidth=2.2, clip_on=False, zorder=5)
            ends.append((names[row.variant], styles[row.variant], last_finite(mean) or (end, math.nan)))
        write_end_labels(axes, ends)
    caption = (
        "Thick: mean over seeds; the band is one standard deviation; each thin line is a seed. "
        "A cross: the run failed; the others of its variant are a selection, whose mean is not drawn."
    )
    return ReportChart("curves", "Training", caption, figure)


def draw_differences(answer: Answer) -> ReportChart:
    """Paired differences from the baseline with their 95 % intervals and verdicts."""
    from zoo.plotting import style

    rows, styles = answer.rows[1:], variant_styles(answer)
    verdicts = [
        row.verdict.word + (f", {failure_text(row.failures, len(row.figures))}" if row.failures else "") for row in rows
    ]
    scaled = [row for row in rows if not row.failures] or rows
    with style():
        figure, axes = row_axes([row.label for row in rows], 40, 30, verdicts)
        ends = [end for row in scaled for end in (row.pair.mean, row.pair.low, row.pair.high)]
        limits = pad_range(
            [0.0, *ends, *(difference for row in scaled for difference in row.differences.values())], 0.08
        )
        axes.set_xlim(limits)
        sign_ticks(axes)
        axes.set_xlabel(
            f"{prose.goal(answer)}: difference from {clip_name(answer.base.label)}{unit_in_brackets(answer)}"
        )
        axes.axvline(0.0, color=LIGHT["ink"], linewidth=1.2)
        sides = ("better", "worse") if answer.lower_is_better else ("worse", "better")
        for words, shift, side in ((f"← {sides[0]}", -8, "right"), (f"{sides[1]} →", 8, "left")):
            write_note(axes, words, (0.0, 1.0), (shift, 12), SMALL, LIGHT["grey"], side, axes.get_xaxis_transform())
        for y, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
            colour, marker, _ = styles[row.variant]
            shade = LIGHT[{"better": "good", "worse": "bad"}.get(row.verdict.word, "grey")]
            write_note(axes, verdict, (1.0, y), (14, 0), 12, shade, "left", axes.get_yaxis_transform())
            if not math.isfinite(row.pair.mean):
                continue
            draw_points(
                axes, [difference for difference in row.differences.values() if math.isfinite(difference)], y, colour
            )
            if math.isfinite(row.pair.low):
                draw_interval(axes, (row.pair.low, row.pair.high), y, colour)
            if limits[0] <= row.pair.mean <= limits[1]:
                draw_mark(axes, (row.pair.mean, y), colour, marker, 12)
    caption = "Small: the difference of a seed. Large: their mean with its 95 % interval; an arrow: it goes on outside."
    return ReportChart("differences", f"Difference from {answer.base.label}", caption, figure)


def draw_pareto(answer: Answer, cost: str = "flops") -> ReportChart | None:
    """The headline figure against a cost of COSTS, with the Pareto frontier as a dashed line.

    None if fewer than two variants have that cost, or all cost the same.
    """
    from zoo.plotting import style

    measure = COSTS[cost]
    rows = [row for row in answer.rows if math.isfinite(row.cost[measure.name]) and math.isfinite(row.mean)]
    costs = [row.cost[measure.name] for row in rows]
    if len(rows) < 2 or max(costs) - min(costs) <= 1e-3 * max(costs):
        return None
    sds = [row.sd if math.isfinite(row.sd) else 0.0 for row in rows]
    costs_of = [[number(run.cost.get(measure.name)) for run in answer.runs[row.variant].values()] for row in rows]
    cost_sds = [sd if math.isfinite(sd := mean_and_deviation(values)[1]) else 0.0 for values in costs_of]
    # the baseline's mean plus the paired difference: means of unequal seeds do not differ by what the table says
    paired = [(row, answer.base.mean + row.pair.mean) for row in rows]
    heights_of = [height if math.isfinite(height) else row.mean for row, height in paired]
    points = list(zip(costs, heights_of, strict=True))
    styles = variant_styles(answer)
    with style():
        figure, axes = line_axes((), 380, 326)
        heights = [mean + side * sd for mean, sd in zip(heights_of, sds, strict=True) for side in (-1, 1)]
        widths = [cost + side * sd for cost, sd in zip(costs, cost_sds, strict=True) for side in (-1, 1)]
        axes.set(xlim=pad_range(widths, 0.14), ylim=pad_range(heights, 0.12), ylabel=axis_label(answer))
        _prefix_ticks(axes, measure.axis.replace("token", answer.unit))
        best = frontier(points, measure.low_is_good, answer.lower_is_better)
        axes.plot(*xy(best), color=LIGHT["grey"], linewidth=1.4, dashes=(3.6, 2.9))
        for row, point, sd, cost_sd in zip(rows, points, sds, cost_sds, strict=True):
            colour, marker, _ = styles[row.variant]
            axes.errorbar(*point, yerr=sd, xerr=cost_sd or None, color=colour, elinewidth=1.4)
            draw_mark(axes, point, colour, marker, 13)
        _name_points(axes, [clip_name(row.label) for row in rows], points, sds)
    caption = (
        "Mean and standard deviation over seeds, of the cost too. A dashed line joins what no other variant's mean "
        "beats in both: where bars overlap it may be chance."
    )
    if missing := [_name_with_failures(row) for row in answer.rows if row.failures]:
        caption += f" Without a mean, and not in the chart: {', '.join(missing)}."
    return ReportChart(cost, f"Quality against {measure.word}", caption, figure)


def _name_with_failures(row: Row) -> str:
    """The label, and how many runs failed."""
    name = clip_name(row.label)
    return f"{name} ({failure_text(row.failures, len(row.figures))})" if row.failures else name


def variant_styles(answer: Answer) -> dict[str, SeriesStyle]:
    """A style per variant, the same in all charts: the baseline has the first, the others follow in order of their
    names, so that styles do not depend on results.
    """
    names = sorted(row.variant for row in answer.rows[1:])
    return {name: series_style(index) for index, name in enumerate([answer.baseline, *names])}


def series_style(index: int) -> SeriesStyle:
    """Style of the series number ``index``: black, then six colours, then the same colours dashed."""
    turn = index // len(SERIES)
    colour = LIGHT[SERIES[index % len(SERIES)]]
    return SeriesStyle(colour, MARKERS[(index + turn) % len(MARKERS)], DASHES[turn % len(DASHES)])


def clip_name(name: str, longest: int = LONGEST) -> str:
    """A name shortened in its middle to ``longest`` characters, because variants differ at either end."""
    from zoo.plotting import printable

    whole = printable(name)
    return whole if len(whole) <= longest else f"{whole[: longest // 2]}…{whole[len(whole) - (longest - 1) // 2 :]}"


def frontier(points: Sequence[Point], cheap_is_low: bool, good_is_low: bool) -> list[Point]:
    """The Pareto frontier: the (cost, quality) points that no other point beats in both, cheapest first."""
    signs = 1 if cheap_is_low else -1, 1 if good_is_low else -1
    ordered = sorted(points, key=lambda point: (signs[0] * point[0], signs[1] * point[1]))
    best: list[Point] = []
    for point in ordered:
        if not best or signs[1] * point[1] < signs[1] * best[-1][1]:
            best.append(point)
    return best


def pad_range(values: Sequence[float], share: float = 0.06) -> Range:
    """The range of the finite values, extended by ``share`` of its size on both sides."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = share * (high - low) or abs(high) * 0.02 or 1.0
    return low - room, high + room


def spread_labels(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Positions moved as little as needed to be ``apart`` and within [low, high], so that labels do not overlap."""
    apart = min(apart, (high - low) / max(1, len(places) - 1))
    groups: list[tuple[float, list[int]]] = []  # centre and indices of each group of touching labels
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        middle, group = places[index], [index]
        while groups and middle - groups[-1][0] < apart * (len(group) + len(groups[-1][1])) / 2 - 1e-9:
            neighbour, others = groups.pop()
            middle = (middle * len(group) + neighbour * len(others)) / (len(group) + len(others))
            group = others + group
        groups.append((middle, group))
    order = [index for _, group in groups for index in group]
    moved = [middle + apart * (rank - (len(group) - 1) / 2) for middle, group in groups for rank in range(len(group))]
    for rank, place in enumerate(moved):  # up from the lower bound, then down from the upper one
        moved[rank] = max(place, low if rank == 0 else moved[rank - 1] + apart)
    for rank in reversed(range(len(moved))):
        moved[rank] = min(moved[rank], high if rank == len(moved) - 1 else moved[rank + 1] - apart)
    return [moved[order.index(index)] for index in range(len(places))]


def new_axes(figure: Figure, left: float, top: float, right: float, bottom: float) -> Axes:
    """Axes between these edges, in units from the upper left corner of the figure."""
    from matplotlib.ticker import MaxNLocator

    width, height = figure.get_size_inches() * 72
    axes = figure.add_axes((left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height))
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0, labelsize=SMALL, pad=6)
    axes.tick_params(axis="x", length=4, pad=4)
    axes.xaxis.label.set_fontsize(TEXT)
    axes.yaxis.label.set_fontsize(TEXT)
    axes.xaxis.labelpad = axes.yaxis.labelpad = 8
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return axes


def line_axes(names: Iterable[str], height: float, bottom: float) -> tuple[Figure, Axes]:
    """A figure with axes down to ``bottom``, in units, and room to their right for the names of lines."""
    from zoo.plotting import new_figure, text_width

    figure = new_figure(WIDTH, height)
    room = max((text_width(figure, name, TEXT) + 30 for name in names), default=24)
    axes = new_axes(figure, 74, 14, WIDTH - room, bottom)
    axes.grid(axis="y", linewidth=1)
    return figure, axes


def row_axes(
    labels: Sequence[str], margin: float, top: float, notes: Sequence[str] = (), room: float = 24
) -> tuple[Figure, Axes]:
    """A figure with a row per label, the first on top, vertical hairlines, and room for notes to the right."""
    from zoo.plotting import new_figure, text_width

    names = [clip_name(label) for label in labels]
    figure = new_figure(WIDTH, ROW * len(names) + 62 + top)
    left = margin + max((text_width(figure, name, 13) for name in names), default=0)
    right = WIDTH - room - max((text_width(figure, note, 12) for note in notes), default=0)
    axes = new_axes(figure, left, top, right, top + ROW * len(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", labelsize=13, labelcolor=LIGHT["ink"], pad=12)
    axes.grid(axis="x", linewidth=1)
    return figure, axes


def sign_ticks(axes: Axes) -> None:
    """Label the horizontal axis with signed numbers, with as many decimals as the step between ticks."""
    ticks = axes.get_xticks()
    places = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9)) if len(ticks) > 1 else 3
    axes.xaxis.set_major_formatter(lambda x, _: format_fixed(x, places, sign=True) if round(x, places) else "0")


def _prefix_ticks(axes: Axes, label: str) -> None:
    """Name the horizontal axis, and label it with SI prefixes: 500k, 2M."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def move_system(axes: Axes, system: Any, right: float, up: float) -> Any:
    """A coordinate system of the axes moved by units."""
    from matplotlib.transforms import ScaledTranslation

    return system + ScaledTranslation(right / 72, up / 72, axes.figure.dpi_scale_trans)


def _marker_size(marker: str, size: float) -> float:
    """The size at which a marker looks as large as others of ``size``."""
    return {"s": 0.82, "D": 0.82, "*": 1.3}.get(marker, 0.95) * size


def draw_mark(axes: Axes, point: Point, colour: str, marker: str, size: float) -> None:
    """Draw a marker with an edge in the background colour, so that overlapping markers stay distinct."""
    axes.plot(
        *point, marker, color=colour, markersize=_marker_size(marker, size), markeredgecolor=LIGHT["paper"],
        markeredgewidth=1, clip_on=False, zorder=4,
    )  # fmt: skip


def draw_points(axes: Axes, values: Sequence[float], y: float, colour: str) -> None:
    """Draw a small circle per value a little below a row's interval; those outside of the axes are left out."""
    low, high = axes.get_xlim()
    inside = [value for value in values if low <= value <= high]
    heights = [y + 0.26] * len(inside)
    axes.plot(inside, heights, "o", color=colour, markersize=4.5, alpha=0.55, markeredgewidth=0, clip_on=False)


def write_note(
    axes: Axes, words: str, place: Point, shift: Point, size: float, colour: str, side: Any, system: Any
) -> None:
    """Draw text ``shift`` units beside a place in a coordinate system of the axes."""
    axes.annotate(
        words, place, shift, system, textcoords="offset points", fontsize=size, color=colour, ha=side,
        va="center_baseline", annotation_clip=False,
    )  # fmt: skip


def draw_interval(axes: Axes, ends: Range, y: float, colour: str) -> None:
    """Draw an interval, with an arrow where it continues outside of the axes."""
    low, high = axes.get_xlim()
    inside = [min(max(end, low), high) for end in ends]
    axes.plot(inside, (y, y), color=colour, linewidth=2, solid_capstyle="butt", clip_on=False)
    for place, end, arrow in zip(inside, ends, (4, 5), strict=True):  # matplotlib's CARETLEFT and CARETRIGHT
        marker, size = ("|", 10) if place == end else (arrow, 8)
        axes.plot(place, y, marker=marker, color=colour, markersize=size, markeredgewidth=2, clip_on=False)


def write_end_labels(axes: Axes, ends: Sequence[tuple[str, SeriesStyle, Point]]) -> None:
    """Write the name of each line at its right end, moved apart, with a thin line to the end of the line."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    heights = [min(max((y - low) / (high - low), 0.0), 1.0) if math.isfinite(y) else 1.0 for _, _, (_, y) in ends]
    moved = spread_labels([share * height for share in heights], 17, 0.0, height)
    for (name, mark_style, (x, y)), share, place in zip(ends, heights, moved, strict=True):
        shift = place - share * height
        if math.isfinite(y) and x > right - 1e-3 * (right - left):  # a line that ends before has no tail to here
            axes.annotate(
                "", (1.0, share), (10, shift), "axes fraction", textcoords="offset points", annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-", "color": mark_style.colour, "linewidth": 0.8, "alpha": 0.6, "shrinkA": 0,
                },
            )  # fmt: skip
        axes.plot(
            1.0, 0.0, mark_style.marker, color=mark_style.colour, markersize=_marker_size(mark_style.marker, 9),
            markeredgewidth=0, clip_on=False, transform=move_system(axes, axes.transAxes, 13, place),
        )  # fmt: skip
        axes.annotate(
            name, (1.0, 0.0), (22, place), "axes fraction", textcoords="offset points", fontsize=TEXT,
            va="center_baseline", annotation_clip=False,
        )  # fmt: skip


def _name_points(axes: Axes, names: Sequence[str], points: Sequence[Point], sds: Sequence[float]) -> None:
    """Write a name beside each point, on the first side where it overlaps nothing and stays inside the axes."""
    from matplotlib.transforms import Bbox

    from zoo.plotting import text_width

    to_units = 72 / axes.figure.dpi
    frame = axes.get_window_extent()
    inner = Bbox(frame.get_points() * to_units)
    places = axes.transData.transform(points) * to_units
    tops = axes.transData.transform([(x, y + sd) for (x, y), sd in zip(points, sds, strict=True)])[:, 1] * to_units
    occupied = [Bbox.from_extents(x - 7, y - 8, x + 7, y + 8) for x, y in places]
    occupied += [Bbox.from_extents(x - 1, 2 * y - top, x + 1, top) for (x, y), top in zip(places, tops, strict=True)]
    for index, (name, (x, y)) in enumerate(zip(names, places, strict=True)):
        wide = text_width(axes.figure, name, TEXT)  # type: ignore[arg-type]
        beside = [(11, 0), (-11 - wide, 0), (-wide / 2, 17), (-wide / 2, -17)]
        diagonal = [(9, 15), (9, -15), (-9 - wide, 15), (-9 - wide, -15)]
        boxes = {
            shift: Bbox.from_extents(x + shift[0], y + shift[1] - 8, x + shift[0] + wide, y + shift[1] + 8)
            for shift in (*beside, *diagonal)
        }
        free = (
            shift for shift, box in boxes.items()
            if inner.contains(box.x0, box.y0) and inner.contains(box.x1, box.y1) and not box.count_overlaps(occupied)
        )  # fmt: skip
        shift = next(free, (11, 0))
        occupied.append(boxes[shift])
        axes.annotate(
            name, points[index], shift, textcoords="offset points", fontsize=TEXT, va="center_baseline", zorder=5,
            bbox={"facecolor": LIGHT["paper"], "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def _lines(answer: Answer, row: Row) -> Lines:
    """The (tokens, headline) points of every run that counts."""
    runs = [run for seed, run in answer.runs[row.variant].items() if seed in row.figures]
    return [
        [
            (number(validation.get("tokens")), number(validation[answer.goal]))
            for validation in run.validations
            if answer.goal in validation
        ]
        for run in runs
    ]


def _average(seeds: Lines) -> tuple[list[Point], list[float]]:
    """Mean and standard deviation over the seeds that converged, where all of them have a value.

    Resumed runs may have validated at other steps, so each run is interpolated at the steps of the first.
    """
    whole = [points for points in seeds if points and all(math.isfinite(y) for _, y in points)]
    if not whole:
        return max(seeds, key=len, default=[]), [0.0] * len(max(seeds, key=len, default=[]))
    start, end = max(points[0][0] for points in whole), min(points[-1][0] for points in whole)
    xs = [x for x, _ in whole[0] if start <= x <= end]
    values = np.array([np.interp(xs, [x for x, _ in points], [y for _, y in points]) for points in whole])
    sd = values.std(0, ddof=1) if len(whole) > 1 else np.zeros(len(xs))
    return list(zip(xs, values.mean(0).tolist(), strict=True)), sd.tolist()


def _range_after_warmup(every: Lines, end: float) -> Range:
    """The range of y after the first WARM of training: the initial fall of a loss would hide everything else."""
    late = [y for points in every for x, y in points if x >= WARM * end]
    return pad_range(late or [y for points in every for _, y in points])


def last_finite(points: Sequence[Point]) -> Point | None:
    """The last point with a finite value."""
    return next((point for point in reversed(points) if math.isfinite(point[1])), None)


def xy(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates of points (P, 2), two arrays (P,)."""
    array = np.array(points, dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def axis_label(answer: Answer) -> str:
    """The headline with its unit, ``loss (nats)``."""
    return f"{prose.goal(answer)}{unit_in_brackets(answer)}"


def unit_in_brackets(answer: Answer) -> str:
    """The headline's unit, `` (nats)``, or nothing."""
    return f" ({prose.unit(answer).strip()})" if prose.unit(answer) else ""
