"""Charts as pictures and as SVG: all of it inside, nothing that is not a number, the geometry as it should be."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from fabricate import ledger, run, study

from zoo.compare.answer import answer
from zoo.compare.axes import cut, plain, round_numbers, signed, spread
from zoo.compare.charts import curves, figures, forest, frontier, pareto, style
from zoo.compare.drawing import DARK, LIGHT, SERIES, SHARP, Drawing, dashes, width_of
from zoo.compare.labels import clipped, look
from zoo.compare.probes import Bar, bars, lines


def costly(variants=3):
    runs = []
    for index in range(variants):
        for seed in (1, 2, 3):
            changes = {"cost.flops_per_token": 1e6 * (1 + index), "cost.tokens_per_s": 9000.0 - 1000 * index}
            name = f"position=P{index}" if index else "default"
            rng = np.random.default_rng([index, seed])
            runs.append(
                run(name, seed, 1.8 - 0.1 * index + 0.03 * rng.standard_normal(), {"position": f"P{index}"}, **changes)
            )
    return runs


def drawings():
    """Every chart, and the states that a chart may meet."""
    found = answer(costly())
    lost = answer([*costly(), *(run("a=lost", seed, diverges=1250) for seed in (1, 2, 3)), run("a=one", 1)])
    bare = answer([run("default", 1, validations=[]), run("a=1", 1, validations=[], choices={"position": "x" * 90})])
    probe = {"A": {1: 1.7, 2: 2.9, 4: 4.0}, "B": {1: 1.6, 2: None, 4: None}, "C": {1: None, 2: None, 4: None}}
    yield "curves", curves(found)
    yield "lost", curves(lost)
    yield "bare", curves(bare)
    yield "forest", forest(found)
    yield "forest-lost", forest(lost)
    yield "forest-bare", forest(bare)
    yield "flops", pareto(found)
    yield "speed", pareto(found, "speed")
    yield "lines", lines("lengths", probe, ("length", "loss"), ["1×", "2×", "4×"], {"A": {1: 0.1, 2: 0.1, 4: 0.2}})
    yield "bars", bars("parts", [Bar("norm", -0.1, -0.2, 0.0), Bar("ffn", 0.03), Bar("block", math.nan)], "change")
    yield "many", curves(answer(study(dict.fromkeys(("default", *(f"a={i}" for i in range(13))), 1.7), seeds=2)))


@pytest.mark.parametrize(("name", "drawing"), [*drawings()])
def test_a_chart_is_a_picture_and_the_same_as_svg(name, drawing):
    image = drawing.image()
    assert image.size == (drawing.width * SHARP, drawing.height * SHARP)
    assert len(set(map(tuple, np.asarray(image).reshape(-1, 3)[::7]))) > 5
    root = ElementTree.fromstring(drawing.svg())
    assert root.get("viewBox") == f"0 0 {drawing.width} {drawing.height}"
    assert "nan" not in drawing.svg().replace("NaN", "nan")
    assert "inf" not in re.sub(r"<t(ext|itle).*?</t(ext|itle)>", "", drawing.svg())
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words
    for each in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in each.get("points").split():
            x, y = map(float, point.split(","))
            assert -1 <= x <= drawing.width + 1, name
            assert -1 <= y <= drawing.height + 1, name


def test_text_stays_inside_and_apart():
    drawing = Drawing(400, 100, "x")
    drawing.text("label", 390, 50, anchor="end")
    image = np.asarray(drawing.image())
    dark = np.argwhere(image.min(2) < 128)
    seen = dark[:, 1].min() / SHARP, dark[:, 1].max() / SHARP
    assert 390 - width_of("label") - 1 <= seen[0] < seen[1] <= 391
    assert dark[:, 0].mean() / SHARP == pytest.approx(50, abs=3)


def test_a_halo_keeps_lines_off_text():
    dark = []
    for halo in (False, True):
        drawing = Drawing(200, 60, "x")
        drawing.line([(0, 30), (200, 30)], "ink", 3)
        drawing.text("oo", 100, 30, 20, "paper", "middle", halo=halo)
        dark.append((np.asarray(drawing.image())[:, 160:240].min(2) < 128).sum())
        assert ("paint-order" in drawing.svg()) == halo
    assert dark[1] < 0.7 * dark[0]


def test_curves_show_every_seed_and_their_band():
    svg = curves(answer(costly(2))).svg()
    assert svg.count('stroke-opacity="0.35"') == 6
    assert svg.count("fill-opacity") == 2
    assert svg.count('stroke-width="2.2"') == 2


def test_the_cross_of_a_diverged_run_lies_at_its_last_figure():
    svg = curves(answer([*costly(2), run("a=x", 1, diverges=1250), run("a=x", 2), run("a=x", 3)])).svg()
    assert svg.count('stroke-width="2.2"') == 3 + 2  # three means, and two strokes of one cross


def test_forest_shows_differences_and_verdicts():
    svg = forest(answer(costly(3))).svg()
    assert "← better" in svg
    assert "loss: difference from P0 (nats)" in svg
    assert svg.index("← better") < svg.index("worse →")
    more = forest(answer([run(each.variant, each.seed, goals={"loss": "max"}) for each in costly(2)])).svg()
    assert "← worse" in more


def test_one_diverged_run_does_not_hide_the_others():
    """Its interval is as wide as the axis would be otherwise; an arrow says that it goes on."""
    runs = [*costly(3), *(run("a=x", seed, diverges=1250 if seed == 1 else None, loss=1.8) for seed in (1, 2, 3))]
    ticks = re.findall(r">([+−]\d\.?\d*)</text>", forest(answer(runs)).svg())
    assert ticks
    assert max(abs(float(tick.replace("−", "-"))) for tick in ticks) <= 1.0


def test_the_frontier_is_what_nothing_beats():
    points = [(1.0, 3.0), (2.0, 2.0), (3.0, 2.5), (4.0, 1.0), (1.0, 4.0)]
    assert frontier(points, True, True) == [(1.0, 3.0), (2.0, 2.0), (4.0, 1.0)]
    assert frontier(points, False, True) == [(4.0, 1.0)]
    assert frontier(points, True, False) == [(1.0, 4.0)]
    assert frontier([(9.0, 0.5), (5.0, 0.9), (7.0, 0.4)], False, False) == [(9.0, 0.5), (5.0, 0.9)]


def test_no_pareto_where_all_cost_the_same():
    found = answer(study({"default": 1.7, "a=1": 1.6}))
    assert pareto(found) is None
    assert [figure.name for figure in figures(found)] == ["curves", "differences", "speed"]
    assert [figure.name for figure in figures(answer(costly()))] == ["curves", "differences", "flops", "speed"]
    assert [figure.name for figure in figures(answer([run("default", 1)]))] == ["curves"]


def test_colours_do_not_change_with_results():
    first = style(answer(study({"default": 1.7, "a=1": 1.5, "a=2": 1.9})))
    second = style(answer(study({"default": 1.7, "a=1": 1.9, "a=2": 1.5})))
    assert first == second
    assert first["default"][0] == "c0"


def test_series_can_be_told_apart():
    looks = [look(index) for index in range(3 * SERIES)]
    assert len(set(looks)) == len(looks)
    assert len({shape for _, shape, _ in looks[:SERIES]}) == SERIES
    assert set(LIGHT) == set(DARK)


def test_what_is_undefined_is_marked_and_not_drawn():
    svg = lines("x", {"A": {1: 1.0, 2: 1.1}, "B": {1: 1.0, 2: None}}, ("length", "loss")).svg()
    assert "undefined" in svg
    assert "undefined" not in lines("x", {"A": {1: 1.0, 2: 1.1}}, ("length", "loss")).svg()


def test_bars_are_coloured_by_what_is_good():
    down = bars("x", [Bar("a", -1.0)], "change").svg()
    assert "var(--c1" in down
    assert "var(--c2" in bars("x", [Bar("a", -1.0)], "change", good="high").svg()


def test_ticks_are_round_numbers():
    assert round_numbers(0.0, 6_144_000.0, 6) == [0.0, 2e6, 4e6, 6e6]
    assert round_numbers(1.49, 1.93, 6) == pytest.approx([1.5, 1.6, 1.7, 1.8, 1.9])
    assert round_numbers(2.0, 2.0, 6) == [2.0]
    assert plain([0.0, 2e6, 4e6]) == ["0", "2M", "4M"]
    assert plain([1.8e6, 1.9e6, 2.0e6]) == ["1.8M", "1.9M", "2.0M"]
    assert plain([1.5, 1.6]) == ["1.5", "1.6"]
    assert plain([1.65]) == ["1.650"]
    assert signed([-0.1, 0.0, 0.1]) == ["−0.1", "0", "+0.1"]


def test_lines_are_cut_at_the_frame():
    assert cut([(0, -10), (10, 10)], 0, 20) == [[(5, 0), (10, 10)]]
    assert cut([(0, 5), (1, 6), (2, 7)], 0, 20) == [[(0, 5), (1, 6), (2, 7)]]
    assert cut([(0, -5), (1, -6)], 0, 20) == []
    assert cut([(0, -5), (1, -5)], 0, 20) == []
    assert cut([(0, -10), (1, 10), (2, -10)], 0, 20) == [[(0.5, 0), (1, 10), (1.5, 0)]]
    assert cut([(0, 10), (1, -10), (2, 10)], 0, 20) == [[(0, 10), (0.5, 0)], [(1.5, 0), (2, 10)]]


def test_dashes_cover_what_they_should():
    pieces = dashes([(0, 0), (10, 0)], (2, 3))
    assert pieces == [[(0, 0), (2, 0)], [(5, 0), (7, 0)], [(10, 0)]] or pieces[:2] == [
        [(0, 0), (2, 0)],
        [(5, 0), (7, 0)],
    ]
    around = dashes([(0, 0), (3, 0), (3, 3)], (4, 1))
    assert around[0] == [(0, 0), (3, 0), (3, 1)]


def test_labels_are_moved_apart_and_stay_inside():
    moved = spread([10, 11, 12, 50], 17, 0, 100)
    assert sorted(moved) == moved
    assert min(b - a for a, b in pairwise(moved)) >= 17 - 1e-9
    assert moved[0] >= 0
    assert spread([50, 10], 17, 0, 100) == [50, 10]
    low = spread([98, 99, 100], 17, 0, 100)
    assert max(low) <= 100


def test_long_names_keep_both_ends():
    assert clipped("norm=rmsnorm,position=alibi,ffn=swiglu") == "norm=rmsnorm,po…ibi,ffn=swiglu"
    assert len(clipped("x" * 90)) == 30
    assert clipped("short") == "short"


def test_a_chart_of_a_file_is_the_chart_of_its_runs():
    assert ledger()["validations"][-1]["tokens"] == 6_144_000
