"""The tests of a comparison: every variant's figures against the baseline's of the same seeds, all variants together.

`zoo compare` and the simulation of false verdicts (`python -m bench.verdicts`) call `compare_samples` and `judge_all`.

Where runs did not all converge, figures of the survivors would mislead: which seeds of a variant diverge depends on the
variant, so that the difference over the others is no estimate of anything. What is tested then (`compare_outcomes`) is
how often runs diverge, and how often a seed of one variant ends better than the same seed of the other, a diverged run
being worse than any figure.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from zoo.compare.number_format import MINUS
from zoo.compare.run_records import FAILURES, NOT_REACHED
from zoo.compare.statistics import (
    ALPHA,
    MAX_SEEDS,
    Paired,
    Verdict,
    confidence_sequence,
    dunnett_adjusted,
    equivalence_p,
    fewest_seeds,
    fewest_sequential_seeds,
    holm_adjust,
    join_variances,
    judge,
    last_p,
    least_p,
    paired_differences,
    paired_t_test,
    rounding_of,
    seeds_needed,
    seeds_needed_sequentially,
    sign_flip_interval,
    sign_flip_p,
)

TestName = Literal["t", "dunnett", "permutation", "sequential"]
TESTS: tuple[str, ...] = get_args(TestName)
Sample = tuple[Sequence[float], Sequence[float]]  # figures of a variant and of the baseline, by seed
ASSUMPTIONS = {
    "t": "differences of one variant are normally distributed with one variance over seeds",
    "dunnett": "as t; finds more where the variants scatter alike, and less where they do not",
    "permutation": "differences are symmetric about their centre; nothing about their distribution",
    "sequential": "differences are symmetric about their centre; nothing about their distribution or the number of "
    "looks",
}

FLIPS_BELOW = 3  # p values of flipped signs below the level of a t test, from which it has to agree with them
NOTHING_LEFT = "the looks so far have spent their error probability"


@dataclass(frozen=True)
class PairResult:
    """A variant's paired difference, and p after correction for all variants: of "no difference" (``adjusted``), and of
    "a difference of the margin or more" (``equivalent``). NaN without a test. The interval holds for all variants.
    """

    pair: Paired
    adjusted: float = math.nan
    equivalent: float = math.nan


NOT_TESTED = PairResult(paired_t_test((), ()))


@dataclass(frozen=True)
class PairedTestPlan:
    """How differences are tested, and with which probability any verdict of the comparison may be false.

    ``margin`` is in the unit of the figures. ``later_level`` is what a look at more seeds may spend: seeds needed are
    then those of the sequential test at that level, or those of this test where the look is ``planned``. ``next_look``
    is the planned number of seeds before which this look decides nothing. ``order`` lists seeds as they came; others
    follow by number. ``earlier`` holds, by variant, the word and the figures of a verdict that an earlier look has
    reached.
    """

    test: TestName = "t"
    level: float = ALPHA
    margin: float | None = None
    later_level: float | None = None
    order: tuple[int, ...] = ()
    earlier: Mapping[str, tuple[str, PairResult]] = field(default_factory=dict)
    planned: bool = False
    next_look: int | None = None

    def sort_seeds(self, seeds: Sequence[int]) -> list[int]:
        """Seeds in the order in which the sequential test takes them."""
        rank = {seed: index for index, seed in enumerate(self.order)}
        return sorted(seeds, key=lambda seed: (rank.get(seed, len(rank)), seed))


T_TEST = PairedTestPlan()


def compare_samples(
    samples: Mapping[str, Sample], plan: PairedTestPlan = T_TEST, outcomes: Mapping[str, float] | None = None
) -> dict[str, PairResult]:
    """Test every variant. P(any false verdict) <= ``plan.level`` under the assumptions of the test.

    ``outcomes`` has the p values of variants whose runs failed (`compare_outcomes`), which are corrected along.

    With so few seeds that differences may all be alike by chance, p is at least the probability of that (`least_p`).
    With enough seeds a t test has to agree with flips of the signs, which hold for outcomes in two or three heaps.
    Intervals have a confidence of 1 - level / number of variants each (Bonferroni; Dunnett's test: less), so that all
    of them hold together with 1 - level; one that excludes zero always belongs to a significant difference.
    """
    others = dict(outcomes or {})
    tests = sum(len(ours) > 1 for ours, _ in samples.values()) + sum(not math.isnan(p) for p in others.values())
    tests = max(1, tests)
    joint = count_joint_seeds(plan, [len(ours) for ours, _ in samples.values()], bool(others))
    pairs = _test_each(samples, plan, plan.level / tests)
    if joint:
        pairs = dict(zip(pairs, join_variances([*pairs.values()], plan.level), strict=True))
    null = [pair.p for pair in pairs.values()]
    margins = [_equivalence(sample, pairs[name], plan) for name, sample in samples.items()]
    adjust = functools.partial(dunnett_adjusted, n=joint) if joint else operator.mul
    adjusted = holm_adjust([*null, *margins, *others.values()], [*pairs, *pairs, *others], adjust)
    count, result = len(pairs), {}
    if plan.test in ("t", "dunnett"):
        decided = [name for index, name in enumerate(pairs) if adjusted[index] <= plan.level]
        flips = {
            name: sign_flip_p(paired_differences(ours, theirs).tolist(), rounding_of([*ours, *theirs]))
            for name in decided for ours, theirs in [samples[name]]
            if FLIPS_BELOW * 2.0 ** (1 - len(ours)) <= plan.level / tests
        }  # fmt: skip
        corrected = holm_adjust([flips.get(name, 1.0) for name in pairs] + [1.0] * (tests - count))
        for index, (name, pair) in enumerate(pairs.items()):
            if name in flips and corrected[index] > plan.level:
                adjusted[index] = corrected[index]
                low, high = sign_flip_interval(paired_differences(*samples[name]).tolist(), plan.level / tests)
                pairs[name] = replace(pair, low=min(pair.low, low), high=max(pair.high, high))
    for index, (name, pair) in enumerate(pairs.items()):
        least = least_p(pair.n) * tests if plan.test in ("t", "dunnett") else 0.0
        p, equivalent = (
            min(1.0, max(value, chance)) if chance > plan.level and not math.isnan(value) else value
            for value, chance in ((adjusted[index], least), (adjusted[count + index], least / 2))
        )
        result[name] = PairResult(pair, p, equivalent)
    of_outcomes = zip(others, adjusted[2 * count :], strict=True)
    return result | {name: replace(NOT_TESTED, adjusted=p) for name, p in of_outcomes}


def count_joint_seeds(plan: PairedTestPlan, counts: Collection[int], failed: bool) -> int:
    """The seeds of each variant where Dunnett's test applies: no margin, no failed runs, equally many; else 0."""
    applies = plan.test == "dunnett" and plan.level > 0 and plan.margin is None and not failed
    return max(counts) if applies and len({*counts}) == 1 and min(counts) > 1 else 0


def _test_each(samples: Mapping[str, Sample], plan: PairedTestPlan, level: float) -> dict[str, Paired]:
    pairs = {name: paired_t_test(*sample, level) for name, sample in samples.items()}
    if plan.test in ("t", "dunnett"):
        return pairs
    result = {}
    for name, pair in pairs.items():
        if pair.n < 2:
            result[name] = pair
            continue
        values = paired_differences(*samples[name])
        if plan.test == "permutation":
            rounding = rounding_of([*samples[name][0], *samples[name][1]])
            p, ends = sign_flip_p(values.tolist(), rounding), sign_flip_interval(values.tolist(), level)
        else:
            p, ends = last_p(values), confidence_sequence(values, level)
        half = pair.sd / 2 if pair.tied else 0.0  # equal differences are known to within a step
        result[name] = replace(pair, p=p, low=min(ends[0], pair.mean - half), high=max(ends[1], pair.mean + half))
    return result


def _equivalence(sample: Sample, pair: Paired, plan: PairedTestPlan) -> float:
    """p of "the difference is the margin or more": two one-sided tests, sequential ones for that test."""
    if plan.margin is None or pair.n < 2:
        return math.nan
    if plan.test != "sequential":
        return equivalence_p(pair, plan.margin)
    values = paired_differences(*sample)
    return max(last_p(plan.margin + sign * values, "positive") for sign in (1.0, -1.0))


def judge_all(
    tested: Mapping[str, PairResult], lower_is_better: bool, plan: PairedTestPlan = T_TEST
) -> dict[str, Verdict]:
    """The verdict on every variant. One that an earlier look has reached stays, unless the difference has turned."""
    tests = max(1, sum(not math.isnan(result.adjusted) for result in tested.values()))
    count_needed = _count_needed(plan, tests)
    fewest = count_fewest_seeds(plan, tests) if plan.test in ("t", "dunnett") else 2
    verdicts = {}
    for name, result in tested.items():
        pair = result.pair
        verdict = judge(pair, result.adjusted, tests, lower_is_better, plan.level, count_needed, result.equivalent,
                        fewest)  # fmt: skip
        if plan.level <= 0 and pair.n > 1:
            reason = f"next planned look after {plan.next_look} seeds" if plan.next_look else NOTHING_LEFT
            verdict = Verdict("no verdict", f"{reason}: no verdict")
        word, earlier = plan.earlier.get(name, ("", NOT_TESTED))
        side = "better" if (pair.mean < 0) == lower_is_better else "worse"
        if word and verdict.word in ("not distinguishable", "no verdict") and word in (side, "as good as"):
            now = f"; with {pair.n} the difference is {signed(pair.mean)}" if pair.n != earlier.pair.n else ""
            verdict = Verdict(word, f"{word}, decided with {earlier.pair.n} seeds{now}", earlier=True)
        verdicts[name] = verdict
    return verdicts


def signed(value: float) -> str:
    """Two digits with a sign, ``−0.0012``."""
    return f"{value:+.2g}".replace("-", MINUS)


def count_fewest_seeds(plan: PairedTestPlan, tests: int) -> int:
    """The number of seeds before which a test of one of ``tests`` variants decides nothing."""
    level = plan.level / tests
    if plan.test == "permutation":
        return 1 + math.ceil(math.log2(1 / level)) if level else MAX_SEEDS
    return fewest_sequential_seeds(level) if plan.test == "sequential" else fewest_seeds(level)


def _count_needed(plan: PairedTestPlan, tests: int) -> Callable[[float], int | None]:
    """The seeds that the next look needs for an effect."""
    level = plan.level if plan.test == "sequential" else plan.later_level
    if level is None:
        return lambda effect: seeds_needed(effect, plan.level / tests)
    if level <= 0:
        return lambda effect: None
    if plan.planned:
        return lambda effect: seeds_needed(effect, level / tests)
    # rounded, so that equal figures on other machines give equal numbers, and to be cached
    return lambda effect: seeds_needed_sequentially(float(f"{effect:.2g}"), level / tests)


Combination = tuple[str, ...]  # a value of every varied option


@dataclass(frozen=True)
class Effect:
    """A contrast over a grid: what a value of an option changes, averaged over all values of the others; or how much
    more two values change together than the sum of what each changes alone.
    """

    name: str
    tested: PairResult
    verdict: Verdict

    @property
    def interaction(self) -> bool:
        """Whether it is one of two values."""
        return " × " in self.name


def grid_contrasts(
    names: Sequence[str], cells: Mapping[Combination, Mapping[int, float]], base: Combination, seeds: Sequence[int]
) -> dict[str, Sample]:
    """The main effects, and the interactions of each two options, as samples over ``seeds``.

    ``cells`` has the figures of a variant by seed. Empty unless every combination of the varied options' values is a
    variant, for a single option, and where a run failed: figures of the others are a selection.
    """
    values = [sorted({cell[index] for cell in cells}) for index in range(len(names))]
    figures = {cell: [by_seed[seed] for seed in seeds] for cell, by_seed in cells.items()}
    failed = any(math.isnan(figure) for by_seed in cells.values() for figure in by_seed.values())
    if len(names) < 2 or len(cells) < math.prod(map(len, values)) or failed or not seeds:
        return {}
    return dict(_contrasts(names, values, base, figures))


def _contrasts(
    names: Sequence[str], values: Sequence[Sequence[str]], base: Combination, figures: Mapping[Combination, list[float]]
) -> Iterator[tuple[str, Sample]]:
    """For each effect its two sides by seed, whose difference is the contrast."""
    options = range(len(names))
    changes = [(index, value) for index in options for value in values[index] if value != base[index]]
    for index, value in changes:
        cells = [cell for cell in figures if cell[index] == value]
        yield f"{names[index]} {base[index]} → {value}", (
            _cell_mean(figures, cells), _cell_mean(figures, [_replace(cell, {index: base[index]}) for cell in cells]),
        )  # fmt: skip
    for (index, value), (second_index, second) in itertools.combinations(changes, 2):
        if index == second_index:
            continue
        both = [cell for cell in figures if cell[index] == value and cell[second_index] == second]
        neither = [_replace(cell, {index: base[index], second_index: base[second_index]}) for cell in both]
        index_alone = [_replace(cell, {second_index: base[second_index]}) for cell in both]
        second_alone = [_replace(cell, {index: base[index]}) for cell in both]
        together = [a + b for a, b in zip(_cell_mean(figures, both), _cell_mean(figures, neither), strict=True)]
        alone = [
            a + b for a, b in zip(_cell_mean(figures, index_alone), _cell_mean(figures, second_alone), strict=True)
        ]
        yield f"{names[index]} {value} × {names[second_index]} {second}", (together, alone)


def _replace(cell: Combination, changes: Mapping[int, str]) -> Combination:
    return tuple(changes.get(index, value) for index, value in enumerate(cell))


def _cell_mean(figures: Mapping[Combination, list[float]], cells: Sequence[Combination]) -> list[float]:
    """The mean over cells, by seed."""
    return [math.fsum(column) / len(cells) for column in zip(*(figures[cell] for cell in cells), strict=True)]


@dataclass(frozen=True)
class OutcomeTest:
    """How the ``n`` seeds ended that a variant and the baseline have in common, and tests on it.

    ``failed`` and ``base_failed`` count those without a figure; the variant ended better at ``wins`` seeds and worse at
    ``losses``. ``p_rate`` is Fisher's (1922) exact test on the numbers of diverged runs, ``p_sign`` the exact sign test
    on wins and losses, both two-sided; ``p`` corrects the smaller one for being one of two. Where seeds are added until
    the comparison is decided, ``p_sign`` is of the sequential test on wins and losses, and ``p_rate`` NaN.
    """

    n: int
    failed: int
    base_failed: int
    wins: int
    losses: int
    p_rate: float
    p_sign: float

    @property
    def p(self) -> float:
        """min(1, 2 · min(p_rate, p_sign)); p_sign where there is no other."""
        if math.isnan(self.p_rate):
            return self.p_sign
        return min(1.0, 2 * min(self.p_rate, self.p_sign))

    @property
    def favours_variant(self) -> bool:
        """Whether the test with the smaller p is in the variant's favour."""
        return self.failed < self.base_failed if self.p_rate <= self.p_sign else self.wins > self.losses


def count_failures(failures: Mapping[int, str]) -> dict[str, int]:
    """How many seeds ended in which of FAILURES, by their order; ``failures`` maps each seed to one, or to nothing."""
    return {word: count for word in FAILURES if (count := sum(failure == word for failure in failures.values()))}


def failure_text(failures: Mapping[int, str], total: int) -> str:
    """``2 of 5 diverged, 1 of 5 crashed``; empty for none."""
    verbs = {"out of memory": "ran out of memory"}
    return ", ".join(f"{count} of {total} {verbs.get(word, word)}" for word, count in count_failures(failures).items())


def censor_alike(
    ours: Mapping[int, float], theirs: Mapping[int, float], our_steps: Mapping[int, int], their_steps: Mapping[int, int]
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Figures of a variant and the baseline by seed, NaN also beyond the earlier of the two runs' planned ends.

    Beyond it nothing tells which would have been sooner. Unchanged where every run reached the target.
    """
    common = ours.keys() & theirs.keys()
    if not any(math.isnan(figures[seed]) for figures in (ours, theirs) for seed in common):
        return ours, theirs
    steps = {seed: (our_steps[seed], their_steps[seed]) for seed in common}
    ends = {seed: math.log2(max(1, min(pair))) for seed, pair in steps.items() if pair[0] != pair[1]}
    mine, base = ({seed: math.nan if figure > ends.get(seed, math.inf) else figure for seed, figure in figures.items()}
                  for figures in (ours, theirs))  # fmt: skip
    return mine, base


def compare_outcomes(
    ours: Mapping[int, float], theirs: Mapping[int, float], lower_is_better: bool, order: Sequence[int] | None = None,
    until_decided: bool = False,
) -> OutcomeTest | None:  # fmt: skip
    """The tests on the figures by seed of a variant and the baseline, NaN where a run failed; None if none did.

    ``order`` has the common seeds as they came, for a test ``until_decided``, which any number of looks may repeat.
    """
    seeds = [seed for seed in ours if seed in theirs] if order is None else list(order)
    failed = [math.isnan(ours[seed]) for seed in seeds]
    base_failed = [math.isnan(theirs[seed]) for seed in seeds]
    if not any([*failed, *base_failed]):
        return None
    ranks = [tuple(_outcome_rank(figures[seed], lower_is_better) for figures in (ours, theirs)) for seed in seeds]
    signs = [int(mine > their_rank) - int(mine < their_rank) for mine, their_rank in ranks]
    n, k, base_k, wins, losses = len(seeds), sum(failed), sum(base_failed), signs.count(-1), signs.count(1)
    if until_decided:
        import numpy as np

        p = last_p(np.array(signs, dtype=np.float64)) if n else 1.0
        return OutcomeTest(n, k, base_k, wins, losses, math.nan, p)
    from scipy.stats import binomtest, fisher_exact

    p_rate = float(fisher_exact([[k, n - k], [base_k, n - base_k]]).pvalue)
    p_sign = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return OutcomeTest(n, k, base_k, wins, losses, p_rate, p_sign)


def _outcome_rank(figure: float, lower_is_better: bool) -> float:
    """A figure of which less is better; infinity for a failed run, so that two of them tie."""
    return math.inf if math.isnan(figure) else figure if lower_is_better else -figure


def judge_outcomes(test: OutcomeTest, adjusted: float, tests: int, level: float = ALPHA) -> Verdict:
    """The verdict on a variant from its corrected p value, where runs of it or of the baseline diverged."""
    record = f"ends better at {test.wins} and worse at {test.losses} of {test.n} seeds"
    if test.n < 2:
        return Verdict("no verdict", "one seed: no verdict")
    if test.failed == test.base_failed == test.n:
        return Verdict("no verdict", "no seed tells them apart: no verdict")
    if adjusted <= level:
        word = "better" if test.favours_variant else "worse"
        return Verdict(word, f"{word}: {record}")
    corrected = f", corrected for {tests} comparisons" if test.p <= level else ""
    return Verdict("not distinguishable", f"not distinguishable: {record}{corrected}")


def other_failures(failures: Sequence[Mapping[int, str]]) -> str:
    """The words for runs that crashed or ran out of memory, which need not be the model's fault; empty for none."""
    words = {word for by_seed in failures for word in count_failures(by_seed)} - {"diverged", NOT_REACHED}
    return " and ".join(sorted("ran out of memory" if word == "out of memory" else word for word in words))
