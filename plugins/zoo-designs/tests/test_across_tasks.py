"""Scores over several tasks, against published figures, slow oracles and the definitions."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, trim_mean
from zoo_designs import scoreboard
from zoo_designs.scoreboard import (
    bootstrap_improvement,
    bootstrap_interquartile_mean,
    flip_signs_over_tasks,
    improvements,
    interquartile_mean,
    normalise,
    probability_of_improvement,
    rank_scores,
    sequence_over_tasks,
)

NAN = math.nan
# what rliable prints for the Atari 100k scores (median and mean over games of the means over runs, 100 and 5 runs), and
# what papers print of them (interquartile mean)
PRINTED = {"SPR": (0.39562938291779215, 0.6157957428691673, "0.337"),
           "SimPLe": (0.13405558483729887, 0.3319978533732483, "0.130")}  # fmt: skip


def arrays(*tasks):
    return [np.array(task, dtype=np.float64) for task in tasks]


@pytest.fixture(scope="module")
def atari():
    """Human-normalised scores by method: an array of runs per game."""
    content = json.loads(Path(__file__).with_name("atari_100k.json").read_text())
    low, high = content["random"], content["human"]
    return {
        name: [(np.array(runs) - low[game]) / (high[game] - low[game]) for game, runs in content[name].items()]
        for name in PRINTED
    }


@pytest.mark.parametrize("name", PRINTED)
def test_the_published_scores_of_atari_100k_are_recomputed_to_their_printed_digits(atari, name):
    median, mean, middle = PRINTED[name]
    means = [float(runs.mean()) for runs in atari[name]]
    assert len(means) == 26
    assert np.median(means) == pytest.approx(median, rel=1e-15)
    assert np.mean(means) == pytest.approx(mean, rel=1e-15)
    everything = np.concatenate(atari[name])
    assert f"{float(interquartile_mean(everything)):.3f}" == middle
    assert float(interquartile_mean(everything)) == pytest.approx(trim_mean(everything, 0.25), rel=1e-14)


def test_improvement_on_atari_100k_is_that_of_mann_and_whitney(atari):
    ours, theirs = atari["SPR"], atari["SimPLe"]
    expected = np.mean([mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(ours, theirs, strict=True)])
    assert probability_of_improvement(ours, theirs) == pytest.approx(expected, rel=1e-14)
    estimate = bootstrap_improvement(ours, theirs, paired=False, resamples=400)
    assert estimate.value == pytest.approx(0.6759230769, abs=1e-9)
    assert 0.62 < estimate.low < 0.65
    assert 0.70 < estimate.high < 0.73


def test_the_examples_of_rliables_own_tests():
    x = arrays((1, 2, 1, 2), (2, 2, 1, 1))
    y = arrays((1, 2, 3), (1, 2, 3))
    assert probability_of_improvement(x, y) == pytest.approx(1 / 3)
    assert (interquartile_mean(np.concatenate(x)), interquartile_mean(np.concatenate(y))) == (1.5, 2.0)


def test_a_tie_counts_half_and_a_failed_run_is_worse_than_any():
    assert probability_of_improvement(arrays((1, 1)), arrays((1, 1))) == 0.5
    ours, theirs = rank_scores([NAN, 2.0], True), rank_scores([9.0, NAN], True)
    assert probability_of_improvement([ours], [theirs]) == (0 + 0.5 + 1 + 1) / 4
    assert list(improvements(ours, theirs)) == [-1, 1]
    assert list(improvements(rank_scores([1.0, 2.0], True), rank_scores([3.0, 2.0], True))) == [2, 0]
    assert list(improvements(rank_scores([NAN], False), rank_scores([NAN], False))) == [0]


def test_normalised_scores_are_relative_to_the_baselines_mean():
    assert normalise([2.0, 1.0, NAN], [1.0, 3.0], True) == pytest.approx([1.0, 2.0, 0.0])
    assert normalise([2.0, 1.0, NAN], [1.0, 3.0], False) == pytest.approx([1.0, 0.5, 0.0])
    assert normalise([2.0], [1.0, NAN], True) is None
    assert normalise([-2.0], [1.0], True) is None
    assert normalise([2.0], [0.0], True) is None
    assert list(normalise([NAN], [1.0], True)) == [0.0]


def slow_interval(values, resamples=3000, seed=1):
    """Percentile interval of draws that a function makes from a random generator."""
    random = np.random.default_rng(seed)
    return np.quantile([values(random) for _ in range(resamples)], (0.025, 0.975))


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_improvement_agree_with_a_slow_oracle(paired):
    random = np.random.default_rng(5)
    theirs = [random.normal(size=n).round(1) for n in (5, 7, 4)]
    ours = [(y + random.normal(0.4, 0.7, len(y))).round(1) for y in theirs]

    def draw(random):
        chances = []
        for x, y in zip(ours, theirs, strict=True):
            first = [int(i) for i in random.integers(0, len(x), len(x))]
            second = first if paired else [int(i) for i in random.integers(0, len(y), len(y))]
            wins = [(x[i] > y[j]) + 0.5 * (x[i] == y[j]) for i in first for j in second]
            chances.append(sum(wins) / len(wins))
        return sum(chances) / len(chances)

    estimate = bootstrap_improvement(ours, theirs, paired)
    assert (estimate.low, estimate.high) == pytest.approx(slow_interval(draw), abs=0.02)


def test_intervals_of_the_interquartile_mean_agree_with_a_slow_oracle():
    random = np.random.default_rng(6)
    scores = [random.lognormal(size=n) for n in (5, 6, 3)]

    def draw(random):
        every = sorted(float(each[i]) for each in scores for i in random.integers(0, len(each), len(each)))
        return sum(every[3:-3]) / (len(every) - 6)  # a quarter of 14, rounded down

    estimate = bootstrap_interquartile_mean(scores)
    assert estimate.value == pytest.approx(trim_mean(np.concatenate(scores), 0.25))
    assert (estimate.low, estimate.high) == pytest.approx(slow_interval(draw), rel=0.05)


def test_pairs_narrow_the_interval_where_seeds_are_alike():
    random = np.random.default_rng(7)
    theirs = [random.normal(size=8) for _ in range(3)]
    ours = [y + 0.3 for y in theirs]
    widths = [(lambda e: e.high - e.low)(bootstrap_improvement(ours, theirs, paired)) for paired in (True, False)]
    assert widths[0] < 0.6 * widths[1]


def test_one_run_of_a_task_gives_no_interval():
    assert math.isnan(bootstrap_improvement(arrays((1,), (1, 2)), arrays((0,), (0, 0))).low)
    assert math.isnan(bootstrap_interquartile_mean(arrays((1,), (1, 2))).high)


def test_the_test_over_tasks_enumerates_all_signs():
    first, second = np.array([0.3, 0.1, -0.2]), np.array([10.0, 30.0])
    scaled = [*(first / np.sqrt((first**2).mean())), *(second / np.sqrt((second**2).mean()))]
    observed = abs(sum(scaled))
    sums = [abs(sum(s * v for s, v in zip(signs, scaled, strict=True)))
            for signs in itertools.product((1, -1), repeat=5)]  # fmt: skip
    expected = sum(each >= observed - 1e-12 for each in sums) / 32
    assert flip_signs_over_tasks([first, second]) == pytest.approx(expected)
    assert flip_signs_over_tasks([first * 1000, second]) == pytest.approx(expected)  # units do not matter
    assert flip_signs_over_tasks([np.zeros(3), np.zeros(3)]) == 1.0


def test_later_seeds_change_nothing_earlier_in_the_sequence():
    random = np.random.default_rng(8)
    tasks = [random.normal(size=6) * scale for scale in (1.0, 50.0)]
    whole, part = sequence_over_tasks(tasks), sequence_over_tasks([each[:4] for each in tasks])
    assert len(whole) == 12
    assert list(part) == list(whole[:8])
    assert list(sequence_over_tasks([np.zeros(2)])) == [0.0, 0.0]


def test_without_an_effect_the_test_rejects_as_often_as_it_says():
    random = np.random.default_rng(9)
    tasks = [random.normal(size=(500, 3)) * scale for scale in (0.01, 1.0, 30.0)]
    p = [flip_signs_over_tasks([task[i] for task in tasks]) for i in range(500)]
    assert np.mean(np.array(p) <= 0.05) < 0.08
    assert np.mean(np.array(p) <= 0.5) == pytest.approx(0.5, abs=0.08)
    assert scoreboard.RESAMPLES >= 10_000
