"""The contract of a part at a fraction of its cost, for the default run; campaigns run `zoo.conformance.checks`.

Every check runs on the part as it is. Of the other situations in which it is tried (the part with another value of
each option, the part in a stack that looks at a memory) two of three quick checks meet one: these checks of a part take
its situations in turn, so that each situation meets some checks, and each check other situations from part to part.
Slow checks are for some parts of a kind only: see `is_for` and `in_turn`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zoo.conformance import Check, checks
from zoo.conformance.check import SITUATIONS
from zoo.conformance.subject import Subject

Situation = tuple[str, Subject]
# of so many checks in turn one meets no other situation; a data module loads what it has once more in another
PERIOD, PERIOD_OF_DATA = 3, 2
# checks that train, of which each part of a stack meets one
COSTLY = ("learns_two_samples", "processes_agree", "trains_language", "trains_translation", "trains_vision")
# of each of which a data module meets one
COSTLY_OF_DATA = (
    ("workers_change_nothing", "resumes"),
    ("fingerprint_follows_content", "splits_are_apart", "order_is_repeatable"),
    ("near_twins", "every_sample_loads"),
)
# checks that take a twentieth of a second or more: each meets every third part of a stack, as it is. Their other
# situations are those of the quick checks, of tests/parts and of campaigns
SLOW = (
    "memory_claim", "decoding_is_exact", "moves_with_the_module", "no_state_between_calls", "gradients_are_right",
    "memory", "dtypes", "decoding", "packed_rows", "autocast", "dropout", "signals_keep_their_size", "offsets",
    "causality_by_gradient", "padding", "activation_checkpointing", "long_sequences", "low_precision", "gradients",
    "backends_agree", "weights_times_values", "log_sum_exp", "values", "weights_are_shares", "log_sum_exp_gradients",
    "causality_by_perturbation", "dropout_on_average", "width_of_values", "every_branch_counts",
)  # fmt: skip
TURNS = 3
# checks that no built-in part meets: three processes for each data module, and a compiler, which tests/training runs on
# a part of each kind
LATER = ("hash_seed_changes_nothing", "compiles")


def is_for(check: Check, number: int) -> bool:
    """Whether the default run has a check for the part of this number among those of its kind."""
    if check.name in LATER:
        return False
    groups = COSTLY_OF_DATA if check.subject.kind == "data" else (COSTLY,)
    return all(check.name not in costly or costly.index(check.name) == number % len(costly) for costly in groups)


def in_turn(check: Check, number: int, count: int) -> bool:
    """Whether the default run has a check for the part of this number of ``count`` parts of a kind."""
    turns = min(TURNS, count)
    return check.name not in SLOW or (number + SLOW.index(check.name)) % turns == 0


class Situations:
    """The other situations of a part, found when a check first needs them: that builds the part many times."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._cached: dict[str, list[Situation]] = {}

    def of(self, kind: str) -> list[Situation]:
        if kind not in self._cached:
            self._cached[kind] = list(self._find(kind))
        return self._cached[kind]

    def _find(self, kind: str) -> Iterator[Situation]:
        if kind == "options":
            yield from ((f"with {option}", other) for option, other in self.subject.other_options())
        elif looking := self.subject.with_memory():
            yield "in a stack that looks at a memory", looking


@dataclass(frozen=True)
class SampledCheck(Check):
    """A check of the part as it is, and in one other situation, but for each third turn."""

    situations: Situations | None = None
    turn: int = 0

    def _situations(self) -> Iterator[Situation]:
        yield "", self.subject
        period = PERIOD_OF_DATA if self.subject.kind == "data" else PERIOD
        if self.turn % period == period - 1:
            return
        assert self.situations is not None
        kinds = reversed(kinds_of_situations(self))  # the memory first, which has one situation
        others = [situation for kind in kinds for situation in self.situations.of(kind)]
        if others:
            yield others[(self.turn - self.turn // period) % len(others)]


def kinds_of_situations(check: Check) -> tuple[str, ...]:
    """The kinds of other situations that a check is made for."""
    return tuple(kind for kind in SITUATIONS if kind in getattr(check.promise, "situations", SITUATIONS))


def sampled_checks(part: type, first: int = 0, **options: Any) -> list[Check]:
    """The checks of the contract of a part with these options; the first takes the situation of number ``first``."""
    whole = checks(part, **options)
    situations = Situations(whole[0].subject)
    numbers: Counter[tuple[str, ...]] = Counter()  # of checks so far, by the kinds of situations that they meet
    result: list[Check] = []
    for check in whole:
        kinds = kinds_of_situations(check)
        slow = check.name in SLOW
        turn = PERIOD - 1 if slow else first + numbers[kinds]
        numbers[kinds] += not slow
        result.append(SampledCheck(check.promise, check.subject, check.known_failure, situations, turn))
    return result
