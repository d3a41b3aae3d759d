"""Published parts pass, declaring what their papers say of them and no failure.

In the default run each check meets every third part, and each part every third check; built-in parts meet all of them.
"""

import published
import pytest
import torch
from sampled import is_for, sampled_checks

from zoo.conformance import checks, sequence
from zoo.conformance.check import Broken

EVERY_CHECK = 3  # of which a part meets one, and other parts others
SAMPLED = [
    pytest.param(check, id=f"{part.__name__}-{check}")
    for number, part in enumerate(published.PUBLISHED)
    for place, check in enumerate(sampled_checks(part, number))
    if check.name != "compiles" and is_for(check, number) and (place + number) % EVERY_CHECK == 0
]
WHOLE = [pytest.param(check, id=f"{part.__name__}-{check}") for part in published.PUBLISHED for check in checks(part)]


@pytest.mark.parametrize("check", SAMPLED)
def test_a_published_part_passes(check):
    assert not getattr(check.subject.part, "known_failures", {})
    check()


@pytest.mark.campaign
@pytest.mark.parametrize("check", WHOLE)
def test_a_published_part_passes_in_every_situation(check):
    check()


class SharpInHalf(published.ScalableSoftmax):
    """It computes in bfloat16 from the second step of decoding on."""

    def sharpened(self, q, k, pattern):
        q = q.bfloat16().to(q.dtype) if pattern.offset else q
        return super().sharpened(q, k, pattern)


class SharpInSingle(published.ScalableSoftmax):
    """It computes in float32 from the second step of decoding on, which float64 shows."""

    def sharpened(self, q, k, pattern):
        q = q.float().to(q.dtype) if pattern.offset else q
        return super().sharpened(q, k, pattern)


@pytest.mark.parametrize("part", [published.ScalableSoftmax, SharpInHalf, SharpInSingle])
@torch.no_grad()
def test_rounding_that_sharp_scores_enlarge_is_no_fault_in_decoding(part, monkeypatch):
    monkeypatch.setattr(sequence, "TOLERANCE", 0.0)  # any rounding of float32 is more, on every processor
    subject = checks(part, start=6.0)[0].subject
    if part is published.ScalableSoftmax:
        sequence.decoding(subject)
        monkeypatch.setattr(sequence, "ROUNDING", -1.0)
    with pytest.raises(Broken, match="it differs by"):
        sequence.decoding(subject)
