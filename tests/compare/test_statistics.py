"""Against published tables and examples, values of 40 digits (mpmath), and simulation."""

import math

import numpy as np
import pytest
from fabricate import study

from zoo.compare.statistics import (
    ALPHA,
    holm_adjust,
    judge,
    mean_and_deviation,
    paired_t_test,
    power,
    round_count,
    seeds_needed,
    t_critical,
    two_sided_p,
)
from zoo.compare.verdict import answer

# Student (1908), The Probable Error of a Mean: additional hours of sleep under two drugs
DEXTRO = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
LAEVO = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
# Darwin's maize in Fisher (1935), The Design of Experiments, 17: eighths of an inch, crossed minus self-fertilised
MAIZE = (49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48)


@pytest.mark.parametrize(
    ("df", "p", "printed"),
    [
        (1, 0.975, 12.706), (2, 0.975, 4.303), (4, 0.975, 2.776), (9, 0.975, 2.262), (30, 0.975, 2.042),
        (120, 0.975, 1.980), (1, 0.995, 63.657), (4, 0.995, 4.604), (9, 0.95, 1.833), (60, 0.999, 3.232),
    ],
)  # fmt: skip
def test_critical_values_are_those_of_the_printed_tables(df, p, printed):
    assert t_critical(2 * (1 - p), df) == pytest.approx(printed, abs=5e-4)


@pytest.mark.parametrize(
    ("t", "df", "exact"),
    [
        (0.5, 3, 0.651447964848151), (2.5, 4, 0.06676654481198815), (4.0621, 9, 0.002833007840390158),
        (0.001, 7, 0.9992300172449988), (12.0, 5, 7.089492517161523e-5), (1.96, 120, 0.05231367644582755),
        (50.0, 29, 1.074862398557246e-29), (3.1, 1000, 0.001989345531122095),
    ],
)  # fmt: skip
def test_p_values_have_ten_digits(t, df, exact):
    assert two_sided_p(t, df) == pytest.approx(exact, rel=1e-11)
    assert two_sided_p(-t, df) == two_sided_p(t, df)
    assert t_critical(exact, df) == pytest.approx(t, rel=1e-10)


def test_what_is_no_number_stays_none():
    assert math.isnan(two_sided_p(math.nan, 4))
    assert two_sided_p(math.inf, 4) == 0.0


def test_student_s_sleep_data():
    pair = paired_t_test(LAEVO, DEXTRO)
    assert pair.n == 10
    assert pair.mean == pytest.approx(1.58)
    assert pair.t == pytest.approx(4.0621, abs=5e-5)
    assert pair.p == pytest.approx(0.002833, abs=5e-7)
    assert (pair.low, pair.high) == pytest.approx((0.7001, 2.4599), abs=5e-5)  # R's t.test prints these
    assert pair.effect == pytest.approx(4.0621 / math.sqrt(10), abs=2e-5)
    other = paired_t_test(DEXTRO, LAEVO)
    assert (other.mean, other.t, other.low, other.high) == (-pair.mean, -pair.t, -pair.high, -pair.low)


def test_darwin_s_maize():
    pair = paired_t_test(MAIZE, [0] * len(MAIZE))
    assert pair.t == pytest.approx(2.148, abs=5e-4)  # Fisher's own figure
    assert pair.p == pytest.approx(0.0497, abs=5e-5)
    assert (pair.low, pair.high) == pytest.approx((0.0312, 41.8355), abs=5e-5)


def test_summary_leaves_out_what_is_not_finite():
    assert mean_and_deviation([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == pytest.approx((5.0, 2.138089935299395))
    assert mean_and_deviation([1.0, math.nan, 3.0, math.inf]) == pytest.approx((2.0, math.sqrt(2)))
    assert mean_and_deviation([3.0])[0] == 3.0
    assert math.isnan(mean_and_deviation([3.0])[1])
    assert all(math.isnan(each) for each in mean_and_deviation([math.nan]))


def test_one_seed_and_none_have_no_test():
    one = paired_t_test([1.5], [2.0])
    assert (one.n, one.mean) == (1, -0.5)
    assert all(math.isnan(each) for each in (one.sd, one.low, one.high, one.t, one.p, one.effect))
    none = paired_t_test([], [])
    assert none.n == 0
    assert math.isnan(none.mean)


def test_two_seeds_have_one_degree_of_freedom():
    pair = paired_t_test([1.03, 2.03], [0.0, 0.0], 0.2)  # a step of 0.01
    assert pair.t == pytest.approx(3.06)
    assert pair.p == pytest.approx(2 / math.pi * math.atan(1 / 3.06))  # Cauchy
    assert pair.high - pair.mean == pytest.approx(3.0777 * 0.5, abs=1e-3)
    assert math.isnan(paired_t_test([1.0, 2.0], [0.0, 0.0]).low)  # two differences may be alike by chance


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_equal_differences_are_judged_by_their_signs(count):
    """Accuracies are steps: two seeds often differ by the same step, and t would be infinite."""
    pair = paired_t_test([0.9 + 0.1 * seed for seed in range(count)], [0.4 + 0.1 * seed for seed in range(count)])
    assert pair.tied
    assert pair.sd == pytest.approx(0.1)  # the step
    assert pair.p == 2.0 ** (1 - count)
    verdict = judge(pair, pair.p, 1, lower_is_better=False)
    assert verdict.word == ("better" if count >= 6 else "not distinguishable")
    assert verdict.needed == (None if count >= 6 else max(3, count + 1))
    assert math.isfinite(pair.low) == (count >= 6)


def test_identical_runs_are_called_identical():
    pair = paired_t_test([1.1, 1.2, 1.3], [1.1, 1.2, 1.3])
    assert (pair.mean, pair.p, pair.effect) == (0.0, 1.0, 0.0)
    verdict = judge(pair, 1.0, 1, True)
    assert verdict.word == "not distinguishable"
    assert verdict.sentence == "identical with 3 seeds"
    assert verdict.needed is None


def test_holm_s_worked_examples():
    assert holm_adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    assert holm_adjust([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm_adjust([0.5, 0.9]) == [1.0, 1.0]
    assert holm_adjust([0.03]) == [0.03]
    assert holm_adjust([]) == []


def test_holm_does_not_count_what_was_not_tested():
    adjusted = holm_adjust([0.01, math.nan, 0.04])
    assert adjusted[0] == pytest.approx(0.02)
    assert math.isnan(adjusted[1])
    assert adjusted[2] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("effect", "needed"), [(0.2, 199), (0.3, 90), (0.5, 34), (0.8, 15), (1.0, 10), (1.5, 6), (2.0, 5)]
)
def test_seeds_needed_are_those_of_published_tables(effect, needed):
    """G*Power and Cohen's conventions: two-sided paired t test, alpha 0.05, power 0.8."""
    assert seeds_needed(effect) == needed
    assert seeds_needed(-effect) == needed
    assert power(effect, needed) >= 0.8 > power(effect, needed - 1)


@pytest.mark.parametrize(
    ("effect", "n", "alpha", "reference"),
    [
        (0.5, 34, 0.05, 0.8077775012792738), (1.0, 5, 0.05, 0.40138991737179536), (2.0, 5, 0.05, 0.9088848681009404),
        (1.5, 5, 0.0125, 0.3601161188415243), (3.0, 3, 0.05, 0.7452680070062837),
        (2.018841947536942, 2, 0.00625, 0.02237101180130875),
    ],
)  # fmt: skip
def test_power_is_the_integral_of_the_normal_distribution_over_the_sample_deviation(effect, n, alpha, reference):
    """By quadrature with 30 digits (mpmath)."""
    assert power(effect, n, alpha) == pytest.approx(reference, abs=1e-9)


@pytest.mark.parametrize("n", [2, 30, 900])
def test_a_certain_effect_has_power_one_where_the_other_tail_cannot_be_represented(n):
    """There scipy gives NaN for the probability of the wrong side."""
    assert power(40.0, n) == pytest.approx(1.0, abs=1e-2 if n == 2 else 1e-12)


def test_seeds_needed_at_the_ends():
    assert seeds_needed(0.0) is None
    assert seeds_needed(math.nan) is None
    assert seeds_needed(0.01) is None  # more than 1,000
    assert seeds_needed(0.0888) == pytest.approx(997, abs=4)
    assert seeds_needed(1e6) == 3  # fewer may be alike by chance
    assert seeds_needed(1e6, 0.0125) == 4
    assert seeds_needed(1.0, 0.0125) > seeds_needed(1.0)
    assert power(0.0, 5) == pytest.approx(ALPHA, abs=1e-10)


def pair_of(mean, sd=0.03, n=5):
    """A pair with this mean and standard deviation exactly."""
    shape = np.arange(n) - (n - 1) / 2
    return paired_t_test(mean + sd * shape / shape.std(ddof=1), np.zeros(n))


def test_verdicts_in_words():
    assert judge(pair_of(-0.2), 0.001, 1, lower_is_better=True).word == "better"
    assert judge(pair_of(-0.2), 0.001, 1, lower_is_better=False).word == "worse"
    assert judge(pair_of(0.2), 0.001, 1, lower_is_better=True).word == "worse"
    assert judge(pair_of(0.2), 0.001, 1, lower_is_better=False).word == "better"
    pair = pair_of(-0.024)  # d = 0.8
    verdict = judge(pair, pair.p, 1, True)
    assert verdict.sentence == "not distinguishable with 5 seeds; about 15 (7 to more than 1,000) would be needed"
    assert (verdict.needed, verdict.fewest, verdict.most) == (15, 7, None)
    hardly = judge(pair_of(1e-5), 1.0, 1, True).sentence
    assert hardly == "not distinguishable with 5 seeds; more than 1,000 (26 or more) would be needed"
    assert judge(paired_t_test([1.0], [2.0]), math.nan, 1, True).sentence == "one seed: no verdict"
    assert judge(paired_t_test([], []), math.nan, 1, True).word == "no verdict"


def test_a_verdict_follows_the_corrected_p_and_says_so():
    pair = pair_of(-0.045)
    assert pair.p < ALPHA
    alone, among = judge(pair, pair.p, 1, True), judge(pair, 4 * pair.p, 4, True)
    assert alone.word == "better"
    assert among.word == "not distinguishable"
    assert "corrected for 4 comparisons" in among.sentence
    assert among.needed == seeds_needed(pair.effect, ALPHA / 4)


def test_more_seeds_are_always_needed_than_there_were():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, tests = int(rng.integers(2, 9)), int(rng.integers(1, 6))
        pair = paired_t_test(rng.standard_normal(n) + rng.normal(0, 1), np.zeros(n))
        verdict = judge(pair, min(1.0, tests * pair.p), tests, True)
        assert verdict.word in ("better", "worse") or verdict.needed is None or verdict.needed > n


def test_a_number_of_seeds_is_told_as_it_is_known():
    assert [round_count(n) for n in (7, 14, 143, 987)] == ["7", "14", "140", "990"]


def test_it_does_not_cry_wolf():
    """200 comparisons of five equal variants: at most 5 % of them call any of four variants better or worse.

    The seeds are fixed: the rate in 20,000 such comparisons was 4.7 %, and 200 of them scatter by 1.5 %.
    """
    wrong = 0
    for start in range(4000, 4200):
        result = answer(study(dict.fromkeys(("default", "a=1", "a=2", "a=3", "a=4"), 1.7), seeds=5, start=start))
        wrong += any(row.verdict.word != "not distinguishable" for row in result.rows[1:])
    assert wrong <= 10
    assert wrong > 0  # a test that never errs sees nothing either


def test_family_wise_error_and_power_are_as_theory_says():
    """4,000 families of four against one baseline, 5 seeds; then 4,000 tests of one true effect."""
    rng, count = np.random.default_rng(1), 4000
    runs = rng.standard_normal((count, 5, 5))
    families = [[paired_t_test(family[v], family[0]).p for v in range(1, 5)] for family in runs]
    errors = sum(min(holm_adjust(ps)) <= ALPHA for ps in families) / count
    assert errors <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / count)
    assert errors > 0.02
    uncorrected = sum(min(ps) <= ALPHA for ps in families) / count
    assert uncorrected > 0.10  # what Holm is for
    for effect, n in ((1.0, 5), (2.0, 5), (0.8, 15)):
        figures = rng.standard_normal((count // 2, n)) + effect
        rate = sum(paired_t_test(each, np.zeros(n)).p <= ALPHA for each in figures) / len(figures)
        theory = power(effect, n)
        assert abs(rate - theory) < 3.3 * math.sqrt(theory * (1 - theory) / len(figures))


def test_pairing_sees_what_the_noise_of_seeds_hides():
    """A difference of 0.02 nats under seed noise of 0.3 that both variants share."""
    shared = 0.3 * np.random.default_rng(2).standard_normal(6)
    jitter = 0.004 * np.random.default_rng(3).standard_normal(6)
    assert paired_t_test(1.7 + shared - 0.02 + jitter, 1.7 + shared).p < 0.001


def test_a_pair_is_plain_numbers():
    assert all(type(value) in (int, float, bool) for value in vars(paired_t_test(LAEVO, DEXTRO)).values())
    assert t_critical(0.05, 9) == pytest.approx(2.262157, abs=1e-6)
