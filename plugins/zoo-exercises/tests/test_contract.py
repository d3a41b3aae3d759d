"""The data modules and the command keep the contract of their kind."""

import pytest
from zoo_exercises.algebra import Addition, WordProblem
from zoo_exercises.commands import Probe
from zoo_exercises.mechanisms import FuzzyRecall, InContextRecall, Memorization, SelectiveCopying
from zoo_exercises.synthetic import Copying, Induction, ModularAddition, ModularArithmetic, MultiQueryRecall, Parity

from zoo.conformance import checks

DATA = (
    MultiQueryRecall, Copying, Induction, Parity, ModularArithmetic, ModularAddition, Addition, WordProblem,
    InContextRecall, FuzzyRecall, Memorization, SelectiveCopying,
)  # fmt: skip
LONG = ("clean_import", "hash_seed_changes_nothing")  # which start processes
# which load thousands of texts or start a process: each module, all of which draw their texts in SyntheticData, meets
# one of them in turn
COSTLY = (
    "near_twins", "splits_are_apart", "every_sample_loads", "fingerprint_follows_content", "workers_change_nothing",
    "order_is_repeatable",
)  # fmt: skip


def marks_of(check, number):
    """The marks of a check of the data module of this number."""
    later = check.name in LONG or (check.name in COSTLY and COSTLY.index(check.name) != number % len(COSTLY))
    return [pytest.mark.campaign] if later else []


@pytest.mark.parametrize(
    "check",
    [
        *(pytest.param(check, id=f"Probe-{check}") for check in checks(Probe)),
        *(
            pytest.param(check, marks=marks_of(check, number), id=f"{part.__name__}-{check}")
            for number, part in enumerate(DATA)
            for check in checks(part)
        ),
    ],
)
def test_contract(check):
    check()
