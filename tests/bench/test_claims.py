"""Claims over seeds: what is read from the lessons, intervals, and the tables."""

import math

import pytest
from scipy import stats

from bench.studies import claims
from bench.study import Options
from zoo.errors import UsageError


def table(*lines, headings=("length", "4", "8", "16")):
    return {"headings": headings, "lines": [list(line) for line in lines]}


def test_an_interval_is_that_of_students_t():
    values = [3.1, 2.9, 3.4, 3.3, 2.7]
    low, high = stats.t.interval(0.95, 4, sum(values) / 5, stats.sem(values))
    mean, half = claims.interval(values)
    assert mean - half == pytest.approx(low)
    assert mean + half == pytest.approx(high)
    assert claims.with_interval(values) == "3.08 ± 0.36"
    assert claims.with_interval([1.0, 1.0, 1.0]) == "1.0000 ± 0.0000"


def test_the_interval_of_a_factor_is_that_of_its_logarithm():
    values = [0.1, 1.0, 10.0]
    _, half = claims.interval([math.log(value) for value in values])
    assert claims.as_factor(values) == f"1 ×/÷ {math.exp(half):,.0f}"
    assert claims.as_factor([2.0, 2.0, 2.0], 3) == "2 ×/÷ 1.00"


def test_gradients_have_a_factor_for_each_token():
    halving = [[{"en": "RNN", "zh": "循环"}, *(2.0 ** (shift - n) for n in (4, 8, 16))] for shift in range(3)]
    (row,) = claims.gradients_table([table(line) for line in halving]).rows
    assert row[0] == "RNN"
    assert row[1].startswith("0.13 ×/÷")  # the geometric mean of 1/16, 1/8 and 1/4
    assert row[-1] == "0.5 ×/÷ 1.00"


def test_a_power_law_of_sizes_has_its_exponent_and_says_for_how_many_seeds_it_falls():
    falling = {"values": {f"{n:,}": n**-0.25 for n in (100, 1600, 25_600)}}
    other = {"values": {**falling["values"], "25,600": 1.0}}
    result = claims.sizes_table([falling, falling, falling])
    assert result.rows[-1] == ["exponent", "-0.2500 ± 0.0000"]
    assert "with 3 of 3 seeds" in result.notes[0]
    assert "with 2 of 3 seeds" in claims.sizes_table([falling, other, falling]).notes[0]


def test_the_difference_of_positions_is_by_seed():
    def of_seed(shift):
        return table(
            ["no position", 9, 0.2, 0.2], ["added", 9, 0.8 + shift, 0.5], ["concatenated", 8, 0.9 + shift, 0.5]
        )

    rows = {row[0]: row[1:] for row in claims.positions_table([of_seed(shift) for shift in (0.0, 0.1, 0.05)]).rows}
    assert rows["concatenated − added"] == ["", "0.1000 ± 0.0000", "0.0000 ± 0.0000"]  # though both vary
    assert rows["added"][:2] == [9, "0.85 ± 0.12"]


def test_fewer_than_three_seeds_are_refused():
    with pytest.raises(UsageError, match="--turns 3"):
        claims.study(Options(turns=2))
