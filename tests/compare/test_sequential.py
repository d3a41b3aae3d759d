"""The sequential test: its wealth is a martingale whatever the sizes of the differences: all signs are enumerated."""

import itertools
import math

import numpy as np
import pytest

from zoo.compare import statistics
from zoo.compare.statistics import BETS, confidence_sequence, fewest_sequential_seeds, last_p, log_wealth, p_values

SEEDS = 12
SIGNS = np.array(list(itertools.product((1.0, -1.0), repeat=SEEDS)))  # all 4,096
SIZES = {
    "equal": np.ones(SEEDS),
    "normal": np.abs(np.random.default_rng(0).standard_normal(SEEDS)),
    "Cauchy": np.abs(np.random.default_rng(1).standard_cauchy(SEEDS)),
    "growing": 3.0 ** np.arange(SEEDS),
    "shrinking": 3.0 ** -np.arange(SEEDS),
    "accuracies in steps, some of them zero": np.array([0, 1, 1, 0, 2, 1, 0, 0, 1, 3, 1, 1]) / 100,
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("side", ["both", "positive"])
def test_wealth_has_mean_one_over_all_signs(sizes, side):
    assert np.exp(log_wealth(SIGNS * sizes, side)).mean(axis=0) == pytest.approx(np.ones(SEEDS), rel=1e-12)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("level", [0.3, 0.1, 0.05, 0.01])
def test_a_look_after_every_seed_rejects_at_most_as_often_as_its_level(sizes, level):
    for side in ("both", "positive"):
        assert (p_values(SIGNS * sizes, side)[:, -1] <= level).mean() <= level


def test_wealth_is_the_product_of_bets_on_signs():
    values, by_hand = np.array([0.3, -0.1, 0.25]), {sign * bet: 1.0 for bet in BETS for sign in (1, -1)}
    for count in range(1, 4):
        size = values[count - 1] / math.sqrt(sum(values[:count] ** 2) / count)
        by_hand = {bet: wealth * (1 + math.tanh(bet * size)) for bet, wealth in by_hand.items()}
    up = sum(weight * by_hand[bet] for bet, weight in BETS.items())
    down = sum(weight * by_hand[-bet] for bet, weight in BETS.items())
    assert np.exp(log_wealth(values)[-1]) == pytest.approx((up + down) / 2, rel=1e-12)
    assert np.exp(log_wealth(values, "positive")[-1]) == pytest.approx(up, rel=1e-12)
    assert sum(BETS.values()) == pytest.approx(1.0)


def test_p_does_not_depend_on_unit_or_sign_and_never_rises():
    values = np.random.default_rng(2).standard_normal(20) + 0.5
    assert p_values(-1e-6 * values) == pytest.approx(p_values(values), rel=1e-9)
    assert (np.diff(p_values(values)) <= 0).all()
    assert p_values(np.zeros(9)) == pytest.approx(np.ones(9))
    assert last_p(np.array([])) == 1.0


def test_before_six_seeds_nothing_is_decided_at_five_percent():
    assert fewest_sequential_seeds(0.05) == 6
    assert last_p(np.ones(6)) <= 0.05 < last_p(np.ones(5))
    assert fewest_sequential_seeds(0.004) == 10


@pytest.mark.parametrize("start", range(4))
def test_a_confidence_sequence_ends_where_the_test_does(start):
    values = np.random.default_rng(start).standard_normal(8 + 4 * start) + 2.0
    low, high = confidence_sequence(values, 0.05)
    assert low < np.median(values) < high
    width = 1e-6 * (high - low)
    for inside, outside in ((low + width, low - width), (high - width, high + width)):
        assert last_p(values - inside) > 0.05 >= last_p(values - outside)
    wider = confidence_sequence(values, 0.03)
    assert wider[0] < low
    assert wider[1] > high


def test_an_interval_without_ends_is_none():
    assert all(math.isnan(end) for end in confidence_sequence(np.array([0.1, 0.2, 0.15, 0.1, 0.2])))
    low, high = confidence_sequence(np.full(9, 0.25))
    assert low <= 0.25 <= high
    assert confidence_sequence(np.zeros(9)) == pytest.approx((0.0, 0.0), abs=1e-3)


def test_seeds_needed_are_those_after_which_four_of_five_have_decided():
    for effect, level in ((0.4, 0.05), (1.0, 0.05), (2.0, 0.05), (1.0, 0.008)):
        needed = statistics.seeds_needed_sequentially(effect, level)
        figures = np.random.default_rng(7).standard_normal((2000, needed)) + effect
        decided = (p_values(figures) <= level).mean(axis=0)
        assert decided[-1] == pytest.approx(0.8, abs=0.06)
        assert statistics.seeds_needed_sequentially(-effect, level) == needed
    assert statistics.seeds_needed_sequentially(0.0) is None
    assert statistics.seeds_needed_sequentially(math.nan) is None
    assert statistics.seeds_needed_sequentially(0.05) is None
