"""How often are the verdicts of `zoo compare` false, how often do they see an effect, and after how many seeds?

    python -m bench.verdicts [TABLE ...] [--count 10000]

Simulated figures of runs go through the functions that `zoo compare` calls: compare_samples, judge_all, p_values,
Looks, Series and LawBootstrap. A rate of 5 % in 10,000 comparisons scatters by 0.2 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zoo.compare import sequential
from zoo.compare.looks import DECISIONS, UNTIL, Looks, Question
from zoo.compare.paired_tests import PairedTestPlan, compare_samples, judge_all
from zoo.compare.scaling_law import LawBootstrap
from zoo.compare.series import Series
from zoo.compare.statistics import ALPHA, paired_t_test, power, seeds_needed

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
MOST = 30  # seeds of a test until decided
PATIENCE = 60  # seeds above which advice is not followed
FIXED = 5  # seeds of a first look
UNEQUAL = 3.0


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def heavy_tails(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Student's t with 3 degrees of freedom, variance 1."""
    return rng.standard_t(3, shape) / math.sqrt(3)


def lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Mean 0, variance 1."""
    return (rng.lognormal(0, 1, shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


def bad_seeds(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Normal, and with a probability of 10 % ten standard deviations worse; mean 0."""
    return rng.standard_normal(shape) + 10.0 * (rng.random(shape) < 0.1) - 1.0


@dataclass(frozen=True)
class Null:
    """Two variants without a difference; ``symmetric``: whether the sign of the difference is a fair coin."""

    title: str
    baseline: Draw
    variant: Draw
    symmetric: bool = True

    def samples(self, rng: np.random.Generator, count: int, seeds: int) -> tuple[Floats, Floats]:
        """Figures of variant and baseline, (count, seeds) each; both have the noise of the seed in common."""
        shared = rng.standard_normal((count, seeds))
        return shared + self.variant(rng, (count, seeds)), shared + self.baseline(rng, (count, seeds))


NULLS = (
    Null("normal", normal, normal),
    Null("t with 3 degrees of freedom", heavy_tails, heavy_tails),
    Null("lognormal", lognormal, lognormal),
    Null("unequal variances (variant x 3)", normal, lambda rng, shape: UNEQUAL * normal(rng, shape)),
    Null("10 % bad seeds", bad_seeds, bad_seeds),
    Null("lognormal variant alone, equal means", normal, lognormal, False),
    Null("10 % bad seeds of the variant alone, equal means", normal, bad_seeds, False),
)


def t_after_every_seed(differences: Floats) -> NDArray[np.bool_]:
    """Whether Student's t test at ALPHA rejects after any of 2 to n seeds, as by looking without a correction."""
    count = np.arange(1, differences.shape[1] + 1)
    mean = np.cumsum(differences, axis=1) / count
    squares = np.cumsum(differences**2, axis=1) - count * mean**2
    from scipy.special import stdtr

    with np.errstate(all="ignore"):
        t = mean[:, 1:] / np.sqrt(squares[:, 1:] / (count[1:] - 1) / count[1:])
    return np.asarray((2 * stdtr(count[1:] - 1, -np.abs(t)) <= ALPHA).any(axis=1))


def verdict_words(ours: Floats, theirs: Floats, plan: PairedTestPlan) -> list[str]:
    """The words of comparisons of one variant, (count, seeds)."""
    return [
        judge_all(compare_samples({"v": pair}, plan), True, plan)["v"].word for pair in zip(ours, theirs, strict=True)
    ]


def fixed_rate(ours: Floats, theirs: Floats, plan: PairedTestPlan) -> float:
    """The share of comparisons whose verdict is better or worse."""
    tested = (compare_samples({"v": pair}, plan)["v"].adjusted for pair in zip(ours, theirs, strict=True))
    return float(np.mean([p <= plan.level for p in tested]))


def follow_advice(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The last verdict on a variant whose user starts with FIXED seeds and then does as many as "would be needed"."""
    looks, question, seeds = Looks(), Question("loss", "base"), FIXED
    while True:
        numbers = range(1, seeds + 1)
        look = looks.next_look(question, {"base": numbers, "v": numbers})
        plan = looks.plan(look)
        order = [seed - 1 for seed in plan.sort_seeds(numbers)]
        sample = ([ours[i] for i in order], [theirs[i] for i in order])
        verdict = judge_all(compare_samples({"v": sample}, plan), True, plan)["v"]
        looks = looks.with_look(look, {"v": verdict.word})
        if verdict.word in DECISIONS or verdict.needed is None or verdict.needed > len(ours):
            return verdict.word
        seeds = max(verdict.needed, seeds + 1)
        if seeds > len(ours):
            return verdict.word


def false_verdicts(count: int, rng: np.random.Generator, nulls: Sequence[Null] = NULLS) -> list[list[str]]:
    """Rates of "better" or "worse" without an effect."""
    rows = [["no difference", f"t, {FIXED} seeds", "t after every seed, uncorrected", f"until decided, {MOST} seeds",
             f"{FIXED} seeds, then the number advised", "coverage of t's interval",
             "coverage after every seed"]]  # fmt: skip
    level = ALPHA * UNTIL
    for null in nulls:
        ours, theirs = null.samples(rng, count, PATIENCE)
        first = (ours[:, :FIXED], theirs[:, :FIXED])
        differences = (ours - theirs)[:, :MOST]
        decided = sequential.p_values(differences)[:, -1] <= level
        # the interval after n seeds holds the centre, 0, unless the test of 0 has rejected
        words = [follow_advice(*pair) for pair in zip(ours.tolist(), theirs.tolist(), strict=True)]
        inside = [pair.low <= 0 <= pair.high for pair in (paired_t_test(*one) for one in zip(*first, strict=True))]
        mark = "" if null.symmetric else " *"
        rows.append([
            null.title + mark, percent(fixed_rate(*first, PairedTestPlan())), percent(t_after_every_seed(differences)),
            percent(decided), percent([word in ("better", "worse") for word in words]), percent(inside),
            percent(~decided),
        ])  # fmt: skip
    return rows


def stopping_times(differences: Floats, level: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether the test until decided has decided within all seeds, and after how many it stops."""
    hits = sequential.p_values(differences) <= level
    decided = hits[:, -1]
    return decided, np.where(decided, hits.argmax(axis=1) + 1, differences.shape[1])


def power_and_seeds(count: int, rng: np.random.Generator) -> list[list[str]]:
    """Power and number of seeds until decided, beside the fixed designs of the paired t test."""
    rows = [["effect, d_z", "t, 5 seeds", "t, 10 seeds", "seeds of t for 80 %", f"until decided, {MOST} seeds",
             "mean seeds", "80 % decided after"]]  # fmt: skip
    for effect in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0):
        decided, stops = stopping_times(rng.standard_normal((count, MOST)) + effect, ALPHA * UNTIL)
        needed = seeds_needed(effect) if effect else None
        late = sequential.seeds_needed_sequentially(effect, ALPHA * UNTIL)
        rows.append([f"{effect:g}", percent(power(effect, 5)), percent(power(effect, 10)), str(needed or "–"),
                     percent(decided), f"{stops.mean():.1f}", str(late or "–")])  # fmt: skip
    return rows


def margins(count: int, rng: np.random.Generator) -> list[list[str]]:
    """Rates of "as good as": at the margin it is false, without a difference it is right."""
    rows = [["margin / sd", "at the margin, t, 5 seeds", f"at the margin, until decided, {MOST} seeds",
             "no difference, t, 5 seeds", "no difference, t, 20 seeds", f"no difference, until decided, {MOST} seeds",
             "mean seeds"]]  # fmt: skip
    for margin in (0.5, 1.0, 2.0):
        cells = []
        for difference in (margin, 0.0):
            values = rng.standard_normal((count, MOST)) + difference
            for seeds in (5, 20) if difference == 0 else (5,):
                plan, ours = PairedTestPlan(margin=margin), values[:, :seeds]
                tested = (compare_samples({"v": (one, np.zeros(seeds))}, plan)["v"] for one in ours)
                cells.append(percent([one.equivalent <= ALPHA for one in tested]))
            sides = [sequential.p_values(margin + sign * values, "positive") for sign in (1.0, -1.0)]
            hits = np.maximum(*sides) <= ALPHA * UNTIL
            cells.append(percent(hits[:, -1]))
        stops = np.where(hits[:, -1], hits.argmax(axis=1) + 1, MOST)
        rows.append([f"{margin:g}", *cells, f"{stops.mean():.1f}"])
    return rows


FAMILIES: Mapping[str, tuple[float, ...]] = {
    "equal variances": (1, 1, 1, 1, 1, 1, 1),
    "one variant x 4": (1, 1, 1, 1, 1, 1, 4),
    "0.5 to 3": (0.5, 0.5, 0.5, 0.5, 1, 1, 3),
    "three quiet variants": (1, 0.2, 0.2, 0.2, 1, 1, 1),
}


def families(count: int, rng: np.random.Generator) -> list[list[str]]:
    """Six variants and a baseline: family-wise error and the power for an effect of two standard deviations."""
    tests = ("t", "moderated")
    rows = [["standard deviations", "seeds", *(f"{what}, {test}" for what in ("false", "power", "all intervals hold")
                                               for test in tests)]]  # fmt: skip
    for title, deviations in FAMILIES.items():
        for seeds in (3, 5):
            figures = rng.standard_normal((count, len(deviations), seeds)) * np.array(deviations)[:, None]
            false, true, inside = [], [], []
            for test in tests:
                plan = PairedTestPlan(test)  # type: ignore[arg-type]
                results = [_family(one, plan) for one in figures]
                false.append(percent([min(one.adjusted for one in each) <= ALPHA for each in results]))
                inside.append(percent([all(one.pair.low <= 0 <= one.pair.high for one in each) for each in results]))
                shifted = figures[: count // 4].copy()
                shifted[:, 1] += 2 * math.sqrt(deviations[0] ** 2 + deviations[1] ** 2)  # d_z = 2
                true.append(percent([_family(one, plan)[0].adjusted <= ALPHA for one in shifted]))
            rows.append([title, str(seeds), *false, *true, *inside])
    return rows


def _family(figures: Floats, plan: PairedTestPlan) -> list[object]:  # of one comparison: (1 + variants, seeds)
    return [*compare_samples({str(index): (ours, figures[0]) for index, ours in enumerate(figures[1:])}, plan).values()]


def series(count: int, rng: np.random.Generator, tries: int = 100, seeds: int = FIXED) -> list[list[str]]:
    """Greedy searches over variants that change nothing: each "better" becomes the baseline of the next tries."""
    rows = [["tries in a row", "seeds", "series with a false better or worse, p <= 0.05", "the same with --series"]]
    uncorrected, corrected = [], []
    for _ in range(count):
        figures = rng.standard_normal((tries + 1, seeds)) + rng.standard_normal(seeds)
        uncorrected.append(search(figures, None))
        corrected.append(search(figures, Series(tries)))
    return [*rows, [str(tries), str(seeds), percent(uncorrected), percent(corrected)]]


def search(figures: Floats, budget: Series | None) -> bool:
    """Whether a greedy search over (1 + tries, seeds) figures claims a difference."""
    base, claimed = figures[0], False
    for number, ours in enumerate(figures[1:]):
        name, level = f"v{number}", ALPHA
        if budget is not None:
            entry = budget.entry(name, [name])
            level = entry.level
        tested = compare_samples({name: (ours, base)}, PairedTestPlan(level=level))[name]
        decided = tested.adjusted <= level
        if budget is not None:
            budget = budget.with_entry(entry, [name] if decided else [])
        claimed |= decided
        base = ours if decided and tested.pair.mean < 0 else base
    return claimed


@dataclass(frozen=True)
class TwoLaws:
    """Two laws E + A C^-α that cross at ``crossing`` times the smallest compute, where the losses are then equal.

    Seeds scatter by ``deviation`` nats, half of its variance shared by variant and baseline; ``growth`` is how many
    times larger it is at the largest size than at the smallest.
    """

    title: str
    irreducible: float = 2.0
    exponents: tuple[float, float] = (0.3, 0.2)  # of variant and baseline
    crossing: float = 3.0
    deviation: float = 0.03
    growth: float = 1.0
    seeds: int = 3

    def loss(self, curve: int, compute: Floats) -> Floats:
        """Losses of the variant (0) or the baseline (1); the baseline has 3.5 nats at the smallest compute."""
        at_crossing = (3.5 - self.irreducible) * self.crossing ** -self.exponents[1]
        return np.asarray(self.irreducible + at_crossing * (compute / self.crossing) ** -self.exponents[curve])

    def sample(self, rng: np.random.Generator, compute: Floats) -> Floats:
        """Losses of runs, (2, sizes, seeds)."""
        means = np.stack([self.loss(curve, compute) for curve in range(2)])
        shape = (len(compute), self.seeds)
        noise = (rng.standard_normal((1, *shape)) + rng.standard_normal((2, *shape))) / math.sqrt(2)
        scale = self.deviation * np.geomspace(1, self.growth, len(compute))
        return np.asarray(means[..., None] + scale[:, None] * noise)


COMPUTE = np.array([1.0, 2.1, 3.6, 7.8])  # of dim=64,96,128,192 at equal tokens, in units of the smallest
LAWS = (
    TwoLaws("crossing between the sizes"),
    TwoLaws("the same, 5 seeds", seeds=5),
    TwoLaws("the same, deviation 0.01", deviation=0.01),
    TwoLaws("crossing at twice the largest", crossing=15.0),
    TwoLaws("crossing below the smallest", crossing=0.5),
    TwoLaws("exponents 0.22 and 0.2", exponents=(0.22, 0.2)),
    TwoLaws("exponents 0.6 and 0.4", exponents=(0.6, 0.4)),
    TwoLaws("no irreducible loss, 0.09 and 0.06", irreducible=0.0, exponents=(0.09, 0.06)),
    TwoLaws("deviation 0.1", deviation=0.1),
    TwoLaws("deviation 3 times larger at the largest size", growth=3.0),
    TwoLaws("deviation 3 times smaller at the largest size", growth=1 / 3),
)


def scales(count: int, rng: np.random.Generator, samples: int = 400) -> list[list[str]]:
    """Coverage of the interval of a crossing point, and of the prediction of the largest size, nominally 95 %.

    At most 1,000 comparisons for every row, with 400 bootstrap samples each.
    """
    rows = [["laws", "crossing inside its interval", "bounded on both sides", "its width, median",
             "largest size inside its prediction", "half-width of it / true difference"]]  # fmt: skip
    largest, compute = (float(COMPUTE[-1]), float(COMPUTE[-1])), np.stack([COMPUTE, COMPUTE])
    for laws in LAWS:
        inside, bounded, widths, predicted, halves = [], [], [], [], []
        for _ in range(min(count, 1000)):
            losses = laws.sample(rng, COMPUTE)
            crossing = LawBootstrap(compute, losses, samples=samples).crossing(0, 1)
            inside.append(crossing.possible and (crossing.low or 0) <= laws.crossing <= (crossing.high or math.inf))
            bounded.append(crossing.low is not None and crossing.high is not None)
            if crossing.low is not None and crossing.high is not None:
                widths.append(crossing.high / crossing.low)
            smaller = LawBootstrap(compute[:, :-1], losses[:, :-1], samples=samples)
            expected = smaller.measured_difference(0, 1, largest)
            predicted.append(expected.holds(float((losses[0, -1] - losses[1, -1]).mean())))
            halves.append((expected.high - expected.low) / 2)
        effect = abs(float(laws.loss(0, COMPUTE[-1:])[0] - laws.loss(1, COMPUTE[-1:])[0]))
        rows.append([
            laws.title, percent(inside), percent(bounded), f"x {np.median(widths):.2g}" if widths else "–",
            percent(predicted), f"{np.median(halves) / effect:.2g}",
        ])  # fmt: skip
    return rows


def percent(hits: object) -> str:
    """A rate or the mean of truth values, in percent."""
    return f"{100 * float(np.mean(hits)):.1f} %"  # type: ignore[arg-type]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, its first row the headings."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: Mapping[str, Callable[[int, np.random.Generator], list[list[str]]]] = {
    "false": false_verdicts, "power": power_and_seeds, "margin": margins, "families": families, "series": series,
    "scales": scales,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.verdicts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; all unless given")
    parser.add_argument("--count", type=int, default=10_000, help="simulated comparisons of every row")
    arguments = parser.parse_args(argv)
    for name in arguments.tables or TABLES:
        if name not in TABLES:
            parser.error(f"unknown table {name!r}: choose from {', '.join(TABLES)}")
        table = TABLES[name]
        rng = np.random.default_rng([len(name), *name.encode()])
        print(f"{(table.__doc__ or '').strip()}\n\n{markdown(table(arguments.count, rng))}\n", flush=True)


if __name__ == "__main__":
    main()
