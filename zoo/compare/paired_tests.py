"""The tests of a comparison: every variant's figures against the baseline's of the same seeds, all variants together.

`zoo compare` and the simulation of false verdicts (`python -m bench.verdicts`) call `compare_samples` and `judge_all`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from zoo.compare import sequential
from zoo.compare.statistics import (
    ALPHA,
    Paired,
    Verdict,
    equivalence_p,
    holm_adjust,
    judge,
    moderate_variances,
    moderated_t_test,
    paired_t_test,
    seeds_needed,
    sign_flip_interval,
    sign_flip_p,
)

TestName = Literal["t", "moderated", "permutation", "sequential"]
TESTS: tuple[str, ...] = get_args(TestName)
Sample = tuple[Sequence[float], Sequence[float]]  # figures of a variant and of the baseline, by seed
ASSUMPTIONS = {
    "t": "differences of one variant are normally distributed with one variance over seeds",
    "moderated": "as t; variances of the variants are similar, with a guard for those that are not",
    "permutation": "differences are symmetric about their centre; nothing about their distribution",
    "sequential": "differences are symmetric about their centre; nothing about their distribution or the number of "
    "looks",
}


@dataclass(frozen=True)
class PairedTestPlan:
    """How differences are tested, and with which probability any verdict of the comparison may be false.

    ``margin`` is in the unit of the figures. ``later_level`` is what a look at more seeds may spend: seeds needed are
    then those of the sequential test at that level. ``order`` lists seeds as they came; others follow by number.
    ``earlier`` holds, by variant, the word and the number of seeds of a verdict that an earlier look has reached.
    """

    test: TestName = "t"
    level: float = ALPHA
    margin: float | None = None
    later_level: float | None = None
    order: tuple[int, ...] = ()
    earlier: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def sort_seeds(self, seeds: Sequence[int]) -> list[int]:
        """Seeds in the order in which the sequential test takes them."""
        rank = {seed: index for index, seed in enumerate(self.order)}
        return sorted(seeds, key=lambda seed: (rank.get(seed, len(rank)), seed))


T_TEST = PairedTestPlan()


@dataclass(frozen=True)
class PairResult:
    """A variant's paired difference, and p after correction for all variants: of "no difference" (``adjusted``), and of
    "a difference of the margin or more" (``equivalent``). NaN without a test. The interval holds for all variants.
    """

    pair: Paired
    adjusted: float = math.nan
    equivalent: float = math.nan


NOT_TESTED = PairResult(paired_t_test((), ()))


def compare_samples(
    samples: Mapping[str, Sample], plan: PairedTestPlan = T_TEST, outcomes: Mapping[str, float] | None = None
) -> dict[str, PairResult]:
    """Test every variant. P(any false verdict) <= ``plan.level`` under the assumptions of the test.

    ``outcomes`` has the p values of variants whose runs failed (zoo.compare.outcomes), which are corrected along.

    Intervals have a confidence of 1 - level / number of variants each (Bonferroni), so that all of them hold together
    with 1 - level; one that excludes zero always belongs to a significant difference.
    """
    others = dict(outcomes or {})
    tests = sum(len(ours) > 1 for ours, _ in samples.values()) + sum(not math.isnan(p) for p in others.values())
    tests = max(1, tests)
    pairs = _test_each(samples, plan, plan.level / tests)
    null = [pair.p for pair in pairs.values()]
    margins = [_equivalence(sample, pairs[name], plan) for name, sample in samples.items()]
    adjusted = holm_adjust([*null, *margins, *others.values()], [*pairs, *pairs, *others])
    count = len(pairs)
    result = {
        name: PairResult(pair, adjusted[index], adjusted[count + index])
        for index, (name, pair) in enumerate(pairs.items())
    }
    of_outcomes = zip(others, adjusted[2 * count :], strict=True)
    return result | {name: replace(NOT_TESTED, adjusted=p) for name, p in of_outcomes}


def _test_each(samples: Mapping[str, Sample], plan: PairedTestPlan, level: float) -> dict[str, Paired]:
    pairs = {name: paired_t_test(*sample, level) for name, sample in samples.items()}
    if plan.test == "moderated":
        variances, freedom = [pair.sd**2 for pair in pairs.values()], [pair.n - 1 for pair in pairs.values()]
        prior = moderate_variances(variances, freedom)
        return {name: moderated_t_test(pair, *prior, level) for name, pair in pairs.items()}
    if plan.test == "t":
        return pairs
    result = {}
    for name, pair in pairs.items():
        if pair.n < 2:
            result[name] = pair
            continue
        values = differences(samples[name])
        if plan.test == "permutation":
            p, ends = sign_flip_p(values.tolist()), sign_flip_interval(values.tolist(), level)
        else:
            p, ends = sequential.last_p(values), sequential.confidence_sequence(values, level)
        result[name] = replace(pair, p=p, low=ends[0], high=ends[1])
    return result


def _equivalence(sample: Sample, pair: Paired, plan: PairedTestPlan) -> float:
    """p of "the difference is the margin or more": two one-sided tests, sequential ones for that test."""
    if plan.margin is None or pair.n < 2:
        return math.nan
    if plan.test != "sequential":
        return equivalence_p(pair, plan.margin)
    values = differences(sample)
    return max(sequential.last_p(plan.margin + sign * values, "positive") for sign in (1.0, -1.0))


def differences(sample: Sample) -> sequential.Floats:
    """Variant minus baseline by seed, (n,); 0 where they differ by rounding alone."""
    ours, theirs = (np.array(values, dtype=np.float64) for values in sample)
    return np.asarray(np.where(np.isclose(ours, theirs, rtol=1e-12, atol=0.0), 0.0, ours - theirs))


def judge_all(
    tested: Mapping[str, PairResult], lower_is_better: bool, plan: PairedTestPlan = T_TEST
) -> dict[str, Verdict]:
    """The verdict on every variant. One that an earlier look has reached stays, unless the difference has turned."""
    tests = sum(not math.isnan(one.adjusted) for one in tested.values())
    count_needed = _count_needed(plan, tests)
    result = {}
    for name, one in tested.items():
        verdict = judge(one.pair, one.adjusted, tests, lower_is_better, plan.level, count_needed, one.equivalent)
        word, seeds = plan.earlier.get(name, ("", 0))
        side = "better" if (one.pair.mean < 0) == lower_is_better else "worse"
        if word and verdict.word == "not distinguishable" and word in (side, "as good as"):
            verdict = Verdict(word, f"{word}, decided with {seeds} seeds")
        result[name] = verdict
    return result


def _count_needed(plan: PairedTestPlan, tests: int) -> Callable[[float], int | None]:
    """The seeds that the next look needs for an effect."""
    level = plan.level if plan.test == "sequential" else plan.later_level
    if level is None:
        return lambda effect: seeds_needed(effect, plan.level / max(1, tests))
    if level <= 0:
        return lambda effect: None
    # rounded, so that equal figures on other machines give equal numbers, and to be cached
    return lambda effect: sequential.seeds_needed_sequentially(float(f"{effect:.2g}"), level / max(1, tests))
