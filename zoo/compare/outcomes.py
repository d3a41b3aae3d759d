"""Outcomes of runs that did not all converge: tests on how runs ended, where figures of the survivors would mislead.

Which seeds of a variant diverge depends on the variant, so that the figures of those that did not are a selection: the
difference in nats over them is no estimate of anything. What can be tested is how often runs diverge, and how often a
seed of one variant ends better than the same seed of the other, a diverged run being worse than any figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zoo.compare.run_records import FAILURES
from zoo.compare.statistics import ALPHA, Paired, Verdict

NO_PAIR = Paired(0)


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
    ranks = [tuple(_rank(figures[seed], lower_is_better) for figures in (ours, theirs)) for seed in seeds]
    signs = [int(mine > their_rank) - int(mine < their_rank) for mine, their_rank in ranks]
    n, k, base_k, wins, losses = len(seeds), sum(failed), sum(base_failed), signs.count(-1), signs.count(1)
    if until_decided:
        import numpy as np

        from zoo.compare import sequential

        p = sequential.last_p(np.array(signs, dtype=np.float64)) if n else 1.0
        return OutcomeTest(n, k, base_k, wins, losses, math.nan, p)
    from scipy.stats import binomtest, fisher_exact

    p_rate = float(fisher_exact([[k, n - k], [base_k, n - base_k]]).pvalue)
    p_sign = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return OutcomeTest(n, k, base_k, wins, losses, p_rate, p_sign)


def _rank(figure: float, lower_is_better: bool) -> float:
    """A figure of which less is better; infinity for a failed run, so that two of them tie."""
    return math.inf if math.isnan(figure) else figure if lower_is_better else -figure


def judge_outcomes(test: OutcomeTest, adjusted: float, tests: int, level: float = ALPHA) -> Verdict:
    """The verdict on a variant from its corrected p value, where runs of it or of the baseline diverged."""
    record = f"ends better at {test.wins} and worse at {test.losses} of {test.n} seeds"
    if test.n < 2:
        return Verdict("no verdict", "one seed: no verdict")
    if test.failed == test.base_failed == test.n:
        return Verdict("no verdict", "all runs of both failed: no verdict")
    if adjusted <= level:
        word = "better" if test.favours_variant else "worse"
        return Verdict(word, f"{word}: {record}")
    corrected = f", corrected for {tests} comparisons" if test.p <= level else ""
    return Verdict("not distinguishable", f"not distinguishable: {record}{corrected}")


def other_failures(failures: Sequence[Mapping[int, str]]) -> str:
    """The words for runs that crashed or ran out of memory, which need not be the model's fault; empty for none."""
    words = {word for by_seed in failures for word in count_failures(by_seed)} - {"diverged"}
    return " and ".join(sorted("ran out of memory" if word == "out of memory" else word for word in words))
