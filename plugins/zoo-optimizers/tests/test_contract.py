"""The optimizers keep zoo's contract of an optimizer."""

import pytest
from zoo_optimizers import SOAP, ScheduleFreeAdamW

from zoo.conformance import checks

pytest.importorskip("schedulefree", reason="it computes ScheduleFreeAdamW")
pytest.importorskip("pytorch_optimizer", reason="it computes SOAP")


@pytest.mark.parametrize(
    "check", [check for part in (SOAP, ScheduleFreeAdamW) for check in checks(part)],
    ids=lambda check: f"{check.subject.name}-{check}",
)  # fmt: skip
def test_contract(check):
    check()
