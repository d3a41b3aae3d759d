"""Published parts pass, declaring what their papers say of them and no failure."""

import published
import pytest

from zoo.conformance import checks

CASES = [
    pytest.param(check, id=f"{part.__name__}-{check}", marks=[pytest.mark.campaign] if check.name == "compiles" else [])
    for part in published.PUBLISHED
    for check in checks(part)
]


@pytest.mark.parametrize("check", CASES)
def test_a_published_part_passes(check):
    assert not getattr(check.subject.part, "known_failures", {})
    check()
