"""Charts of a comparison at several sizes: losses with their laws, and differences with what was predicted."""

from __future__ import annotations

import math

from zoo.compare import prose
from zoo.compare.charts import (
    SMALL,
    WIDTH,
    ReportChart,
    SeriesStyle,
    clip_name,
    new_axes,
    pad_range,
    series_style,
    write_end_labels,
)
from zoo.compare.scale_result import ScaleResult, VariantScaling
from zoo.compare.scale_table import format_compute
from zoo.compare.verdict import Answer
from zoo.palette import LIGHT


def draw_scaling(answer: Answer) -> list[ReportChart]:
    """The charts of --scale; none without it, or where no law could be fitted."""
    result = answer.scaling
    if result is None or all(variant.reason for variant in result.variants[1:]):
        return []
    names = sorted(variant.variant for variant in result.variants[1:])
    styles = {name: series_style(1 + index) for index, name in enumerate(names)}
    styles[result.variants[0].variant] = series_style(0)
    return [_draw_losses(answer, result, styles), _draw_differences(answer, result, styles)]


def _draw_losses(answer: Answer, result: ScaleResult, styles: dict[str, SeriesStyle]) -> ReportChart:
    """Mean losses over training FLOPs, with the laws of the smaller sizes up to the largest."""
    from zoo.plotting import new_figure, style, text_width

    ends = []
    with style():
        figure = new_figure(WIDTH, 400)
        room = 30 + max(text_width(figure, clip_name(variant.label), 12.5) for variant in result.variants)
        axes = new_axes(figure, 74, 14, WIDTH - room, 346)
        axes.set_xscale("log")
        computes = [point.compute for variant in result.variants for point in variant.points]
        axes.set_xlim(min(computes) / 1.1, max(computes) * 1.1)
        axes.set_ylim(
            pad_range([p.mean for variant in result.variants for p in variant.points if math.isfinite(p.mean)])
        )
        axes.set(xlabel="FLOPs of training", ylabel=f"validation {prose.goal(answer)}{_unit(answer)}")
        ticks = [point.compute for point in result.variants[0].points]
        axes.set_xticks(ticks, [format_compute(compute) for compute in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", linewidth=1)
        for variant in result.variants:
            mark_style = styles[variant.variant]
            if variant.curve:
                axes.plot(
                    *zip(*variant.curve, strict=True), color=mark_style.colour, linewidth=1.6, dashes=mark_style.dashes
                )
            for point in variant.points:
                is_largest = point.size == result.sizes[-1]
                axes.plot(
                    point.compute, point.mean, mark_style.marker, color=mark_style.colour, markersize=8, clip_on=False,
                    zorder=4,
                    markerfacecolor=LIGHT["paper"] if is_largest else mark_style.colour, markeredgewidth=1.6,
                )  # fmt: skip
            last = variant.points[-1] if variant.points else None
            ends.append(
                (clip_name(variant.label), mark_style, (last.compute, last.mean) if last else (math.nan, math.nan))
            )
        write_end_labels(axes, ends)
    caption = (
        f"Points are means over seeds; lines are laws of {', '.join(result.sizes[:-1])}. Hollow: {result.sizes[-1]}, "
        "which was not fitted."
    )
    return ReportChart("scale-losses", "Loss against compute", caption, figure)


def _draw_differences(answer: Answer, result: ScaleResult, styles: dict[str, SeriesStyle]) -> ReportChart:
    """Differences from the baseline by size with intervals, and at the largest size the predicted one beside."""
    from zoo.plotting import new_figure, style, text_width

    variants = [variant for variant in result.variants[1:] if not variant.reason]
    ends = []
    with style():
        figure = new_figure(WIDTH, 360)
        room = 30 + max(text_width(figure, clip_name(variant.label), 12.5) for variant in variants)
        axes = new_axes(figure, 74, 14, WIDTH - room, 300)
        axes.set_xlim(-0.5, len(result.sizes) - 0.5)
        axes.set_xticks(range(len(result.sizes)), [clip_name(size) for size in result.sizes])
        axes.axhline(0.0, color=LIGHT["ink"], linewidth=1.2)
        axes.set_ylabel(f"difference from the baseline{_unit(answer)}")
        axes.grid(axis="y", linewidth=1)
        values = [0.0, *(value for variant in variants for value in _heights(variant))]
        axes.set_ylim(pad_range(values))
        for index, variant in enumerate(variants):
            mark_style, shift = styles[variant.variant], 0.5 * ((index + 0.5) / len(variants) - 0.5)
            places = [(result.sizes.index(p.size) + shift, p.pair) for p in variant.points if p.pair is not None]
            axes.plot([x for x, _ in places], [pair.mean for _, pair in places], color=mark_style.colour, linewidth=1,
                      alpha=0.4)  # fmt: skip
            for x, pair in places:
                if math.isfinite(pair.low):
                    axes.plot((x, x), (pair.low, pair.high), color=mark_style.colour, linewidth=1.6)
                axes.plot(x, pair.mean, mark_style.marker, color=mark_style.colour, markersize=7, zorder=4)
            expected = variant.expected
            if expected is not None:
                x = len(result.sizes) - 1 + shift + 0.07
                if math.isfinite(expected.low):
                    axes.plot(
                        (x, x), (expected.low, expected.high), color=mark_style.colour, linewidth=1.2, linestyle=":"
                    )
                axes.plot(x, expected.value, mark_style.marker, color=mark_style.colour, markerfacecolor=LIGHT["paper"],
                          markersize=7, zorder=4)  # fmt: skip
            ends.append((clip_name(variant.label), mark_style, (len(result.sizes) - 0.5, places[-1][1].mean)))
        write_end_labels(axes, ends)
        axes.tick_params(axis="x", labelsize=SMALL)
    caption = (
        "Filled: measured, with the 95 % interval of each size. Hollow and dotted: predicted from the smaller sizes, "
        "with the interval for the mean of as many seeds."
    )
    return ReportChart("scale-differences", "Differences by size", caption, figure)


def _unit(answer: Answer) -> str:
    unit = prose.unit(answer).strip()
    return f" ({unit})" if unit else ""


def _heights(variant: VariantScaling) -> list[float]:
    """What the vertical axis has to hold: differences with their intervals, those beyond three times as far cut."""
    means = [point.pair.mean for point in variant.points if point.pair is not None]
    bounds = [end for point in variant.points if point.pair is not None for end in (point.pair.low, point.pair.high)]
    if variant.expected is not None:
        means.append(variant.expected.value)
        bounds += [variant.expected.low, variant.expected.high]
    limit = 3 * max(abs(mean) for mean in means)
    return [*means, *(max(-limit, min(limit, end)) for end in bounds if math.isfinite(end))]
