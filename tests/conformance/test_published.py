"""Published parts pass, declaring what their papers say of them and no failure.

In the default run each check meets every fifth part, and each part every fifth check; built-in parts meet all of them.
"""

import published
import pytest
import recent
import torch
from sampled import is_for, sampled_checks

from zoo.conformance import checks, sequence_checks
from zoo.conformance.check import Broken
from zoo.parts.ffn import FFN

EVERY_CHECK = 5  # of which a part meets one, and other parts others
PARTS = [*published.PUBLISHED, *recent.RECENT]


def without_import(part):
    """The import of a part whose module has parts of all kinds, and so imports what tasks need."""
    return ("clean_import",) if part in recent.RECENT else ()


SAMPLED = [
    pytest.param(check, id=f"{part.__name__}-{check}")
    for number, part in enumerate(PARTS)
    for place, check in enumerate(sampled_checks(part, number))
    if check.name not in without_import(part) and is_for(check, number) and (place + number) % EVERY_CHECK == 0
]
WHOLE = [
    pytest.param(check, id=f"{part.__name__}-{check}")
    for part in PARTS
    for check in checks(part)
    if check.name not in without_import(part)
]


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
    monkeypatch.setattr(sequence_checks, "TOLERANCE", 0.0)  # any rounding of float32 is more, on every processor
    subject = checks(part, start=6.0)[0].subject
    if part is published.ScalableSoftmax:
        sequence_checks.decoding(subject)
        monkeypatch.setattr(sequence_checks, "ROUNDING", -1.0)
    with pytest.raises(Broken, match="it differs by"):
        sequence_checks.decoding(subject)


@pytest.mark.parametrize("part", recent.RECENT, ids=lambda part: part.__name__)
def test_a_recent_part_keeps_what_is_new_in_the_contract(part):
    """The checks that tell one mode, head, step, or batching from another, in every situation."""
    modes = ("training_is_evaluation", "strided_inputs", "inputs_are_left_alone", "reference", "heads_have_their_own")
    steps = ("weight_decay_by_group", "first_step_is_corrected", "steps_by_reference", "rate_of_group", "loss_falls")
    others = ("falls_without_jumps", "figures_of_any_batching", "evaluation_is_plain", "documentation")
    outcomes = {check.name: check.outcome() for check in checks(part) if check.name in (*modes, *steps, *others)}
    wrong = {name: outcome.sentence for name, outcome in outcomes.items() if outcome.status == "FAIL"}
    assert len(outcomes) >= 2
    assert not wrong


@pytest.mark.parametrize("kind", ["norm", "ffn"])
def test_a_part_without_parameters_passes_or_is_skipped(kind):
    """A norm without a gain has nothing to learn: what learns, moves or is shared does not apply to it."""
    base = {"norm": recent.PlainLayerNorm, "ffn": FFN}[kind]

    class Unlearned(base):
        """A part without parameters."""

        def forward(self, x):
            return super().forward(x) if kind == "norm" else x * torch.sigmoid(x)

    learning = (
        "autocast",
        "every_parameter_learns",
        "activation_checkpointing",
        "gradients_are_right",
        "processes_agree",
    )
    outcomes = {check.name: check.outcome() for check in checks(Unlearned) if check.name in learning}
    assert {name: one.sentence for name, one in outcomes.items() if one.status == "FAIL"} == {}
    assert {name for name, one in outcomes.items() if one.status == "skipped"} == {
        "every_parameter_learns",
        "processes_agree",
    }
