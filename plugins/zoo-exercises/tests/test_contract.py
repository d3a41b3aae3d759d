"""The data modules and the command keep the contract of their kind."""

import pytest
from zoo_exercises.algebra import Addition, WordProblem
from zoo_exercises.commands import Probe
from zoo_exercises.mechanisms import FuzzyRecall, InContextRecall, Memorization, SelectiveCopying
from zoo_exercises.synthetic import Copying, Induction, ModularAddition, ModularArithmetic, MultiQueryRecall, Parity

from zoo.conformance import checks

PARTS = (
    Probe, MultiQueryRecall, Copying, Induction, Parity, ModularArithmetic, ModularAddition, Addition, WordProblem,
    InContextRecall, FuzzyRecall, Memorization, SelectiveCopying,
)  # fmt: skip
CHECKS = [check for part in PARTS for check in checks(part)]
LONG = {"clean_import", "hash_seed_changes_nothing"}  # which start processes
ONCE = {"Probe"}


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(one, marks=[pytest.mark.campaign] if one.name in LONG and one.subject.name not in ONCE else [])
        for one in CHECKS
    ],
    ids=lambda check: f"{check.subject.name}-{check}",
)
def test_contract(check):
    check()
