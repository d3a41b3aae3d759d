"""The command and the data module keep the contract of their kind."""

import pytest
from zoo_scale.commands import Plan, Prepare
from zoo_scale.text_stream import TextStream
from zoo_scale.token_data import TokenFile

from zoo.conformance import checks


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.campaign] if check.name == "hash_seed_changes_nothing" else [])
        for part in (Plan, Prepare, TextStream, TokenFile)
        for check in checks(part)
    ],
    ids=lambda check: f"{check.subject.name}-{check}",
)
def test_contract(check):
    check()
