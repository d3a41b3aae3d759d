"""The looks at a comparison, in looks.json of its folder: what each tested, and how much of ALPHA it spent.

However often and for whatever reason seeds are added or other questions are asked, P(any false verdict) <= ALPHA: what
all looks spend sums to at most that. A first look has a fixed number of seeds and spends FIRST of it. Looks whose
numbers of seeds are planned before the first spend UNTIL of it together, little with few seeds (O'Brien and Fleming,
1979). Looks at more seeds that depend on what was seen before use the sequential test, which pays once for any number
of them. A question that is chosen after a look is one of several that could have been: its level is a share of what it
spends, so that all of them together are false no more often.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from zoo.compare.simultaneous_tests import TESTS, PairedTestPlan, PairResult, TestName, count_fewest_seeds
from zoo.compare.statistics import ALPHA, POWER, Paired, smallest_effect
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.io.content_digests import check_digest, json_value, with_digest

FILE, FORMAT = "looks.json", 2
FIRST, UNTIL = 0.8, 0.9  # share of what is left for a look at a fixed number of seeds, and for a test until decided
FORMER_TESTS = ("moderated",)  # of earlier versions: what they spent counts
DECISIONS = ("better", "worse", "as good as")


def planned_levels(planned: Sequence[int], alpha: float, test: TestName = "t", variants: int = 1) -> list[float]:
    """The level of each of the looks after ``planned`` numbers of seeds, which sum to at most ``alpha``.

    After a share t of the seeds 2 (1 - Phi(z / sqrt t)) has been spent, with the z of alpha / 2 (Lan and DeMets, 1983).
    A look that has too few seeds to decide spends nothing.
    """
    normal, levels = NormalDist(), list[float]()
    for count in planned:
        share = math.sqrt(count / planned[-1])
        level = 2 * normal.cdf(normal.inv_cdf(alpha / 2) / share) - sum(levels)
        levels.append(level if count >= count_fewest_seeds(PairedTestPlan(test, level), variants) else 0.0)
    return levels


def parse_planned(until: str | None) -> tuple[int, ...]:
    """The planned numbers of seeds of an option `--looks`, `5,10`; none for `--until decided`."""
    return () if until in (None, "decided") else tuple(map(int, until.split(",")))


def describe_power(count: int, tests: int, test: TestName, until: str | None, budget: float = ALPHA) -> str:
    """What the looks at ``count`` seeds can decide about each of ``tests`` differences, as a sentence; they may spend
    ``budget``, which is above zero.
    """
    planned = parse_planned(until)
    if until and not planned:  # as many seeds as are needed
        fewest = count_fewest_seeds(PairedTestPlan("sequential", UNTIL * budget), tests)
        return f"{count} seeds decide nothing: --until decided needs at least {fewest}" if count < fewest else ""
    level = planned_levels(planned, UNTIL * budget, test, tests)[-1] if planned else FIRST * budget
    fewest = count_fewest_seeds(PairedTestPlan(test, level or UNTIL * budget), tests)
    if count < fewest:
        return f"{count} seeds decide nothing: at least {fewest} are needed"
    effect = smallest_effect(count, level / tests)
    return f"differences of {effect:.2g} of their standard deviations are decided with a probability of {POWER:.0%}"


@dataclass(frozen=True)
class Question:
    """What a look asks: on which figure, against which baseline, by which test."""

    goal: str
    baseline: str
    at: str = "best"
    margin: float | None = None
    test: TestName = "t"

    def same_hypotheses(self, against: Question) -> bool:
        """Whether both ask the same, by whatever test."""
        return replace(self, test=against.test) == against

    def changes(self, against: Question) -> frozenset[str]:
        """The names of what differs from another question."""
        return frozenset(name for name, value in asdict(self).items() if value != getattr(against, name))


@dataclass(frozen=True)
class Look:
    """One look: the seeds of every variant, the test and its level, how much it spent, and what it decided.

    A sequential test spends its level at its first look alone, and a plan of looks all of its levels. ``planned`` are
    its numbers of seeds. ``budget`` is what all looks together may spend. ``candidates`` is the number of questions
    among which this one was chosen after a look: they share what it spent. ``runs`` has the digests of the runs by
    variant and seed, see `RunRecord.digest`, and ``decided`` the figures of every decision.
    """

    question: Question
    seeds: Mapping[str, tuple[int, ...]]
    test: TestName
    level: float
    spent: float
    budget: float = ALPHA
    verdicts: Mapping[str, str] = field(default_factory=dict)
    candidates: int = 1
    runs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    planned: tuple[int, ...] = ()
    decided: Mapping[str, PairResult] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """The largest number of seeds that a variant shares with the baseline."""
        return max(self.count_pairs().values(), default=0)

    def count_pairs(self) -> dict[str, int]:
        """By variant the number of seeds that it shares with the baseline."""
        base = set(self.seeds.get(self.question.baseline, ()))
        return {name: len(base & set(seeds)) for name, seeds in self.seeds.items() if name != self.question.baseline}

    def same_runs(self, runs: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether no run of this look has been made again with another result."""
        return all(
            not digest or not before or digest == before
            for name, digests in runs.items()
            for seed, digest in digests.items()
            for before in [self.runs.get(name, {}).get(seed, "")]
        )

    def is_nested(self, seeds: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether every variant has all seeds of this look, or some of them, as on the path of one sequential test."""
        return all(
            set(numbers) <= set(self.seeds[name]) or set(self.seeds[name]) <= set(numbers)
            for name, numbers in seeds.items()
        )


@dataclass(frozen=True)
class Looks:
    """All looks at a comparison, in their order; together they may spend ``alpha``.

    ``elsewhere`` are looks at the same runs by other comparisons of the recipe, which spend too. ``unrelated`` are
    those of other comparisons in the same folder.
    """

    alpha: float = ALPHA
    looks: tuple[Look, ...] = ()
    unrelated: tuple[Look, ...] = ()
    elsewhere: tuple[Look, ...] = ()

    @property
    def history(self) -> tuple[Look, ...]:
        """All looks that spend."""
        return (*self.elsewhere, *self.looks)

    @property
    def remaining(self) -> float:
        """What later looks may spend."""
        return max(0.0, self.alpha - sum(look.spent for look in self.history))

    @property
    def order(self) -> tuple[int, ...]:
        """All seeds, in the order in which looks had them."""
        return tuple(
            dict.fromkeys(seed for look in self.history for seeds in look.seeds.values() for seed in sorted(seeds))
        )

    def find_missing_seeds(self, seeds: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """By variant the seeds that were looked at and are left out of ``seeds``, which no test allows for.

        The seeds of an earlier look may be asked about again, and so may the first ones of those that were looked at.
        """
        result = {}
        for name, numbers in seeds.items():
            before = [seed for seed in self.order if any(seed in look.seeds.get(name, ()) for look in self.history)]
            common = [seed for seed in before if seed in numbers]
            first_ones = common == before[: len(common)] and len(common) == len(numbers)
            again = any(set(look.seeds.get(name, ())) == set(numbers) for look in self.history)
            if len(common) < len(before) and not first_ones and not again:
                result[name] = [seed for seed in before if seed not in numbers]
        return result

    def next_look(
        self, question: Question, seeds: Mapping[str, Sequence[int]], until_decided: bool = False,
        runs: Mapping[str, Mapping[int, str]] | None = None, alternatives: Mapping[str, int] | None = None,
        planned: Sequence[int] = (),
    ) -> Look:  # fmt: skip
        """The test and level of a look at these seeds, of runs with these digests.

        A look that was made before has the level that it had. More seeds of the same question continue its sequential
        test, or begin one. Another question takes its share of what is left, and divides it by the number of questions
        that could have been chosen: ``alternatives`` says how many values it could have of the goal, of --at, and of
        --test. ``planned`` numbers of seeds hold for the question of their first look, and are
        named before any other look.
        """
        now = {name: tuple(sorted(numbers)) for name, numbers in seeds.items()}
        digests = {
            name: {str(seed): digest for seed, digest in by_seed.items()} for name, by_seed in (runs or {}).items()
        }
        new = Look(question, now, question.test, 0.0, 0.0, self.alpha, runs=digests)
        if planned and (look := self._planned_look(replace(new, planned=tuple(planned)))) is not None:
            return look
        earlier = self._same_question(new, until_decided)
        if earlier is not None:
            return earlier
        grown = any(look.seeds.get(name, numbers) != numbers for look in self.history for name, numbers in now.items())
        test: TestName = "sequential" if until_decided or grown else question.test
        candidates = self._count_candidates(new, alternatives or {}, test)
        for look in self.history:  # another one of the same candidates
            paid = candidates > 1 and look.candidates == candidates and look.spent > 0 and look.test == test
            alike = self._changes(look.question) == self._changes(question) and set(look.seeds) == set(now)
            same_seeds = look.is_nested(now) if alike and test == "sequential" else look.seeds == now
            if paid and alike and same_seeds and look.same_runs(digests):
                return replace(new, test=test, level=look.level, candidates=candidates)
        spent = self.remaining * (UNTIL if test == "sequential" and until_decided else FIRST)
        return replace(new, test=test, level=spent / candidates, spent=spent, candidates=candidates)

    def _planned_look(self, new: Look) -> Look | None:
        """A look of a plan, of level 0 between planned numbers of seeds; None for another question than the plan's."""
        past = [look for look in self.history if look.planned == new.planned]
        if not past and self.history:
            raise UsageError(
                f"--looks {','.join(map(str, new.planned))} is named before the first look at a comparison, and this "
                "one was looked at.\nLeave it out, or begin a comparison with other seeds: --runs DIR"
            )
        if past and (past[0].question != new.question or not past[0].same_runs(new.runs)):
            return None
        open_counts = {count for name, count in new.count_pairs().items() if name not in self._decisions(new)}
        count = open_counts.pop() if len(open_counts) == 1 else 0
        level = 0.0
        if count in new.planned:
            at = new.planned.index(count)
            levels = planned_levels(new.planned, UNTIL * self.alpha, new.test, max(1, len(new.seeds) - 1))
            same = [look.level for look in past if look.seeds == new.seeds]
            spent = sum({look.pairs: look.level for look in past if look.level}.values())
            level = same[0] if same else max(0.0, sum(levels[: at + 1]) - spent)
        return replace(new, level=level, spent=0.0 if past else UNTIL * self.alpha)

    def _decisions(self, look: Look) -> dict[str, tuple[str, PairResult]]:
        """By variant the word and the figures of what earlier looks have decided of a question."""
        return {
            name: (past.verdicts[name], result)
            for past in self.history
            if past.question.same_hypotheses(look.question) and past.same_runs(look.runs)
            for name, result in past.decided.items()
        }

    def _same_question(self, new: Look, until_decided: bool) -> Look | None:
        """A look that was made before, or goes on with its sequential test; None for a question that was not asked."""
        now = new.seeds
        past = [look for look in self.history if set(now) <= set(look.seeds) and look.same_runs(new.runs)]
        for look in past:
            if look.question == new.question and look.seeds == now and (look.test == "sequential" or not until_decided):
                return replace(look, spent=0.0, verdicts={}, runs=new.runs)
        for look in past:
            fewer = len(look.seeds) - 1 if set(now) < set(look.seeds) else 1  # a choice among all variants of that look
            goes_on = look.test == "sequential" and look.question.same_hypotheses(new.question) and look.is_nested(now)
            subset = look.question == new.question and all(look.seeds[name] == now[name] for name in now)
            if goes_on or (subset and not until_decided):
                return replace(new, test=look.test, level=look.level / fewer, candidates=look.candidates * fewer)
        return None

    def _changes(self, question: Question) -> frozenset[str]:
        """What of a question differs from the first one."""
        return question.changes(self.history[0].question) if self.history else frozenset()

    def _count_candidates(self, new: Look, alternatives: Mapping[str, int], test: TestName) -> int:
        """The number of questions that change what this one changes of the first one, seeds and variants included.

        Of the baseline there are as many as variants. A margin is free, because an interval holds for all margins at
        once. A sequential test holds after any number of the seeds that were looked at.
        """
        counts = {"goal": 1, "at": 1, "test": 3, "baseline": len(new.seeds), **alternatives}
        result = math.prod(max(1, counts.get(name, 2) - 1) for name in self._changes(new.question))
        past = [look.seeds for look in self.history]
        largest = all(
            set(past_seeds.get(name, ())) <= set(numbers) for past_seeds in past for name, numbers in new.seeds.items()
        )
        if not largest and test != "sequential":
            result *= len([past_seeds for index, past_seeds in enumerate(past) if past_seeds not in past[:index]])
        wider = max((len(look.seeds) - 1 for look in self.history if set(look.seeds) > set(new.seeds)), default=1)
        return result * wider

    def check_budget(self, level: float) -> None:
        """Raise UsageError if an earlier look was granted more than ``level``, what a series grants."""
        largest = max((look.budget for look in self.looks), default=0.0)
        if largest > level * (1 + 1e-9):
            raise UsageError(
                f"an earlier look at this comparison could spend {largest:.2g}, and the series grants it {level:.2g}.\n"
                "Name a series from the first look on: begin again with other seeds and another --runs DIR."
            )

    def plan(self, look: Look) -> PairedTestPlan:
        """How the figures of a look are tested: what was decided before stays decided."""
        later, waits = (self.remaining - look.spent) * FIRST, None
        if look.planned:
            levels = planned_levels(look.planned, UNTIL * self.alpha, look.test, max(1, len(look.seeds) - 1))
            later = levels[-1]
            waits = next((count for count in look.planned if count > look.pairs), None) if look.level == 0 else None
        return PairedTestPlan(
            look.test, look.level, look.question.margin, later, self.order, self._decisions(look), bool(look.planned),
            waits,
        )  # fmt: skip

    def with_look(
        self, look: Look, verdicts: Mapping[str, str], results: Mapping[str, PairResult] | None = None
    ) -> Looks:
        """With one more look and what it decided; the same if nothing could be tested or it was made before."""
        if look.pairs < 2 or self.number(look):
            return self
        decided = {
            name: result for name, result in (results or {}).items()
            if verdicts.get(name) in DECISIONS and result.pair.n
        }  # fmt: skip
        return replace(self, looks=(*self.looks, replace(look, verdicts=dict(verdicts), decided=decided)))

    def number(self, look: Look) -> int:
        """Which look this one is, from 1 on: that of before where it was made before; 0 where it is not recorded."""
        same = [index for index, past in enumerate(self.looks, 1) if past.same_runs(look.runs)
                and (past.question, past.seeds, past.test) == (look.question, look.seeds, look.test)]  # fmt: skip
        return same[0] if same else 0


def load_looks(
    folder: Path, variants: Collection[str], alpha: float = ALPHA, beside: Collection[Path] | None = None,
    tested: Collection[str] = (),
) -> Looks:  # fmt: skip
    """The looks at the comparison of some variants in a folder: those at one or more of them, so that who tries one
    variant after another spends. In a series, which pays for that itself, only those at a variant that is ``tested``.

    Looks at two or more of them in the folders ``beside`` it, by default all, count too, because they were at the same
    runs. They may spend ``alpha``, or less if they were begun with less. Raises UsageError for a damaged file: to begin
    again would spend ALPHA twice.
    """
    looks = _read_looks(folder)
    related = tuple(look for look in looks if set(look.seeds) & set(tested or variants))
    unrelated = tuple(look for look in looks if look not in related)
    if beside is None:
        beside = [path.parent for path in folder.parent.glob(f"*/{FILE}")]
    others = sorted(path for path in beside if path.resolve() != folder.resolve())
    elsewhere = tuple(
        look for place in others for look in _read_looks(place) if len(set(look.seeds) & set(variants)) > 1
    )
    return Looks(min((alpha, *(look.budget for look in related))), related, unrelated, elsewhere)


def _read_looks(folder: Path) -> list[Look]:
    """All looks that a folder records. Raises UsageError for a damaged file."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        content: Any = limits.read_json(path)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}")
        check_digest(content)
        return list(map(_parse_look, content["looks"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"{path} is damaged: {limits.describe_damage(error)}.\nIt records what earlier looks have tested. Restore "
            "it, or begin a comparison with other seeds: --runs DIR"
        ) from error


def _parse_look(content: Mapping[str, Any]) -> Look:
    question = Question(**content["question"])
    if not {question.test, content["test"]} <= {*TESTS, *FORMER_TESTS}:
        raise ValueError(f"test {content['test']!r:.20}")
    seeds = {str(name): tuple(int(seed) for seed in numbers) for name, numbers in content["seeds"].items()}
    level, spent, budget = (float(content[name]) for name in ("level", "spent", "budget"))
    candidates = int(content["candidates"])
    planned = tuple(map(int, content.get("planned", ())))
    limit = ALPHA if planned else min(level * candidates * (1 + 1e-9), ALPHA)
    if not (0 <= spent <= limit and 0 <= level <= ALPHA and 0 < budget <= ALPHA * (1 + 1e-9)):
        raise ValueError(f"level {level:g}, of which {spent:g} spent, of a budget of {budget:g}")  # decides by chance
    runs = {
        str(name): {str(seed): str(digest) for seed, digest in by_seed.items()}
        for name, by_seed in content["runs"].items()
    }
    decided = {str(name): _parse_result(result) for name, result in content.get("decided", {}).items()}
    verdicts = dict(content["verdicts"])
    if not set(decided) <= {name for name, word in verdicts.items() if word in DECISIONS}:
        raise ValueError("figures of what was not decided")
    return Look(question, seeds, content["test"], level, spent, budget, verdicts, candidates, runs, planned, decided)


def _parse_result(content: Mapping[str, Any]) -> PairResult:
    """The figures of a decision; null is NaN."""
    pair = dict(content["pair"])
    n, tied = int(pair.pop("n")), bool(pair.pop("tied"))
    figures = {str(name): math.nan if value is None else float(value) for name, value in pair.items()}
    adjusted, equivalent = (math.nan if content[name] is None else content[name] for name in ("adjusted", "equivalent"))
    return PairResult(Paired(n, **figures, tied=tied), adjusted, equivalent)


def save_looks(folder: Path, looks: Looks) -> None:
    """Write looks.json."""
    folder.mkdir(parents=True, exist_ok=True)
    every_look = [json_value(asdict(look)) for look in (*looks.unrelated, *looks.looks)]
    content = {"format": FORMAT, "looks": every_look}
    atomic_files.write_json(folder / FILE, with_digest(content), end="\n")
