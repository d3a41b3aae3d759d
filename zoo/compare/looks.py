"""The looks at a comparison, in looks.json of its folder: what each tested, and how much of ALPHA it spent.

However often and for whatever reason seeds are added or other questions are asked, P(any false verdict) <= ALPHA: the
levels of all looks sum to at most that. A first look has a fixed number of seeds and spends FIRST of it. Looks at more
seeds depend on what was seen before, and use the sequential test, which pays once for any number of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from zoo.compare.paired_tests import TESTS, PairedTestPlan, TestName
from zoo.compare.statistics import ALPHA
from zoo.errors import UsageError
from zoo.io import atomic_files, limits

FILE, FORMAT = "looks.json", 1
FIRST, UNTIL = 0.8, 0.9  # share of what is left for a look at a fixed number of seeds, and for a test until decided
DECISIONS = ("better", "worse", "as good as")


@dataclass(frozen=True)
class Question:
    """What a look asks: on which figure, against which baseline, by which test."""

    goal: str
    baseline: str
    at: str = "best"
    margin: float | None = None
    test: TestName = "t"

    def same_hypotheses(self, other: Question) -> bool:
        """Whether both ask the same, by whatever test."""
        return replace(self, test=other.test) == other


@dataclass(frozen=True)
class Look:
    """One look: the seeds of every variant, the test and its level, how much it spent, and what it decided.

    A sequential test spends its level at its first look alone. ``budget`` is what all looks together may spend.
    """

    question: Question
    seeds: Mapping[str, tuple[int, ...]]
    test: TestName
    level: float
    spent: float
    budget: float = ALPHA
    verdicts: Mapping[str, str] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """The largest number of seeds that a variant shares with the baseline."""
        base = set(self.seeds.get(self.question.baseline, ()))
        return max((len(base & set(seeds)) for name, seeds in self.seeds.items() if name != self.question.baseline),
                   default=0)  # fmt: skip


@dataclass(frozen=True)
class Looks:
    """All looks at a comparison, in their order; together they may spend ``alpha``.

    ``unrelated`` are those of other comparisons in the same folder.
    """

    alpha: float = ALPHA
    looks: tuple[Look, ...] = ()
    unrelated: tuple[Look, ...] = ()

    @property
    def remaining(self) -> float:
        """What later looks may spend."""
        return max(0.0, self.alpha - sum(look.spent for look in self.looks))

    @property
    def order(self) -> tuple[int, ...]:
        """All seeds, in the order in which looks had them."""
        return tuple(dict.fromkeys(seed for look in self.looks for seeds in look.seeds.values() for seed in seeds))

    def next_look(self, question: Question, seeds: Mapping[str, Sequence[int]], until_decided: bool = False) -> Look:
        """The test and level of a look at these seeds.

        A look that was made before has the level that it had. More seeds of the same question continue its sequential
        test, or begin one. Another question at the same seeds takes its share of what is left, and may use any test.
        """
        now = {name: tuple(sorted(numbers)) for name, numbers in seeds.items()}
        for look in self.looks:
            if look.question == question and look.seeds == now and (look.test == "sequential" or not until_decided):
                return replace(look, spent=0.0, verdicts={})
        for look in self.looks:
            same = look.question.same_hypotheses(question) and set(now) <= set(
                look.seeds
            )  # a new variant is a new test
            if look.test == "sequential" and same:
                return Look(question, now, "sequential", look.level, 0.0, self.alpha)
        grown = any(look.seeds.get(name, numbers) != numbers for look in self.looks for name, numbers in now.items())
        test: TestName = "sequential" if until_decided or grown else question.test
        level = self.remaining * (UNTIL if test == "sequential" and until_decided else FIRST)
        return Look(question, now, test, level, level, self.alpha)

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
        earlier = {
            name: (word, past.pairs)
            for past in reversed(self.looks)
            if past.question.same_hypotheses(look.question)
            for name, word in past.verdicts.items()
            if word in DECISIONS
        }
        return PairedTestPlan(
            look.test, look.level, look.question.margin, (self.remaining - look.spent) * FIRST, self.order, earlier
        )

    def with_look(self, look: Look, verdicts: Mapping[str, str]) -> Looks:
        """With one more look and what it decided; the same if nothing could be tested or it was made before."""
        if look.pairs < 2 or self.number(look):
            return self
        return replace(self, looks=(*self.looks, replace(look, verdicts=dict(verdicts))))

    def number(self, look: Look) -> int:
        """Which look this one is, from 1 on: that of before where it was made before; 0 where it is not recorded."""
        same = [index for index, past in enumerate(self.looks, 1)
                if (past.question, past.seeds, past.test) == (look.question, look.seeds, look.test)]  # fmt: skip
        return same[0] if same else 0


def load_looks(folder: Path, variants: Collection[str], alpha: float = ALPHA) -> Looks:
    """The looks at the comparison of some variants in a folder: those at two or more of them.

    They may spend ``alpha``, or less if they were begun with less. Raises UsageError for a damaged file: to begin again
    would spend ALPHA twice.
    """
    path = folder / FILE
    if not path.is_file():
        return Looks(alpha)
    try:
        content: Any = limits.read_json(path)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}")
        looks = list(map(_parse_look, content["looks"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"{path} is damaged: {error!r:.80}.\nIt records what earlier looks have tested. Restore it, or begin a "
            "comparison with other seeds: --runs DIR"
        ) from error

    related = tuple(look for look in looks if len(set(look.seeds) & set(variants)) > 1)
    unrelated = tuple(look for look in looks if look not in related)
    return Looks(min((alpha, *(look.budget for look in related))), related, unrelated)


def _parse_look(content: Mapping[str, Any]) -> Look:
    question = Question(**content["question"])
    if question.test not in TESTS or content["test"] not in TESTS:
        raise ValueError(f"test {content['test']!r:.20}")
    seeds = {str(name): tuple(int(seed) for seed in numbers) for name, numbers in content["seeds"].items()}
    level, spent, budget = (float(content[name]) for name in ("level", "spent", "budget"))
    if not (0 <= spent <= level <= ALPHA and 0 < budget <= ALPHA * (1 + 1e-9)):  # a larger level decides by chance
        raise ValueError(f"level {level:g}, of which {spent:g} spent, of a budget of {budget:g}")
    return Look(question, seeds, content["test"], level, spent, budget, dict(content["verdicts"]))


def save_looks(folder: Path, looks: Looks) -> None:
    """Write looks.json."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "looks": [asdict(look) for look in (*looks.unrelated, *looks.looks)]}
    atomic_files.write_json(folder / FILE, content, end="\n")
