"""Tests of all variants together: against scipy and exact enumeration; margins, Dunnett's test, intervals."""

import itertools
import math

import numpy as np
import pytest
from fabricate import study
from scipy import stats

from zoo.compare.prose import legend
from zoo.compare.simultaneous_tests import TESTS, PairedTestPlan, PairResult, compare_samples, judge_all
from zoo.compare.statistics import (
    Verdict,
    dunnett_p,
    effect_quantiles,
    equivalence_p,
    find_step,
    holm_adjust,
    paired_differences,
    paired_t_test,
    sign_flip_interval,
    sign_flip_p,
)
from zoo.compare.verdict import answer

SEEDS = 12
BASE = 1.7 + 0.03 * np.random.default_rng(1).standard_normal(SEEDS)
NOISE = np.random.default_rng(3).standard_normal((4, SEEDS)) * 0.01
SAMPLES = {f"v{index}": (BASE + shift + NOISE[index], BASE) for index, shift in enumerate((0.0, -0.03, 0.02, 0.001))}


def test_two_one_sided_tests_are_those_of_scipy():
    for ours, theirs in SAMPLES.values():
        for margin in (0.005, 0.01, 0.03):
            low = stats.ttest_1samp(ours - theirs, -margin, alternative="greater").pvalue
            high = stats.ttest_1samp(ours - theirs, margin, alternative="less").pvalue
            assert equivalence_p(paired_t_test(ours, theirs), margin) == pytest.approx(max(low, high), rel=1e-10)
    assert math.isnan(equivalence_p(paired_t_test([1.0], [1.0]), 0.1))
    assert equivalence_p(paired_t_test([1.0] * 5, [1.0] * 5), 0.1) == 2.0**-5
    assert equivalence_p(paired_t_test([2.0] * 5, [1.0] * 5), 0.1) > 0.9


def test_signs_are_flipped_as_scipy_permutes():
    for ours, theirs in SAMPLES.values():
        result = stats.permutation_test((ours - theirs,), np.mean, permutation_type="samples", n_resamples=np.inf)
        assert sign_flip_p((ours - theirs).tolist()) == pytest.approx(result.pvalue, rel=1e-12)
    assert sign_flip_p([1.0] * 6) == 2.0**-5
    assert math.isnan(sign_flip_p([1.0]))


def test_many_seeds_are_permuted_at_random_and_never_to_zero():
    assert sign_flip_p([1.0] * 40) == 1 / 20_001
    values = np.random.default_rng(0).standard_normal(15) + 0.4
    exact = np.mean([abs(signs @ np.abs(values)) >= abs(values.sum()) - 1e-12
                     for signs in map(np.array, itertools.product((1, -1), repeat=15))])  # fmt: skip
    assert sign_flip_p(values.tolist()) == pytest.approx(exact, abs=0.01)


def test_an_interval_of_flipped_signs_ends_where_its_test_does():
    values = SAMPLES["v1"][0] - BASE
    low, high = sign_flip_interval(values.tolist(), 0.05)
    for inside, outside in ((low + 1e-6, low - 1e-6), (high - 1e-6, high + 1e-6)):
        assert sign_flip_p((values - inside).tolist()) > 0.05 >= sign_flip_p((values - outside).tolist())
    assert all(map(math.isnan, sign_flip_interval([0.1, 0.2, 0.3])))


def test_effects_at_quantiles_of_the_noncentral_t():
    pair = paired_t_test(*SAMPLES["v1"])
    near, far = effect_quantiles(pair)
    assert stats.nct.cdf(abs(pair.t), SEEDS - 1, near * math.sqrt(SEEDS)) == pytest.approx(0.9, abs=1e-9)
    assert stats.nct.cdf(abs(pair.t), SEEDS - 1, far * math.sqrt(SEEDS)) == pytest.approx(0.1, abs=1e-9)
    assert near < abs(pair.effect) < far
    weak = effect_quantiles(paired_t_test([0.1, -0.1, 0.02], [0.0] * 3))
    assert weak[0] == 0.0 < weak[1]


@pytest.mark.parametrize(("variants", "seeds"), [(1, 4), (2, 3), (3, 5), (6, 4)])
def test_dunnett_s_p_values_are_those_of_scipy(variants, seeds):
    """scipy has independent samples only, whose degrees of freedom are (n - 1)(m + 1)."""
    base, *others = np.random.default_rng([variants, seeds]).standard_normal((variants + 1, seeds)) + 0.5
    result = stats.dunnett(*others, control=base, random_state=np.random.default_rng(0))
    for t, p in zip(result.statistic, result.pvalue, strict=True):
        assert dunnett_p(float(abs(t)), variants, (seeds - 1) * (variants + 1)) == pytest.approx(p, abs=2e-3)


def test_critical_values_are_those_of_dunnett_s_table():
    """Dunnett (1964), two-sided, 5 %."""
    for variants, freedom, bound in ((2, 6, 2.86), (3, 10, 2.76), (5, 20, 2.73), (1, 12, 2.18)):
        assert dunnett_p(bound - 0.01, variants, freedom) > 0.05 > dunnett_p(bound + 0.01, variants, freedom)


def test_dunnett_s_intervals_p_values_and_variances_belong_together():
    """Any variants and seeds: no variance below the variant's own or the mean, as one t test for one variant."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        variants, seeds = int(rng.integers(1, 7)), int(rng.integers(5, 12))
        base, *others = 3 + rng.standard_normal((variants + 1, seeds)) * 10 ** rng.uniform(-2, 0, (variants + 1, 1))
        samples = {str(index): (ours, base) for index, ours in enumerate(others)}
        t_tests, joint = compare_samples(samples), compare_samples(samples, PairedTestPlan("dunnett"))
        mean = np.mean([result.pair.sd**2 for result in t_tests.values()])
        least = min(result.adjusted for result in joint.values())
        for name, result in joint.items():
            sd = math.sqrt(max(mean, result.pair.sd**2))
            assert result.pair.t == pytest.approx(result.pair.mean / sd * math.sqrt(seeds))
            assert t_tests[name].pair.p <= result.pair.p * (1 + 1e-9) <= result.adjusted * (1 + 1e-8)
            excludes_zero = not result.pair.low <= 0 <= result.pair.high
            assert excludes_zero <= (result.adjusted <= 0.05)
            assert excludes_zero or result.adjusted > least or result.adjusted > 0.05
        if variants == 1:
            assert joint["0"].adjusted == pytest.approx(t_tests["0"].adjusted)


def test_dunnett_s_test_is_the_t_test_where_it_does_not_apply():
    """With a margin, failed runs, seeds that some variants lack, a look that decides nothing."""
    fewer = {**SAMPLES, "v9": (BASE[:7] + 0.01, BASE[:7])}
    for samples, plan, outcomes in (
        (SAMPLES, {"margin": 0.01}, {}),
        (SAMPLES, {}, {"failed": 0.03}),
        (fewer, {}, {}),
        (SAMPLES, {"level": 0.0}, {}),
    ):
        joint = compare_samples(samples, PairedTestPlan("dunnett", **plan), outcomes)
        assert str(joint) == str(compare_samples(samples, PairedTestPlan("t", **plan), outcomes))


def recorded(right, images):
    """Accuracies as runs record them."""
    return np.float32(np.asarray(right) / images).astype(float).tolist()


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("seeds", [2, 3, 4, 5, 7, 10])
def test_differences_that_are_equal_but_for_rounding_are_ties(test, seeds):
    """Every seed better by one of 1,000 images had p = 1.9e-5 with two seeds."""
    rng = np.random.default_rng([seeds, *test.encode()])
    for _ in range(20):
        images = int(rng.choice([100, 359, 1000, 10_000]))
        right, step = rng.integers(images // 2, images * 9 // 10, seeds), int(rng.integers(-3, 4))
        base, other = recorded(right, images), recorded(right + step, images)
        plan = PairedTestPlan(test, margin=0.5 / images)
        result = compare_samples({"v": (other, base)}, plan)["v"]
        assert result.adjusted >= (1.0 if step == 0 else 2.0 ** (1 - seeds)) * (1 - 1e-9)
        assert result.equivalent >= 2.0**-seeds * (1 - 1e-9)
        word = judge_all({"v": result}, False, plan)["v"].word
        assert word not in ("better", "worse") or seeds >= 6
        assert math.isnan(result.pair.low) or result.pair.low < result.pair.mean < result.pair.high


@pytest.mark.parametrize("images", [100, 1000, 10_000])
def test_the_step_of_accuracies_is_found_and_losses_have_none(images):
    rng = np.random.default_rng(images)
    for _ in range(50):
        ours, theirs = rng.integers(images * 7 // 10, images * 8 // 10, (2, 6))
        differences = paired_differences(recorded(ours, images), recorded(theirs, images))
        steps = math.gcd(*map(int, ours - theirs)) or 1
        assert find_step(differences, 2.0**-23) == pytest.approx(steps / images, rel=1e-3)
        losses = paired_differences(*(rng.normal(3.0, 0.1, (2, 6)).astype(np.float32).tolist()))
        assert find_step(losses, 2.0**-21) < 1e-3


def test_so_few_seeds_that_all_may_be_alike_decide_nothing():
    """With half of the seeds bad, all differences of two seeds were alike in an eighth of comparisons."""
    for variants, fewest in ((1, 3), (2, 4), (3, 4), (6, 4), (7, 5), (25, 5), (26, 6)):
        for seeds in (fewest - 1, fewest):
            noise = 1e-3 * np.random.default_rng(seeds).standard_normal((variants + 1, seeds))
            samples = {str(index): ((1.0 + one).tolist(), noise[-1].tolist()) for index, one in enumerate(noise[:-1])}
            tested = compare_samples(samples)
            words = {verdict.word for verdict in judge_all(tested, False).values()}
            assert words == ({"better"} if seeds == fewest else {"no verdict"})
            if seeds < fewest:
                assert all(math.isnan(result.pair.low) and result.adjusted > 0.05 for result in tested.values())


def test_with_seeds_enough_a_t_test_agrees_with_flips_of_signs():
    """Heaps of 0 and 1 differ by steps of a t statistic: three variants with ten seeds were false in 6.7 %."""
    rng, gated = np.random.default_rng(4), 0
    for _ in range(400):
        runs = (rng.random((4, 10)) < 0.5) + 1e-4 * rng.standard_normal((4, 10))
        samples = {str(index): (runs[index].tolist(), runs[0].tolist()) for index in (1, 2, 3)}
        for name, result in compare_samples(samples).items():
            flips = sign_flip_p(paired_differences(*samples[name]).tolist())
            assert result.adjusted > 0.05 or flips <= 0.05
            gated += result.adjusted > 0.05 >= 3 * result.pair.p
            if result.adjusted > 0.05:
                assert result.pair.low <= 0 <= result.pair.high
    assert gated


@pytest.mark.parametrize("test", TESTS)
def test_an_interval_without_zero_belongs_to_a_verdict(test):
    plan = PairedTestPlan(test)
    tested = compare_samples(SAMPLES, plan)
    words = {name: verdict.word for name, verdict in judge_all(tested, True, plan).items()}
    assert (words["v1"], words["v2"]) == ("better", "worse")
    for name, one in tested.items():
        if one.pair.low > 0 or one.pair.high < 0:
            assert words[name] in ("better", "worse")
        assert one.pair.low < one.pair.mean < one.pair.high


def test_intervals_hold_for_all_variants_together():
    tested = compare_samples(SAMPLES, PairedTestPlan(level=0.04))
    for name, (ours, theirs) in SAMPLES.items():
        low, high = stats.ttest_rel(ours, theirs).confidence_interval(1 - 0.04 / 4)
        assert (tested[name].pair.low, tested[name].pair.high) == pytest.approx((low, high))
        assert tested[name].pair.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)


@pytest.mark.parametrize("test", ["t", "sequential"])
def test_within_a_margin_a_variant_is_as_good(test):
    plan = PairedTestPlan(test, margin=0.03)
    judged = judge_all(compare_samples(SAMPLES, plan), True, plan)
    assert {name: verdict.word for name, verdict in judged.items()} == {
        "v0": "as good as", "v1": "better", "v2": "worse", "v3": "as good as",
    }  # fmt: skip
    narrow = PairedTestPlan(test, margin=0.0005)
    assert judge_all(compare_samples(SAMPLES, narrow), True, narrow)["v3"].word == "not distinguishable"


def test_of_no_difference_and_a_margin_at_most_one_is_true():
    """Shaffer: the factor is the number of variants with a hypothesis left, not the number of hypotheses."""
    adjusted = holm_adjust([0.001, 0.02, 0.9, 0.01], ["a", "b", "a", "b"])
    assert adjusted == pytest.approx([0.002, 0.04, 0.9, 0.02])
    assert holm_adjust([0.01, 0.02], "aa") == pytest.approx([0.01, 0.02])


def test_a_verdict_that_was_reached_stays_unless_the_difference_turns():
    first = PairResult(paired_t_test(BASE[:5] - 0.03 + NOISE[0][:5], BASE[:5]), 0.001)
    plan = PairedTestPlan("sequential", 0.008, earlier={"v0": ("better", first), "v3": ("better", first)})
    samples = {
        "v0": (BASE - 0.001 + NOISE[0] - NOISE[0].mean(), BASE),
        "v3": (BASE + 0.001 + NOISE[3] - NOISE[3].mean(), BASE),
    }
    judged = judge_all(compare_samples(samples, plan), True, plan)
    sentence = "better, decided with 5 seeds; with 12 the difference is −0.001"
    assert judged["v0"] == Verdict("better", sentence, earlier=True)
    assert judged["v3"].word == "not distinguishable"


def test_seeds_needed_are_those_of_the_test_that_would_follow():
    first = PairedTestPlan("t", 0.04, later_level=0.008)
    weak = {"v0": (BASE[:5] + 0.009 + NOISE[0][:5] - NOISE[0][:5].mean(), BASE[:5])}
    one_look = judge_all(compare_samples(weak), True)["v0"]
    later = judge_all(compare_samples(weak, first), True, first)["v0"]
    assert later.needed > one_look.needed > 5
    spent = PairedTestPlan("t", 0.04, later_level=0.0)
    assert judge_all(compare_samples(weak, spent), True, spent)["v0"].needed is None


@pytest.mark.campaign
def test_statsmodels_and_scipy_agree_with_every_number_of_a_report():
    """Needs statsmodels beside the packages of [test]: pip install statsmodels."""
    from statsmodels.stats import multitest, power, weightstats

    plan = PairedTestPlan(level=0.04, margin=0.02)
    result = answer(study({"default": 1.7, "a=1": 1.68, "a=2": 1.71, "a=3": 1.7}, seeds=7, noise=0.02), plan=plan)
    base, rows = np.array(list(result.base.figures.values())), result.rows[1:]
    adjusted = multitest.multipletests([each.pair.p for each in rows], method="holm")[1]
    for each, expected in zip(rows, adjusted, strict=True):
        ours = np.array(list(each.figures.values()))
        test = stats.ttest_rel(ours, base)
        low, high = weightstats.DescrStatsW(ours - base).tconfint_mean(0.04 / 3)
        assert (each.mean, each.sd) == pytest.approx((ours.mean(), ours.std(ddof=1)))
        assert (each.pair.t, each.pair.p) == pytest.approx((test.statistic, test.pvalue), rel=1e-9)
        assert (each.pair.low, each.pair.high) == pytest.approx((low, high), rel=1e-9)
        assert holm_adjust([one.pair.p for one in rows])[rows.index(each)] == pytest.approx(expected)
        if each.verdict.needed:
            chance = power.TTestPower().power(abs(each.pair.effect), each.verdict.needed, 0.04 / 3)
            before = power.TTestPower().power(abs(each.pair.effect), each.verdict.needed - 1, 0.04 / 3)
            assert before < 0.8 <= chance
    margin = max(weightstats.ttost_paired(ours, base, -0.02, 0.02)[0], 0.0)
    assert equivalence_p(rows[-1].pair, 0.02) == pytest.approx(margin, rel=1e-9)


def test_the_legend_names_the_correction_that_p_has():
    runs = study({"default": 1.9, "norm=a": 1.92, "norm=b": 1.9}, seeds=5)
    for plan, name in ((PairedTestPlan("dunnett"), "Dunnett"), (PairedTestPlan("dunnett", margin=0.01), "Holm"),
                       (PairedTestPlan(), "Holm")):  # fmt: skip
        result = answer(runs, plan=plan)
        assert result.correction == name
        assert f"p after {name}'s correction for 2 comparisons" in " ".join(legend(result))


@pytest.mark.parametrize("seeds", [0, 1])
def test_a_variant_without_a_pair_of_seeds_is_no_test(seeds):
    """It was counted among those that are corrected, and took away the verdict on the others."""
    three = {"v1": (SAMPLES["v1"][0][:3] - 0.2, BASE[:3])}
    alone = compare_samples(three)
    beside = compare_samples(three | {"v2": (SAMPLES["v2"][0][:seeds], BASE[:seeds])})
    assert beside["v1"] == alone["v1"]
    assert math.isnan(beside["v2"].adjusted)
    assert math.isnan(beside["v2"].equivalent)
    assert judge_all(beside, True)["v1"] == judge_all(alone, True)["v1"]
