"""Every family, and the command, keep the contract of their kind."""

import pytest
from import_steps import FAMILIES
from zoo_pretrained.commands import Import

from zoo.conformance import checks

CHECKS = [check for part in (Import, *FAMILIES) for check in checks(part)]
ONCE = {"clean_import"}  # the same modules import each other


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.campaign] if check.name in ONCE and check.subject.name != "GPT2" else [])
        for check in CHECKS
    ],
    ids=lambda check: f"{check.subject.name}-{check}",
)
def test_contract(check):
    check()
