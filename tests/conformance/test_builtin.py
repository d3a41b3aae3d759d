"""Every built-in part keeps the contract of its kind."""

import pytest

from zoo import registry
from zoo.conformance import SUBJECTS, checks

CASES = [
    pytest.param(check, id=f"{kind}-{part.name}-{check}")
    for kind in SUBJECTS
    for part in registry.parts(kind)
    if part.distribution == "zoo-transformers"
    for check in checks(part.load())
]


@pytest.mark.parametrize("check", CASES)
def test_a_built_in_part_keeps_its_contract(check):
    check()
