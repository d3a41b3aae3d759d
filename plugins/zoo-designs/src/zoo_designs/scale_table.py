"""The result of a comparison at several sizes in words, tables and JSON."""

from __future__ import annotations

import math

from zoo.compare import prose
from zoo.compare.charts import (
    SMALL,
    ReportChart,
    SeriesStyle,
    axis_label,
    clip_name,
    line_axes,
    pad_range,
    series_style,
    unit_in_brackets,
    write_end_labels,
)
from zoo.compare.document import Section
from zoo.compare.number_format import NONE, format_fixed, format_interval, join_words
from zoo.compare.statistics import Interval
from zoo.compare.verdict import Answer
from zoo.palette import LIGHT
from zoo_designs.scale_result import SAMPLES, Crossing, ScaleResult, VariantScaling


def sections(answer: Answer) -> list[Section]:
    """What --scale adds to an answer: prediction and check, laws, differences by size."""
    result: ScaleResult = answer.finding
    return [_prediction(answer, result), *([_laws(result)] if result.irreducible else []), _by_size(answer, result)]


def format_compute(flops: float) -> str:
    """``1.25e13``: FLOPs of training."""
    return f"{flops:.2e}".replace("e+", "e") if math.isfinite(flops) else NONE


def crossing_text(crossing: Crossing) -> str:
    """``1.2e13 (8.0e12 to 4.1e13)``, ``none between 1e11 and 1e14``."""
    low, high = map(format_compute, crossing.searched)
    if not crossing.possible:
        return f"none from {low} to {high}"
    if crossing.low is None and crossing.high is None:
        bounds = "anywhere, or none"
    else:
        start, end = (NONE if bound is None else format_compute(bound) for bound in (crossing.low, crossing.high))
        bounds = (
            f"{end} or below, or none" if crossing.low is None
            else f"{start} or beyond, or none" if crossing.high is None else f"{start} to {end}"
        )  # fmt: skip
    return f"{format_compute(crossing.value)} ({bounds})" if crossing.value is not None else bounds


def sentences(answer: Answer, result: ScaleResult) -> list[str]:
    """Whether each difference survives scale, as the largest size shows."""
    largest, verdicts = result.sizes[-1], {row.variant: row.verdict.word for row in answer.rows}
    lines = [f"Sizes {join_words(result.sizes[:-1], 8)} were fitted; {largest} was predicted from them and measured."]
    for variant in result.variants[1:]:
        if variant.reason or variant.expected is None:
            lines.append(f"{variant.label}: no law ({variant.reason}).")
            continue
        words = (variant.predicted_word(answer.lower_is_better), verdicts.get(variant.variant, "not measured"))
        check = {True: "; the difference is inside of its prediction", False: "; the difference is outside of its "
                 "prediction", None: ""}[variant.as_predicted]  # fmt: skip
        lines.append(f"{variant.label}: predicted {words[0]}, measured {words[1]}{check}.")
    return lines + list(result.notes)


def _prediction(answer: Answer, result: ScaleResult) -> Section:
    places = prose.places(answer)
    rows = [
        [
            variant.label, _interval(variant.expected, places), format_fixed(variant.measured, places, sign=True),
            {True: "inside", False: "outside", None: variant.reason}[variant.as_predicted],
            _interval(None if slope is None else Interval(slope.mean, *slope.bounds), places),
        ]
        for variant in result.variants[1:] for slope in [variant.by_doubling]
    ]  # fmt: skip
    text = " ".join(sentences(answer, result))
    if any(variant.by_doubling for variant in result.variants):
        text += (
            " Per doubling: how the difference changes with each doubling of the steps, in the second half of training."
        )
    headings = ["variant", "predicted", "measured", "check", "per doubling"]
    return Section("Does the difference survive scale?", headings, rows, text)


def _laws(result: ScaleResult) -> Section:
    """Exponents, crossings, and what the laws and their intervals are."""
    floor, seeds = result.irreducible, len(result.seeds)
    assert floor is not None
    text, high = "L = E + A·C^-α for loss L and training FLOPs C, with one E for all variants", min(
        floor.high, result.lowest_loss
    )  # fmt: skip
    if math.isnan(floor.low) or floor.low <= 0 or floor.value <= 0:
        text += f", which these sizes do not identify{'' if math.isnan(high) else f': 0 to {high:.3g} fits'}."
    else:
        text += f": {floor.value:.3g} ({floor.low:.3g} to {high:.3g})."
    text += (
        f" 95 % intervals hold for all variants together: {SAMPLES:,} bootstrap samples of what the {seeds} seeds "
        "deviate from the mean of their size, variants of a seed together, widened by Student's t. Those of "
        "predictions are for a mean of as many seeds; exponents and crossings are of all sizes."
        if seeds > 1
        else " One seed: no intervals."
    )
    rows = [
        [
            variant.label,
            _interval(variant.exponent, 3, sign=False),
            crossing_text(variant.crossing) if variant.crossing else variant.reason,
        ]
        for variant in result.variants
    ]
    return Section("Laws of loss and compute", ["variant", "exponent α", "crosses the baseline at FLOPs"], rows, text)


def _by_size(answer: Answer, result: ScaleResult) -> Section:
    places, rows = prose.places(answer), []
    for size in result.sizes:
        for variant in result.variants:
            point = next((point for point in variant.points if point.size == size), None)
            if point is None:
                continue
            pair = () if point.pair is None else prose.difference_and_interval(answer, point.pair)
            figure = format_fixed(point.mean, places)
            rows.append([size, variant.label, format_compute(point.compute), figure, " ".join(pair)])
    headings = ["size", "variant", "FLOPs", prose.goal(answer), f"difference, {prose.BETWEEN}"]
    text = (
        f"Differences are paired by seed at each size, and their intervals are for each size alone; {result.sizes[-1]} "
        "is not in the laws that predict it."
    )
    return Section("Differences by size", headings, rows, text)


def _interval(interval: Interval | None, places: int, sign: bool = True) -> str:
    return "" if interval is None else format_interval(interval, places, sign)


def draw_scaling(answer: Answer) -> list[ReportChart]:
    """The charts of --scale; none where no law could be fitted."""
    result: ScaleResult = answer.finding
    if all(variant.reason for variant in result.variants[1:]):
        return []
    names = sorted(variant.variant for variant in result.variants[1:])
    styles = {name: series_style(1 + index) for index, name in enumerate(names)}
    styles[result.variants[0].variant] = series_style(0)
    return [_draw_losses(answer, result, styles), _draw_differences(answer, result, styles)]


def _draw_losses(answer: Answer, result: ScaleResult, styles: dict[str, SeriesStyle]) -> ReportChart:
    """Mean losses over training FLOPs, with the laws of the smaller sizes up to the largest."""
    from zoo.plotting import style

    ends = []
    with style():
        figure, axes = line_axes([clip_name(variant.label) for variant in result.variants], 400, 346)
        axes.set_xscale("log")
        computes = [point.compute for variant in result.variants for point in variant.points]
        axes.set_xlim(min(computes) / 1.1, max(computes) * 1.1)
        axes.set_ylim(
            pad_range([p.mean for variant in result.variants for p in variant.points if math.isfinite(p.mean)])
        )
        axes.set(xlabel="FLOPs of training", ylabel=f"validation {axis_label(answer)}")
        ticks = [point.compute for point in result.variants[0].points]
        axes.set_xticks(ticks, [format_compute(compute) for compute in ticks])
        axes.minorticks_off()
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
    from zoo.plotting import style

    variants = [variant for variant in result.variants[1:] if not variant.reason]
    ends = []
    with style():
        figure, axes = line_axes([clip_name(variant.label) for variant in variants], 360, 300)
        axes.set_xlim(-0.5, len(result.sizes) - 0.5)
        axes.set_xticks(range(len(result.sizes)), [clip_name(size) for size in result.sizes])
        axes.axhline(0.0, color=LIGHT["ink"], linewidth=1.2)
        axes.set_ylabel(f"difference from the baseline{unit_in_brackets(answer)}")
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


def _heights(variant: VariantScaling) -> list[float]:
    """What the vertical axis has to hold: differences with their intervals, those beyond three times as far cut."""
    means = [point.pair.mean for point in variant.points if point.pair is not None]
    bounds = [end for point in variant.points if point.pair is not None for end in (point.pair.low, point.pair.high)]
    if variant.expected is not None:
        means.append(variant.expected.value)
        bounds += [variant.expected.low, variant.expected.high]
    limit = 3 * max(abs(mean) for mean in means)
    return [*means, *(max(-limit, min(limit, end)) for end in bounds if math.isfinite(end))]
