"""Every built-in part keeps the contract of its kind.

The default run samples the situations of each check, and tries the compiler on one part of each kind. A campaign
(``pytest -m campaign``) runs the whole contract, as `zoo check KIND` does.
"""

import pytest
from sampled import sampled_checks

from zoo import registry
from zoo.conformance import SUBJECTS, checks
from zoo.conformance.common import import_in_fresh_processes, ready_for

PARTS = [
    (kind, number, part, part.load())
    for kind in SUBJECTS
    for number, part in enumerate(one for one in registry.parts(kind) if one.distribution == registry.BUILTIN)
]
SAMPLED = [
    pytest.param(check, id=f"{kind}-{part.name}-{check}")
    for kind, number, part, loaded in PARTS
    for check in sampled_checks(loaded, number)
    if check.name != "compiles" or not number
]
WHOLE = [
    pytest.param(check, id=f"{kind}-{part.name}-{check}") for kind, _, part, loaded in PARTS for check in checks(loaded)
]


@pytest.fixture(scope="module", autouse=True)
def _imports():
    """All modules are imported by one process, which forks for each of them."""
    for kind in ("norm", "data"):
        ready = ready_for(kind)
        modules = {loaded.__module__ for each, _, _, loaded in PARTS if ready_for(each) == ready}
        import_in_fresh_processes(sorted(modules), ready)


@pytest.mark.parametrize("check", SAMPLED)
def test_a_built_in_part_keeps_its_contract(check):
    check()


@pytest.mark.campaign
@pytest.mark.parametrize("check", WHOLE)
def test_a_built_in_part_keeps_its_contract_in_every_situation(check):
    check()


def test_every_situation_of_a_part_is_sampled():
    """Disentangled has the most options."""
    sampled = sampled_checks(registry.get("attention", "Disentangled"))
    whole = checks(registry.get("attention", "Disentangled"))
    met = {name for check in sampled for name, _ in list(check._situations())[1:]}
    there = {name for check in whole for name, _ in list(check._situations())[1:]}
    assert len(there) >= 5
    assert met == there
