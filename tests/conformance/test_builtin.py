"""Every built-in part keeps the contract of its kind.

The compiler is tried on one part of each kind; on all of them by ``pytest -m campaign``, as `zoo check KIND` does.
"""

import pytest

from zoo import registry
from zoo.conformance import SUBJECTS, checks
from zoo.conformance.common import import_in_fresh_processes, ready_for

SLOW = ("compiles",)  # tried on the first part of each kind, unless this is a campaign
PARTS = [
    (kind, number, part, part.load())
    for kind in SUBJECTS
    for number, part in enumerate(one for one in registry.parts(kind) if one.distribution == "zoo-transformers")
]
CASES = [
    pytest.param(
        check,
        id=f"{kind}-{part.name}-{check}",
        marks=[pytest.mark.campaign] if number and check.name in SLOW else [],
    )
    for kind, number, part, loaded in PARTS
    for check in checks(loaded)
]


@pytest.fixture(scope="module", autouse=True)
def _imports():
    """All modules are imported by one process, which forks for each of them."""
    for kind in ("norm", "data"):
        ready = ready_for(kind)
        modules = {loaded.__module__ for each, _, _, loaded in PARTS if ready_for(each) == ready}
        import_in_fresh_processes(sorted(modules), ready)


@pytest.mark.parametrize("check", CASES)
def test_a_built_in_part_keeps_its_contract(check):
    check()
