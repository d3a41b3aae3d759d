"""The command keeps what every command promises."""

import pytest
from zoo_learn.commands import Lesson

from zoo.conformance import checks


@pytest.mark.parametrize("check", checks(Lesson), ids=str)
def test_contract(check):
    check()
