"""The optimizers keep zoo's contract of an optimizer."""

from importlib.util import find_spec

import pytest
from zoo_optimizers import SOAP, ScheduleFreeAdamW
from zoo_optimizers.adamw8bit import AdamW8bit
from zoo_optimizers.lion import Lion

from zoo.conformance import checks

LIBRARIES = {"SOAP": "pytorch_optimizer", "ScheduleFreeAdamW": "schedulefree"}


@pytest.mark.parametrize(
    "check", [check for part in (AdamW8bit, Lion, SOAP, ScheduleFreeAdamW) for check in checks(part)],
    ids=lambda check: f"{check.subject.name}-{check}",
)  # fmt: skip
def test_contract(check):
    library = LIBRARIES.get(check.subject.name)
    if library is not None and find_spec(library) is None:
        pytest.skip(f"{library} computes it, and is not installed")
    check()
