"""Every planted fault is caught by a check that says what is wrong, which the part without the fault passes."""

import importlib
import pkgutil
from functools import cache

import faults
import pytest
from sampled import sampled_checks

from zoo import registry
from zoo.conformance import Outcome, checks

for module in pkgutil.iter_modules(faults.__path__):
    importlib.import_module(f"faults.{module.name}")

# which starts processes: the default run has one of these faults
SLOW = [fault for fault in faults.FAULTS if "hash_seed_changes_nothing" in fault.checks][1:]
CASES = [
    pytest.param(fault, name, word, id=f"{fault}-{name}", marks=[pytest.mark.campaign] if fault in SLOW else [])
    for fault in faults.FAULTS
    for name, word in fault.checks.items()
]


@cache
def sampled(part: type, options: tuple) -> dict:
    return {check.name: check for check in sampled_checks(part, **dict(options))}


@cache
def outcome_without_fault(part: type, options: tuple, name: str) -> Outcome:
    return sampled(part, options)[name].outcome()


def test_there_are_at_least_sixty_and_no_two_are_alike():
    names = [str(fault) for fault in faults.FAULTS]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert all(fault.checks for fault in faults.FAULTS)


@pytest.mark.parametrize(("fault", "name", "word"), CASES)
def test_a_fault_is_caught_and_named(fault, name, word):
    outcome = next(check for check in checks(fault.part, **fault.options) if check.name == name).outcome()
    assert outcome.status == "FAIL", f"not caught: {fault.part.__doc__}"
    assert word in outcome.sentence


PARTS = [part for kind in registry.KINDS for part in registry.parts(kind)]
BUILT_IN = {part.load() for part in PARTS if part.distribution == registry.BUILTIN}
# test_builtin.py tries built-in parts without options, and compiles none
CONTROLS = [
    (fault, name)
    for fault in faults.FAULTS
    for name in fault.checks
    if fault.options or fault.parent not in BUILT_IN or name == "compiles"
]
WITHOUT_FAULT = [
    pytest.param(fault, name, id=f"{fault}-{name}", marks=[pytest.mark.campaign] if number % 2 or fault in SLOW else [])
    for number, (fault, name) in enumerate(CONTROLS)
]


@pytest.mark.parametrize(("fault", "name"), WITHOUT_FAULT)
def test_the_part_without_the_fault_passes(fault, name):
    outcome = outcome_without_fault(fault.parent, tuple(fault.options.items()), name)
    assert outcome.status in ("ok", "skipped"), outcome.sentence
