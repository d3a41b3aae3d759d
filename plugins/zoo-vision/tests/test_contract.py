"""Swin keeps the contract of a task, with shifted windows in both stages."""

import pytest
from zoo_vision.swin import SwinClassification

from zoo.conformance import checks

SMALL = {"patch": 2, "window": 2, "dim": 8, "depths": [2, 2], "heads": [1, 2]}
CHECKS = [
    check
    for more in ({}, {"dropout": 0.1, "stochastic_depth": 0.2})
    for check in checks(SwinClassification, image_size=16, **SMALL | more)
    if not more or check.name not in ("clean_import", "documentation")
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.subject.name}-{check}")
def test_contract(check):
    check()
