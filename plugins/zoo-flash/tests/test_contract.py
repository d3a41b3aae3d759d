"""FlashVarlen keeps zoo's contract of a backend, with slow kernels in the place of those of a GPU."""

import pytest
from zoo_flash import FlashVarlen

from zoo.conformance import checks

CHECKS = [*checks(FlashVarlen, kernel="flash-attn"), *checks(FlashVarlen, kernel="torch")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check}-{check.subject.options['kernel']}")
@pytest.mark.usefixtures("slow_kernels")
def test_contract(check):
    check()
