"""Charts as PNG and SVG: text apart and inside the figure, series that can be told apart, geometry as it should be."""

import io
import math
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from fabricate import run, study
from matplotlib.figure import Figure
from PIL import Image

from zoo.compare.charts import (
    DASHES,
    MARKERS,
    clip_name,
    draw_charts,
    draw_curves,
    draw_differences,
    draw_pareto,
    frontier,
    series_style,
    spread_labels,
    variant_styles,
)
from zoo.compare.verdict import answer
from zoo.palette import DARK, LIGHT, SERIES
from zoo.plotting import new_figure, printable, style, text_width, to_image, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def costly(variants=3, seeds=3):
    runs = []
    for index in range(variants):
        for seed in range(1, seeds + 1):
            changes = {"cost.flops_per_token": 1e6 * (1 + index), "cost.tokens_per_s": 9000.0 - 1000 * index}
            name = f"position=P{index}" if index else "default"
            rng = np.random.default_rng([index, seed])
            runs.append(
                run(name, seed, 1.8 - 0.1 * index + 0.03 * rng.standard_normal(), {"position": f"P{index}"}, **changes)
            )
    return runs


def every_chart():
    """Every chart, and the states that a chart may meet."""
    usual = answer(costly())
    diverging = answer([*costly(), *(run("a=lost", seed, diverges=1250) for seed in (1, 2, 3)), run("a=one", 1)])
    bare = answer([run("default", 1, validations=[]), run("a=1", 1, validations=[], choices={"position": "x" * 90})])
    yield "curves", draw_curves(usual)
    yield "lost", draw_curves(diverging)
    yield "bare", draw_curves(bare)
    yield "differences", draw_differences(usual)
    yield "differences-lost", draw_differences(diverging)
    yield "differences-bare", draw_differences(bare)
    yield "flops", draw_pareto(usual)
    yield "speed", draw_pareto(usual, "speed")
    yield "many", draw_curves(answer(study(dict.fromkeys(("default", *(f"a={i}" for i in range(13))), 1.7), seeds=2)))


CHARTS = dict(every_chart())


def texts(figure):
    """Every text that is seen, with its box in pixels."""
    from matplotlib.text import Text

    with style():
        figure.set_dpi(72)
        figure.canvas.draw()
        outside = {
            label
            for axes in figure.axes
            for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim())))
            for tick in axis.get_major_ticks()
            if not low <= tick.get_loc() <= high
            for label in (tick.label1, tick.label2)
        }
        visible = (text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible())
        every = [text for text in visible if text not in outside]
        return [(text.get_text(), text.get_window_extent(figure.canvas.get_renderer())) for text in every]


def words(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_a_png_and_an_svg_with_the_same_text(name):
    check_files(CHARTS[name])


def check_files(chart):
    assert isinstance(chart.figure, Figure)
    width, height = chart.figure.get_size_inches() * 72
    image = Image.open(io.BytesIO(chart.png()))
    assert image.size == (2 * width, 2 * height)
    assert image.info == {}  # no date, no version
    assert len(image.convert("RGB").getcolors(image.width * image.height)) > 5
    svg = chart.svg()
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") == f"0 0 {width:g} {height:g}"
    assert root.get("aria-label") == chart.title
    assert "nan" not in svg
    assert set(words(svg)) >= {text for text, _ in texts(chart.figure)} - {""}


@pytest.mark.parametrize("name", CHARTS)
def test_text_stays_inside_and_apart(name):
    check_texts(CHARTS[name].figure)


def check_texts(figure):
    width, height = figure.get_size_inches() * 72
    boxes = texts(figure)
    for text, box in boxes:
        assert -1 <= box.x0 < box.x1 <= width + 1, text
        assert -1 <= box.y0 < box.y1 <= height + 1, text
    for (one, a), (other, b) in combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 1 or down <= 4, (one, other)  # boxes hold room for accents and descenders


@pytest.mark.parametrize("name", ["curves", "differences", "flops"])
def test_every_axis_has_a_label_and_ticks(name):
    check_axes(CHARTS[name].figure)


def check_axes(figure):
    for axes in figure.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel() or [label.get_text() for label in axes.get_yticklabels()]
        assert len([label for label in axes.get_xticklabels() if label.get_text()]) >= 2


def test_a_chart_is_the_same_bytes_every_time():
    first, second = (CHARTS["curves"], draw_curves(answer(costly())))
    assert first.svg() == second.svg() == second.svg()
    assert first.png() == second.png()


def test_drawing_leaves_no_global_state(monkeypatch):
    import matplotlib
    from matplotlib import pyplot

    monkeypatch.setitem(matplotlib.rcParams, "font.size", 3.0)
    monkeypatch.setitem(matplotlib.rcParams, "axes.facecolor", "red")
    before = dict(matplotlib.rcParams)
    chart = draw_curves(answer(costly()))
    assert chart.png() == CHARTS["curves"].png()  # a user's matplotlibrc changes nothing
    assert dict(matplotlib.rcParams) == before
    assert not pyplot.get_fignums()


def test_names_are_text_and_neither_markup_nor_mathematics():
    runs = [*costly(2), *(run("a=x", seed, choices={"position": "<b>$x_1$ #0072b2"}) for seed in (1, 2, 3))]
    for chart in draw_charts(answer(runs)):
        assert "position=<b>$x_1$ #0072b2" in words(chart.svg())
        assert "<b>" not in chart.svg()


def test_colours_of_a_page_are_variables_of_its_palette():
    svg = CHARTS["differences"].svg()
    styles = " ".join(re.findall(r'style="([^"]*)"', svg))
    assert not re.findall(r"(?<!,)#[0-9a-f]{6}", styles)
    assert {"ink", "grey", "frame", "c1"} <= set(re.findall(r"var\(--(\w+),", styles)) <= set(LIGHT)
    assert set(LIGHT) == set(DARK)


def test_curves_show_every_seed_and_their_band():
    (axes,) = draw_curves(answer(costly(2))).figure.axes
    assert len([line for line in axes.lines if line.get_alpha() == 0.35]) == 6
    assert len(axes.collections) == 2
    assert len([line for line in axes.lines if line.get_linewidth() == 2.2]) == 2


def test_the_cross_of_a_diverged_run_lies_at_its_last_figure():
    result = answer([*costly(2), run("a=x", 1, diverges=1250), run("a=x", 2), run("a=x", 3)])
    (axes,) = draw_curves(result).figure.axes
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    last = [each for each in result.runs["a=x"][1].validations if math.isfinite(each["loss"] or math.nan)][-1]
    assert cross.get_xdata() == [last["tokens"]]


def test_differences_come_with_verdicts():
    labels = words(draw_differences(answer(costly(3, 4))).svg())
    assert {"← better", "worse →", "loss: difference from P0 (nats)", "better"} <= set(labels)
    more = answer([run(each.variant, each.seed, goals={"loss": "max"}) for each in costly(2)])
    assert "← worse" in words(draw_differences(more).svg())


def test_ticks_of_differences_are_signed_and_have_the_same_number_of_places():
    axes = CHARTS["differences"].figure.axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert "0" in labels
    assert all(re.fullmatch(r"0|[+−]\d+\.\d+", label) for label in labels)
    assert len({len(label.partition(".")[2]) for label in labels if label != "0"}) == 1


def test_a_variant_with_a_diverged_run_has_no_mean_and_no_interval_in_any_chart():
    runs = [*costly(3), *(run("a=x", seed, diverges=1250 if seed == 1 else None, loss=1.8) for seed in (1, 2, 3))]
    result = answer(runs)
    (axes,) = draw_differences(result).figure.axes
    assert max(map(abs, axes.get_xlim())) <= 1.0
    marks = [line for line in axes.lines if line.get_marker() not in ("None", "|", "")]
    assert [len(line.get_xdata()) for line in marks] == [3, 1, 3, 1]  # the seeds of P1 and their mean, and of P2
    assert "not distinguishable, 1 of 3 diverged" in words(draw_differences(result).svg())
    (axes,) = draw_curves(result).figure.axes
    assert len([line for line in axes.lines if line.get_linewidth() == 2.2]) == 3
    assert any(text.endswith("(1 of 3 diverged)") for text in words(draw_curves(result).svg()))
    assert draw_pareto(result).caption.endswith("(1 of 3 diverged).")


def test_quality_against_cost_is_paired():
    """A variant that lacks the baseline's worst seed is not drawn better than its paired difference says."""
    base = [run("default", seed, loss=loss) for seed, loss in ((1, 1.7), (2, 1.9), (3, 2.4))]
    runs = [*base, *(run("a=1", s, loss=v, **{"cost.flops_per_token": 4e6}) for s, v in ((1, 1.7), (2, 1.9)))]
    result = answer(runs)
    (axes,) = draw_pareto(result).figure.axes
    heights = [line.get_ydata()[0] for line in axes.lines if len(line.get_ydata()) == 1]
    assert max(heights) - min(heights) == pytest.approx(abs(result.rows[1].pair.mean), abs=1e-9)


def test_the_frontier_is_what_nothing_beats():
    points = [(1.0, 3.0), (2.0, 2.0), (3.0, 2.5), (4.0, 1.0), (1.0, 4.0)]
    assert frontier(points, True, True) == [(1.0, 3.0), (2.0, 2.0), (4.0, 1.0)]
    assert frontier(points, False, True) == [(4.0, 1.0)]
    assert frontier(points, True, False) == [(1.0, 4.0)]
    assert frontier([(9.0, 0.5), (5.0, 0.9), (7.0, 0.4)], False, False) == [(9.0, 0.5), (5.0, 0.9)]


def test_no_pareto_where_all_cost_the_same():
    same = answer(study({"default": 1.7, "a=1": 1.6}))
    assert draw_pareto(same) is None
    assert [chart.name for chart in draw_charts(same)] == ["curves", "differences", "speed"]
    assert [chart.name for chart in draw_charts(answer(costly()))] == ["curves", "differences", "flops", "speed"]
    assert [chart.name for chart in draw_charts(answer([run("default", 1)]))] == ["curves"]


def test_colours_do_not_change_with_results():
    first = variant_styles(answer(study({"default": 1.7, "a=1": 1.5, "a=2": 1.9})))
    second = variant_styles(answer(study({"default": 1.7, "a=1": 1.9, "a=2": 1.5})))
    assert first == second
    assert first["default"].colour == LIGHT["ink"]


def test_a_variant_has_one_colour_in_every_chart():
    compared = answer(costly(4))
    looks = variant_styles(compared)
    labels = {row.variant: row.label for row in compared.rows}
    others = {labels[name]: look.colour for name, look in looks.items() if name != compared.baseline}
    for chart in (draw_curves(compared), draw_differences(compared), draw_pareto(compared)):
        for label, colour in others.items():
            assert colour in {line.get_color() for line in chart.figure.axes[0].lines}, (chart.name, label)
    (axes,) = draw_differences(compared).figure.axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    marks = {rows[int(line.get_ydata()[0])]: line.get_color() for line in axes.lines if line.get_zorder() == 4}
    assert marks == others


def test_series_can_be_told_apart():
    looks = [series_style(index) for index in range(len(DASHES) * len(SERIES))]
    assert len(set(looks)) == len(looks)
    assert len({look.marker for look in looks[: len(SERIES)]}) == len(SERIES) == len(MARKERS)


def test_labels_are_moved_apart_and_stay_inside():
    moved = spread_labels([10, 11, 12, 50], 17, 0, 100)
    assert sorted(moved) == moved
    assert min(b - a for a, b in pairwise(moved)) >= 17 - 1e-9
    assert moved[0] >= 0
    assert spread_labels([50, 10], 17, 0, 100) == [50, 10]
    low = spread_labels([98, 99, 100], 17, 0, 100)
    assert max(low) <= 100


def test_long_names_keep_both_ends():
    assert clip_name("norm=rmsnorm,position=alibi,ffn=swiglu") == "norm=rmsnorm,po…ibi,ffn=swiglu"
    assert len(clip_name("x" * 90)) == 30
    assert clip_name("short") == "short"


@pytest.mark.parametrize("word", ["日本語", "שלום", "مرحبا", "🙂", "नमस्ते", "\U000f1234", "e\u0301"])
def test_every_character_leaves_a_trace_whatever_fonts_there_are(word, recwarn):
    images = []
    for text in ("", word):
        with style():
            figure = new_figure(200, 40)
            figure.text(0.1, 0.3, text, fontsize=20)
        images.append(np.asarray(to_image(figure)).astype(int))
        assert printable(word) == "" or to_svg(figure, word).startswith("<svg")
    assert (np.abs(images[0] - images[1]) > 100).sum() > 50
    assert text_width(figure, word, 20) > 5
    assert not recwarn.list


def test_control_characters_are_escaped():
    assert printable("a\n\x00\u200b") == "a\\n\\x00\\x200b"
    assert printable("e\u0301") == "é"
    assert printable("x" * 30, 10) == "x" * 9 + "…"
