"""Published parts pass, declaring what their papers say of them and no failure.

In the default run each check meets every third part, and each part every third check; built-in parts meet all of them.
"""

import published
import pytest
from sampled import is_for, sampled_checks

from zoo.conformance import checks

EVERY_CHECK = 3  # of which a part meets one, and other parts others
SAMPLED = [
    pytest.param(check, id=f"{part.__name__}-{check}")
    for number, part in enumerate(published.PUBLISHED)
    for place, check in enumerate(sampled_checks(part, number))
    if check.name != "compiles" and is_for(check, number) and (place + number) % EVERY_CHECK == 0
]
WHOLE = [pytest.param(check, id=f"{part.__name__}-{check}") for part in published.PUBLISHED for check in checks(part)]


@pytest.mark.parametrize("check", SAMPLED)
def test_a_published_part_passes(check):
    assert not getattr(check.subject.part, "known_failures", {})
    check()


@pytest.mark.campaign
@pytest.mark.parametrize("check", WHOLE)
def test_a_published_part_passes_in_every_situation(check):
    check()
