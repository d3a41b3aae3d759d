"""Every number of the report on real runs, computed again by scipy and statsmodels."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from fabricate import run
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from zoo.compare import table
from zoo.compare.simultaneous_tests import PairedTestPlan
from zoo.compare.verdict import answer

# validation top1 after 200 steps, seeds 1 to 5: zoo compare vit-tiny --vary model.position=none,learned,rope
REAL = {
    "default": (0.8997214436531067, 0.8746517896652222, 0.9220055937767029, 0.8885793685913086, 0.9136490225791931),
    "position=rope": (
        0.8607242107391357,
        0.8774373531341553,
        0.8802228569984436,
        0.8579387068748474,
        0.8523676991462708,
    ),
    "position=noposition": (
        0.6657381653785706,
        0.6963788270950317,
        0.6657381653785706,
        0.6434540152549744,
        0.6768802404403687,
    ),
}
LEVEL, MARGIN = 0.04, 0.05


def report(plan, names=tuple(REAL)):
    """The report's JSON and the cells of its table."""
    runs = []
    for variant, figures in ((name, REAL[name]) for name in names):
        for seed, figure in enumerate(figures, 1):
            choices = {"position": variant.partition("=")[2] or "learned"}
            reached = {"step": 200, "tokens": 6390, "top1": figure}
            runs.append(replace(run(variant, seed, choices=choices), recipe="vit-tiny", unit="image",
                                goals={"top1": "max"}, validations=[reached], best=reached, last=reached))  # fmt: skip
    result = answer(runs, plan=plan)
    headings, rows = table.verdicts(result)
    cells = {row.variant: dict(zip(headings, line, strict=True)) for row, line in zip(result.rows, rows, strict=True)}
    return json.loads(table.as_json(result)), cells


def variants_of(content):
    return {each["variant"]: each for each in content["variants"]}


def differences(variant):
    return np.array(REAL[variant]) - np.array(REAL["default"])


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def seeds_needed(effect, alpha):
    """The fewest seeds of 80 % power, from statsmodels."""
    count = math.ceil(TTestPower().solve_power(abs(effect), alpha=alpha, power=0.8) - 1e-9)
    return max(2, count)


@pytest.fixture(scope="module")
def by_t():
    return report(PairedTestPlan("t", LEVEL))


OTHERS = [name for name in REAL if name != "default"]


def test_means_and_deviations(by_t):
    for name, variant in variants_of(by_t[0]).items():
        described = DescrStatsW(REAL[name], ddof=1)
        assert variant["mean"] == close(described.mean)
        assert variant["sd"] == close(described.std)
        assert (variant["seeds"], list(variant["figures"].values())) == (5, list(REAL[name]))


@pytest.mark.parametrize("name", OTHERS)
def test_paired_t_tests_and_simultaneous_intervals(by_t, name):
    variant, d = variants_of(by_t[0])[name], differences(name)
    described = DescrStatsW(d, ddof=1)
    tested = stats.ttest_rel(REAL[name], REAL["default"])
    t, p, freedom = described.ttest_mean(0.0)
    assert list(variant["differences"].values()) == close(list(d))
    assert (variant["pairs"], variant["difference"], variant["difference_sd"]) == (
        5,
        close(d.mean()),
        close(d.std(ddof=1)),
    )
    assert variant["t"] == close(tested.statistic) == close(t)
    assert variant["p"] == close(tested.pvalue) == close(p)
    assert freedom == 4
    assert variant["effect"] == close(tested.statistic / math.sqrt(5))
    low, high = described.tconfint_mean(LEVEL / 2)  # Bonferroni for two variants
    assert (variant["low"], variant["high"]) == (close(low), close(high))
    other = tested.confidence_interval(1 - LEVEL / 2)
    assert (variant["low"], variant["high"]) == (close(other.low), close(other.high))


def test_holms_correction_decides(by_t):
    variants = variants_of(by_t[0])
    raw = [stats.ttest_rel(REAL[name], REAL["default"]).pvalue for name in OTHERS]
    decided, adjusted, _, _ = multipletests(raw, alpha=LEVEL, method="holm")
    for name, p, yes in zip(OTHERS, adjusted, decided, strict=True):
        assert variants[name]["p_holm"] == close(p)
        side = "better" if differences(name).mean() > 0 else "worse"
        assert (variants[name]["verdict"] == side) == yes


@pytest.mark.parametrize("name", OTHERS)
def test_two_one_sided_tests_of_a_margin(name):
    variant = variants_of(report(PairedTestPlan("t", LEVEL, MARGIN), ("default", name))[0])[name]
    p, *_ = ttost_paired(np.array(REAL[name]), np.array(REAL["default"]), -MARGIN, MARGIN)
    assert variant["p_margin"] == close(p)


@pytest.mark.parametrize("name", OTHERS)
def test_sign_flips(name):
    variant = variants_of(report(PairedTestPlan("permutation", 0.2))[0])[name]
    exact = stats.permutation_test((differences(name),), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert variant["p"] == close(exact.pvalue)


def test_seeds_needed_for_eighty_percent_power():
    """Of figures that decide nothing: those of two variants with their seeds exchanged."""
    one, other = REAL["position=rope"], REAL["default"]
    figures = {"default": other, "position=rope": [other[0] - 0.02, other[1] + 0.03, *one[2:]]}
    d = np.array(figures["position=rope"]) - np.array(figures["default"])
    alpha, t = 0.01, stats.ttest_1samp(d, 0.0).statistic
    runs = [replace(run(name, seed, choices={"position": name}), goals={"top1": "max"}, last={"top1": value},
                    best={"top1": value}, validations=[{"step": 1, "tokens": 1, "top1": value}])
            for name, values in figures.items() for seed, value in enumerate(values, 1)]  # fmt: skip
    variant = variants_of(json.loads(table.as_json(answer(runs, plan=PairedTestPlan("t", alpha)))))["position=rope"]
    assert variant["verdict"] == "not distinguishable"
    assert variant["seeds_needed"] == seeds_needed(t / math.sqrt(5), alpha)
    for key, quantile in (("seeds_needed_low", 0.1), ("seeds_needed_high", 0.9)):
        low, high = 0.0, 50.0  # the noncentrality with which |t| is at this quantile
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if stats.nct.cdf(abs(t), 4, middle) > quantile else (low, middle)
        expected = seeds_needed(low / math.sqrt(5), alpha) if low > 1e-6 else None
        assert variant[key] == (expected if expected is None or expected <= 1000 else None)


def test_the_printed_digits_are_those_of_the_computed_numbers(by_t):
    content, cells = by_t
    for name, variant in variants_of(content).items():
        printed = re.findall(r"[−+]?\d+\.\d+", " ".join(
            cells[name][heading] for heading in ("top1", "difference", "95 % interval")))  # fmt: skip
        keys = ("mean", "sd", "difference", "low", "high")[: len(printed)]
        assert len(printed) == (2 if name == "default" else 5)
        for text, key in zip(printed, keys, strict=True):
            places = len(text.partition(".")[2])
            assert float(text.replace("−", "-")) == pytest.approx(variant[key], abs=0.51 * 10**-places)
        if name != "default":
            p = cells[name]["p"]
            assert float(p) == pytest.approx(variant["p_holm"], abs=0.51 * 10 ** -len(p.partition(".")[2]))
