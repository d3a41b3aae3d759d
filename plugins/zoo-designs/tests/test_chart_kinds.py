"""Lines, bars and intervals: whole as files, with their text inside, and what is undefined marked."""

import math

import pytest
from test_charts import check_axes, check_files, check_texts, costly, words
from zoo_designs.charts import IntervalRow, draw_bars, draw_intervals, draw_lines

from zoo.compare.charts import variant_styles
from zoo.compare.verdict import answer

SERIES = {"A": {1: 1.7, 2: 2.9, 4: 4.0}, "B": {1: 1.6, 2: None, 4: None}, "C": {1: None, 2: None, 4: None}}
ROWS = [IntervalRow("norm", -0.1, -0.2, 0.0), IntervalRow("ffn", 0.03), IntervalRow("block", math.nan)]
CHARTS = {
    "lines": draw_lines("lengths", SERIES, ("length", "loss"), ["1×", "2×", "4×"]),
    "bars": draw_bars("parts", ROWS, "change"),
    "intervals": draw_intervals("scores", "Every run", ROWS, "score", 0.5),
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_whole(name):
    check_files(CHARTS[name])
    check_texts(CHARTS[name].figure)
    check_axes(CHARTS[name].figure)


def test_lines_have_the_styles_that_they_are_given():
    compared = answer(costly(4))
    looks, labels = variant_styles(compared), {row.variant: row.label for row in compared.rows}
    chart = draw_lines("x", {label: {1: 1.0, 2: 1.1} for label in reversed(labels.values())}, ("length", "loss"),
                       styles={labels[name]: look for name, look in looks.items()})  # fmt: skip
    means = [line.get_color() for line in chart.figure.axes[0].lines if line.get_linewidth() == 2.2]
    assert means == [looks[name].colour for name in reversed(labels)]


def test_what_is_undefined_is_marked_and_not_drawn():
    chart = draw_lines("x", {"A": {1: 1.0, 2: 1.1}, "B": {1: 1.0, 2: None}}, ("length", "loss"))
    assert "undefined" in words(chart.svg())
    assert len([line for line in chart.figure.axes[0].lines if line.get_marker() == "x"]) == 1
    assert "undefined" not in words(draw_lines("x", {"A": {1: 1.0, 2: 1.1}}, ("length", "loss")).svg())


def test_bars_are_coloured_by_what_is_good():
    assert "var(--c1" in draw_bars("x", [IntervalRow("a", -1.0)], "change").svg()
    assert "var(--c2" in draw_bars("x", [IntervalRow("a", -1.0)], "change", good="high").svg()
