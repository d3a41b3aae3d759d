"""Flex keeps zoo's contract of a backend."""

import pytest
from zoo_flex import Flex

from zoo.conformance import checks


@pytest.mark.parametrize("check", checks(Flex), ids=str)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_contract(check):
    check()
