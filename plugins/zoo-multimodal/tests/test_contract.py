"""The data and each task keep the contract of their kind."""

import pytest
from zoo_multimodal.clip import CLIP
from zoo_multimodal.dalle import DALLE
from zoo_multimodal.flamingo import Flamingo
from zoo_multimodal.shapes import CaptionedShapes

from zoo.conformance import checks

ALL = [*checks(CaptionedShapes, size=300, batch_size=40), *checks(CLIP), *checks(DALLE), *checks(Flamingo)]


@pytest.mark.parametrize("check", ALL, ids=lambda check: f"{check.subject.name}-{check}")
def test_contract(check):
    check()
