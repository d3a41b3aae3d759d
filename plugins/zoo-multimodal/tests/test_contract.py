"""The data and each task keep the contract of their kind."""

import pytest
from zoo_multimodal.clip import CLIP
from zoo_multimodal.clip_classification import ClipClassification
from zoo_multimodal.dalle import DALLE
from zoo_multimodal.flamingo import Flamingo
from zoo_multimodal.moving_characters import MovingCharacters
from zoo_multimodal.shapes import CaptionedShapes
from zoo_multimodal.sound_files import SoundFiles
from zoo_multimodal.speech import SpokenLetters
from zoo_multimodal.transcription import Transcription

from zoo.conformance import checks

ALL = [
    *checks(CaptionedShapes, size=300, batch_size=40), *checks(CLIP), *checks(DALLE), *checks(Flamingo),
    *checks(MovingCharacters, size=1500), *checks(ClipClassification), *checks(SpokenLetters), *checks(Transcription),
    *checks(SoundFiles),
]  # fmt: skip


@pytest.mark.parametrize("check", ALL, ids=lambda check: f"{check.subject.name}-{check}")
def test_contract(check):
    check()
