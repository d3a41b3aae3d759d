"""The result of a comparison at several sizes in words, tables and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zoo.compare import prose
from zoo.compare.number_format import NONE, format_fixed, join_words
from zoo.compare.scale_result import ScaleResult, VariantScaling
from zoo.compare.scaling_law import SAMPLES, Crossing, Interval
from zoo.compare.verdict import Answer


@dataclass(frozen=True)
class Section:
    """A part of a report: a title, a paragraph, and a table."""

    title: str
    text: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def sections(answer: Answer) -> list[Section]:
    """What --scale adds to an answer: prediction and check, then differences by size; nothing without it."""
    result = answer.scaling
    if result is None:
        return []
    return [_prediction(answer, result), _by_size(answer, result)]


def as_data(answer: Answer) -> dict[str, Any] | None:
    """The same for --json, with all digits; None without --scale."""
    return None if answer.scaling is None else answer.scaling.as_data()


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
    largest, words = result.sizes[-1], {row.variant: row.verdict.word for row in answer.rows}
    lines = [f"Sizes {join_words(result.sizes[:-1], 8)} were fitted; {largest} was predicted from them and measured."]
    for one in result.variants[1:]:
        if one.reason or one.expected is None:
            lines.append(f"{one.label}: no law ({one.reason}).")
            continue
        check = {True: "as predicted", False: "not as predicted", None: "without an interval"}[one.as_predicted]
        lines.append(
            f"{one.label} was predicted to be {one.predicted_word(answer.lower_is_better)} at {largest}, and is "
            f"{words.get(one.variant, 'not measured')}; its difference is {check}."
        )
    return lines + list(result.notes)


def _prediction(answer: Answer, result: ScaleResult) -> Section:
    places = prose.places(answer)
    trend = any(one.by_doubling for one in result.variants)
    headings = ["variant", f"predicted at {result.sizes[-1]}", "measured", "check", "exponent", "curves cross at FLOPs"]
    headings[-1:-1] = ["per doubling of steps"] if trend else []
    rows = []
    for one in result.variants:
        check = {True: "inside", False: "outside", None: ""}[one.as_predicted]
        cells = [
            one.label, _interval(one.expected, places), format_fixed(one.measured, places, sign=True), check,
            _interval(one.exponent, 3, sign=False),
        ]  # fmt: skip
        cells += [_slope(one, places)] if trend else []
        rows.append([*cells, crossing_text(one.crossing) if one.crossing else one.reason])
    return Section("Does the difference survive scale?", " ".join([*sentences(answer, result), *_legend(result)]),
                   headings, rows)  # fmt: skip


def _legend(result: ScaleResult) -> list[str]:
    """What the laws and their intervals are."""
    text = []
    if result.irreducible is not None:
        floor = result.irreducible
        bound = math.isnan(floor.low) or floor.low <= 0 or floor.value <= 0
        text.append(
            "Law: E + A·C^-α with training FLOPs C, one E for all variants, which these sizes do not identify"
            f" (from 0 to {min(floor.high, result.lowest_loss):.3g} fits)."
            if bound
            else f"Law: E + A·C^-α with training FLOPs C, one E for all variants: {floor.value:.3g} "
            f"({floor.low:.3g} to {min(floor.high, result.lowest_loss):.3g})."
        )
        seeds = len(result.seeds)
        text.append(
            f"95 % intervals hold for all variants together: {SAMPLES:,} bootstrap samples of what the {seeds} seeds "
            "deviate from the mean of their size, variants of a seed together, widened by Student's t; that of "
            "'predicted' is for a mean over as many seeds. Exponents and crossings are of all sizes."
            if seeds > 1
            else "One seed: no intervals."
        )
    return text


def _by_size(answer: Answer, result: ScaleResult) -> Section:
    places, rows = prose.places(answer), []
    for index, size in enumerate(result.sizes):
        for one in result.variants:
            point = next((point for point in one.points if point.size == size), None)
            if point is None:
                continue
            cells = ("", "") if point.pair is None else prose.difference_and_interval(answer, point.pair)
            held_out = "not fitted" if index == len(result.sizes) - 1 else ""
            rows.append([
                size, one.label, format_compute(point.compute), format_fixed(point.mean, places), *cells, held_out,
            ])  # fmt: skip
    headings = ["size", "variant", "FLOPs", prose.goal(answer), "difference", prose.BETWEEN, "law"]
    text = "Differences are paired by seed at each size, and their intervals are for each size alone."
    return Section("Differences by size", text, headings, rows)


def _interval(interval: Interval | None, places: int, sign: bool = True) -> str:
    if interval is None:
        return ""
    value, low, high = (format_fixed(each, places, sign) for each in (interval.value, interval.low, interval.high))
    return value if math.isnan(interval.low) else f"{value} [{low}, {high}]"


def _slope(one: VariantScaling, places: int) -> str:
    pair = one.by_doubling
    return "" if pair is None else _interval(Interval(pair.mean, pair.low, pair.high), places)
