"""The command and the data module keep the contract of their kind."""

import pytest
from zoo_scale.commands import Prepare
from zoo_scale.token_data import TokenFile

from zoo.conformance import checks


@pytest.mark.parametrize(
    "check", [check for part in (Prepare, TokenFile) for check in checks(part)], ids=lambda c: f"{c.subject.name}-{c}"
)
def test_contract(check):
    check()
