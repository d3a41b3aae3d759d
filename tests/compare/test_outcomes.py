"""Tests on how runs ended, against scipy's and by their error rates."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, fisher_exact

from zoo.compare import statistics
from zoo.compare.simultaneous_tests import compare_outcomes, failure_text, judge_outcomes, other_failures

NAN = math.nan


def figures(values):
    return dict(enumerate(values, 1))


def test_without_a_failed_run_there_is_nothing_to_test():
    assert compare_outcomes(figures([1.0, 2.0]), figures([1.0, 2.0]), True) is None
    assert compare_outcomes({1: 1.0, 9: NAN}, {1: 1.0}, True) is None  # seed 9 has no partner


def test_the_tests_are_those_of_fisher_and_of_signs():
    test = compare_outcomes(figures([NAN, NAN, NAN, 1.0, 2.0, 5.0]), figures([1.0, NAN, 2.0, 2.0, 2.0, 1.0]), True)
    assert (test.n, test.failed, test.base_failed, test.wins, test.losses) == (6, 3, 1, 1, 3)
    assert test.p_rate == fisher_exact([[3, 3], [1, 5]]).pvalue
    assert test.p_sign == binomtest(1, 4).pvalue
    assert test.p == min(1.0, 2 * min(test.p_rate, test.p_sign))
    more = compare_outcomes(figures([NAN, 0.9]), figures([0.5, 0.8]), False)
    assert (more.wins, more.losses) == (1, 1)


def test_a_variant_that_always_diverges_is_worse_and_one_that_cures_the_baseline_better():
    never, always = figures([1.0] * 5), figures([NAN] * 5)
    for ours, theirs, word in ((always, never, "worse"), (never, always, "better")):
        test = compare_outcomes(ours, theirs, True)
        assert judge_outcomes(test, test.p, 1).word == word
    both = compare_outcomes(always, always, True)
    assert judge_outcomes(both, both.p, 1).sentence == "no seed tells them apart: no verdict"
    one = compare_outcomes({1: NAN}, {1: 1.0}, True)
    assert judge_outcomes(one, one.p, 1).word == "no verdict"


def test_what_failed_is_counted_in_words():
    assert failure_text({1: "diverged", 4: "out of memory", 5: "diverged"}, 5) == (
        "2 of 5 diverged, 1 of 5 ran out of memory"
    )
    assert failure_text({}, 5) == ""
    assert other_failures([{1: "diverged"}, {2: "crashed", 3: "out of memory"}]) == "crashed and ran out of memory"
    assert other_failures([{1: "diverged"}]) == ""


@pytest.mark.parametrize(
    ("seeds", "rate", "worst_first"), [
        (5, 0.4, False), (10, 0.4, True),
        *(pytest.param(*one, marks=pytest.mark.campaign)
          for one in [(10, 0.4, False), (5, 0.4, True), (10, 0.1, False), (10, 0.1, True)]),
    ],
)  # fmt: skip
def test_equal_variants_are_told_apart_in_at_most_one_of_twenty_comparisons(seeds, rate, worst_first):
    """Also where the runs that diverge are those that would have ended worst."""
    draw, wrong, count = np.random.default_rng(5), 0, 2000
    for _ in range(count):
        pair = draw.standard_normal((2, seeds)) + 0.7 * draw.standard_normal(seeds)
        fails = pair > np.quantile(pair, 1 - rate) if worst_first else draw.random((2, seeds)) < rate
        ours, theirs = (figures(np.where(fails[i], NAN, pair[i])) for i in (0, 1))
        test = compare_outcomes(ours, theirs, True)
        wrong += test is not None and test.p <= 0.05
    assert wrong <= 0.05 * count


def test_where_seeds_are_added_until_decided_outcomes_are_tested_in_their_order():
    ours, theirs = figures([NAN, NAN, 3.0, NAN, 2.0]), figures([1.0, NAN, 2.0, 4.0, 2.0])
    order = [5, 1, 2, 4, 3]
    test = compare_outcomes(ours, theirs, True, order, until_decided=True)
    assert (test.wins, test.losses, math.isnan(test.p_rate)) == (0, 3, True)
    assert test.p == test.p_sign == statistics.last_p(np.array([0.0, 1.0, 0.0, 1.0, 1.0]))
    assert not test.favours_variant
    assert judge_outcomes(test, 0.01, 1, level=0.02).word == "worse"
    assert judge_outcomes(test, 0.03, 1, level=0.02).word == "not distinguishable"
