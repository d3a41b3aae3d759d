"""Every design keeps the contract of its kind."""

import pytest
from zoo_designs import designs

from zoo.conformance import checks

CHECKS = [check for part in (designs.Attribute, designs.Probe, designs.Scale, designs.Scoreboard)
          for check in checks(part)]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_contract(check):
    outcome = check.outcome()
    assert outcome.status in ("ok", "skipped"), outcome.sentence
