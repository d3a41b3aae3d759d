"""Each task and the data keep the contract of their kind; Swin with shifted windows in both stages."""

import pytest
from zoo_vision.detection import Detection
from zoo_vision.scenes import DrawnScenes
from zoo_vision.swin import SwinClassification

from zoo.conformance import checks

SMALL = {"patch_size": 2, "window": 2, "dim": 8, "depths": [2, 2], "heads": [1, 2]}
ONCE = ("clean_import", "documentation")
CHECKS = [
    *checks(DrawnScenes, size=200, batch_size=40),
    *checks(Detection),
    *(c for c in checks(Detection, anchors=True, auxiliary=False, decoder_depth=2) if c.name not in ONCE),
    *checks(SwinClassification, image_size=16, **SMALL),
    *(
        c
        for c in checks(SwinClassification, image_size=16, dropout=0.1, stochastic_depth=0.2, **SMALL)
        if c.name not in ONCE
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.subject.name}-{check}")
def test_contract(check):
    check()
