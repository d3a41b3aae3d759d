"""How often are the verdicts of `zoo compare` false, how often do they see an effect, and after how many seeds?

    python -m bench.verdicts [TABLE ...] [--count 10000]

Simulated figures of runs go through the functions that `zoo compare` calls: compare_samples, judge_all, p_values,
Looks, Series and LawBootstrap. A rate of 5 % in 10,000 comparisons scatters by 0.2 %, and the largest of 70 such rates
is 5.5 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zoo.compare import statistics
from zoo.compare.error_budget import Series
from zoo.compare.looks import DECISIONS, FIRST, UNTIL, Looks, Question, planned_levels
from zoo.compare.simultaneous_tests import T_TEST, PairedTestPlan, PairResult, TestName, compare_samples, judge_all
from zoo.compare.statistics import ALPHA, least_p

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
MOST = 30  # seeds of a test until decided
PATIENCE = 60  # seeds above which advice is not followed
FIXED = 5  # seeds of a first look
SEEDS, VARIANTS, PLANNED = (2, 3, 5, 10), (1, 3, 6), (5, 10)
IMAGES = (100, 1000, 10_000)  # of accuracies
FEW = 200  # comparisons where every look is replayed
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


def half_bad(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """As bad seeds, with a probability of 50 %."""
    return 0.1 * rng.standard_normal(shape) + 10.0 * (rng.random(shape) < 0.5) - 5.0


@dataclass(frozen=True)
class Null:
    """Two variants without a difference; ``symmetric``: whether the sign of the difference is a fair coin."""

    title: str
    baseline: Draw
    variant: Draw
    symmetric: bool = True

    def families(self, rng: np.random.Generator, count: int, variants: int, seeds: int) -> Floats:
        """Figures of a baseline and variants, (count, 1 + variants, seeds), with the noise of the seed in common."""
        runs = [self.baseline(rng, (count, 1, seeds)), self.variant(rng, (count, variants, seeds))]
        return np.asarray(rng.standard_normal((count, 1, seeds)) + np.concatenate(runs, axis=1))

    def samples(self, rng: np.random.Generator, count: int, seeds: int) -> tuple[Floats, Floats]:
        """Figures of one variant and the baseline, (count, seeds) each."""
        figures = self.families(rng, count, 1, seeds)
        return figures[:, 1], figures[:, 0]


def as_accuracies(figures: Floats, images: int) -> Floats:
    """The figures as accuracies that runs record: float32 shares of so many images, with a deviation of 0.7 %."""
    right = np.round(images * np.clip(0.7 + 0.007 * figures, 0.0, 1.0))
    return np.asarray((right / images).astype(np.float32), dtype=np.float64)


NULLS = (
    Null("normal", normal, normal),
    Null("t with 3 degrees of freedom", heavy_tails, heavy_tails),
    Null("lognormal", lognormal, lognormal),
    Null("unequal variances (variant x 3)", normal, lambda rng, shape: UNEQUAL * normal(rng, shape)),
    Null("10 % bad seeds", bad_seeds, bad_seeds),
    Null("50 % bad seeds", half_bad, half_bad),
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


def find_candidates(figures: Floats, level: float, test: str = "t") -> NDArray[np.bool_]:
    """Which comparisons (count, 1 + variants, seeds) could have a verdict of a difference: the others are not judged.

    The p values of `compare_samples` are never below those of this t test, which Dunnett's multiplies by less than the
    number of variants, or of the sign test where differences are equal.
    """
    from scipy.special import stdtr

    differences = figures[:, 1:] - figures[:, :1]
    count, rounding = differences.shape[-1], 2.0**-22 * np.abs(figures).max()
    error = np.maximum(differences.std(axis=-1, ddof=1) - rounding, 0.0) / math.sqrt(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (np.abs(differences.mean(axis=-1)) + rounding) / error
    p = np.maximum(2 * stdtr(count - 1, -t), least_p(count))
    tied = np.ptp(differences, axis=-1) <= rounding
    p = np.where(tied, np.where(np.abs(differences[..., 0]) <= rounding, 1.0, 2.0 ** (1 - count)), p)
    return np.asarray(p.min(axis=1) * (1 if test == "dunnett" else p.shape[1]) <= level)


def differing_families(figures: Floats, plan: PairedTestPlan = T_TEST) -> NDArray[np.bool_]:
    """Which comparisons, (count, 1 + variants, seeds), call a variant better or worse."""
    result = find_candidates(figures, plan.level, plan.test)
    for index in np.flatnonzero(result):
        verdicts = judge_all(_family(figures[index], plan), True, plan)
        result[index] = any(verdict.word in ("better", "worse") for verdict in verdicts.values())
    return result


def planned_families(figures: Floats, planned: Sequence[int] = PLANNED) -> NDArray[np.bool_]:
    """The same of comparisons with ``planned`` looks, where every look is judged as it would have been."""
    variants = figures.shape[1] - 1
    levels = planned_levels(planned, UNTIL * ALPHA, "t", variants)
    result = np.any([find_candidates(figures[..., :n], sum(levels)) for n in planned], axis=0)
    for index in np.flatnonzero(result):
        looks, words = Looks(), set()
        for seeds in planned:
            numbers = {name: range(1, seeds + 1) for name in map(str, range(variants + 1))}
            look = looks.next_look(Question("top1", "0"), numbers, planned=planned)
            plan = looks.plan(look)
            tested = _family(figures[index, :, :seeds], plan)
            verdicts = {name: verdict.word for name, verdict in judge_all(tested, True, plan).items()}
            words |= set(verdicts.values())
            looks = looks.with_look(look, verdicts, tested)
        result[index] = bool(words & {"better", "worse"})
    return result


def follow_advice(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The last verdict on a variant whose user starts with FIXED seeds and then does as many as "would be needed"."""
    looks, question, seeds = Looks(), Question("loss", "base"), FIXED
    while True:
        numbers = range(1, seeds + 1)
        look = looks.next_look(question, {"base": numbers, "v": numbers})
        plan = looks.plan(look)
        order = [seed - 1 for seed in plan.sort_seeds(numbers)]
        sample = ([ours[i] for i in order], [theirs[i] for i in order])
        tested = compare_samples({"v": sample}, plan)
        verdict = judge_all(tested, True, plan)["v"]
        looks = looks.with_look(look, {"v": verdict.word}, tested)
        if verdict.word in DECISIONS or verdict.needed is None or verdict.needed > len(ours):
            return verdict.word
        seeds = max(verdict.needed, seeds + 1)
        if seeds > len(ours):
            return verdict.word


def false_verdicts(count: int, _: np.random.Generator, nulls: Sequence[Null] = NULLS) -> list[list[str]]:
    """Rates of "better" or "worse" without an effect, with 1 / 3 / 6 variants: the largest of accuracies of 100, 1,000
    and 10,000 images; planned looks and the tests until decided with 1,000 images.
    """
    rows = [["no difference", *(f"{seeds} seeds" for seeds in SEEDS), "`--looks 5,10`", f"until decided, {MOST} seeds",
             f"{FIXED} seeds, then the number advised", "t after every seed, uncorrected"]]  # fmt: skip
    for null in nulls:
        rng, cells = np.random.default_rng([*null.title.encode()]), []
        for seeds in SEEDS:
            rates = [
                max(differing_families(as_accuracies(null.families(rng, count, variants, seeds), images)).mean()
                    for images in IMAGES) for variants in VARIANTS
            ]  # fmt: skip
            cells.append(" / ".join(f"{100 * rate:.1f}" for rate in rates) + " %")
        planned = [
            planned_families(as_accuracies(null.families(rng, count, variants, PLANNED[-1]), 1000)).mean()
            for variants in VARIANTS
        ]
        cells.append(" / ".join(f"{100 * rate:.1f}" for rate in planned) + " %")
        ours, theirs = null.samples(rng, count, PATIENCE)
        differences = (ours - theirs)[:, :MOST]
        decided = statistics.p_values(differences)[:, -1] <= ALPHA * UNTIL
        few = zip(ours[:FEW].tolist(), theirs[:FEW].tolist(), strict=True)
        words = [follow_advice(*pair) for pair in few]
        mark = "" if null.symmetric else " *"
        rows.append([
            null.title + mark, *cells, percent(decided), percent([word in ("better", "worse") for word in words]),
            percent(t_after_every_seed(differences)),
        ])  # fmt: skip
    return rows


def stopping_times(differences: Floats, level: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether the test until decided has decided within all seeds, and after how many it stops."""
    hits = statistics.p_values(differences) <= level
    decided = hits[:, -1]
    return decided, np.where(decided, hits.argmax(axis=1) + 1, differences.shape[1])


def power_and_seeds(count: int, rng: np.random.Generator) -> list[list[str]]:
    """Power and number of seeds until decided, beside those of fixed and of planned numbers of seeds."""
    rows = [["effect, d_z", "t, 5 seeds", "t, 10 seeds", "5 seeds, then 10", "`--looks 5,10`",
             f"until decided, {MOST} seeds", "mean seeds", "80 % decided after"]]  # fmt: skip
    first, later = PairedTestPlan(level=FIRST * ALPHA), FIRST * (1 - FIRST) * ALPHA
    for effect in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0):
        values = rng.standard_normal((count, MOST)) + effect
        decided, stops = stopping_times(values, ALPHA * UNTIL)
        figures = 10.0 + np.stack([np.zeros_like(values), values], axis=1)[..., : PLANNED[-1]]
        fixed = [percent(differing_families(figures[..., :seeds])) for seeds in PLANNED]
        added = differing_families(figures[..., : PLANNED[0]], first)
        added |= statistics.p_values(values[:, : PLANNED[-1]])[:, -1] <= later
        late = statistics.seeds_needed_sequentially(effect, ALPHA * UNTIL)
        rows.append([f"{effect:g}", *fixed, percent(added), percent(planned_families(figures)), percent(decided),
                     f"{stops.mean():.1f}", str(late or "–")])  # fmt: skip
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
            sides = [statistics.p_values(margin + sign * values, "positive") for sign in (1.0, -1.0)]
            hits = np.maximum(*sides) <= ALPHA * UNTIL
            cells.append(percent(hits[:, -1]))
        stops = np.where(hits[:, -1], hits.argmax(axis=1) + 1, MOST)
        rows.append([f"{margin:g}", *cells, f"{stops.mean():.1f}"])
    return rows


FAMILIES: Mapping[str, tuple[float, ...]] = {
    "1, equal variances": (1, 1),
    "1, variant x 3": (1, 3),
    "3, equal variances": (1, 1, 1, 1),
    "3, baseline x 3": (3, 1, 1, 1),
    "3, baseline x 0.1": (0.1, 1, 1, 1),
    "3, one variant x 3": (1, 1, 1, 3),
    "3, two variants x 3": (1, 1, 3, 3),
    "3, one variant x 10": (0.3, 0.3, 0.3, 3),
    "3, 0.2 to 5": (1, 0.2, 1, 5),
    "6, equal variances": (1, 1, 1, 1, 1, 1, 1),
    "6, baseline x 3": (3, 1, 1, 1, 1, 1, 1),
    "6, one variant x 4": (1, 1, 1, 1, 1, 1, 4),
    "6, two variants x 10": (0.3, 0.3, 0.3, 0.3, 0.3, 3, 3),
    "6, 0.5 to 3": (0.5, 0.5, 0.5, 0.5, 1, 1, 3),
    "6, three quiet variants": (1, 0.2, 0.2, 0.2, 1, 1, 1),
}


def families(
    count: int, rng: np.random.Generator, deviations: Mapping[str, tuple[float, ...]] = FAMILIES,
    seed_counts: Sequence[int] = SEEDS, figures_of: Sequence[int] = (*IMAGES, 0),
) -> list[list[str]]:  # fmt: skip
    """Several variants and a baseline: family-wise error, the largest of accuracies of 100, 1,000 and 10,000 images and
    of losses; and the power of losses for an effect of 1.5 standard deviations of the first variant's difference.
    """
    tests: tuple[TestName, ...] = ("t", "dunnett")
    rows = [["variants, standard deviations", "seeds", *(f"{what}, {test}" for what in ("false", "power")
                                                         for test in tests)]]  # fmt: skip
    for title, scatter in deviations.items():
        for seeds in seed_counts:
            deviates = rng.standard_normal((count, len(scatter), seeds)) * np.array(scatter)[:, None]
            shifted = deviates[: count // 10].copy()
            shifted[:, 1] += 1.5 * math.hypot(*scatter[:2])  # d_z = 1.5
            plans = [PairedTestPlan(test) for test in tests]
            recorded = [as_accuracies(deviates, images) if images else as_losses(deviates) for images in figures_of]
            false = [percent(max(differing_families(one, plan).mean() for one in recorded)) for plan in plans]
            true = [percent([_family(each, plan)["1"].adjusted <= ALPHA for each in as_losses(shifted)])
                    for plan in plans]  # fmt: skip
            rows.append([title, str(seeds), *false, *true])
    return rows


def as_losses(figures: Floats) -> Floats:
    """The figures as losses that runs record: float32, with a deviation of 0.02."""
    return np.asarray((3 + 0.02 * figures).astype(np.float32), dtype=np.float64)


def _family(figures: Floats, plan: PairedTestPlan) -> dict[str, PairResult]:  # of one comparison: (1 + variants, seeds)
    names = map(str, range(1, len(figures)))
    return compare_samples({name: (ours, figures[0]) for name, ours in zip(names, figures[1:], strict=True)}, plan)


def series(count: int, rng: np.random.Generator, tries: int = 100, seeds: int = 2 * FIXED) -> list[list[str]]:
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
    from zoo_designs.scale_result import LawBootstrap  # of the package zoo-designs

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
            expected = smaller.difference(0, 1, largest, measured=True)
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
