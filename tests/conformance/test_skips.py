"""A check is skipped for an option that a user has to give; a part that cannot be built fails."""

import inspect

import pytest
import torch
from torch import nn

from zoo import registry
from zoo.conformance import checks
from zoo.conformance.check import WITHOUT_PART
from zoo.conformance.contract import SUBJECTS
from zoo.errors import UsageError
from zoo.parts.ffn import FFN
from zoo.parts.norm import RMSNorm
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Loss

# those of families and designs are in packages
BASES = {kind: registry.parts(kind)[0].load() for kind in SUBJECTS if kind not in ("family", "design")}
REASONS = {"usage": UsageError("it needs a Monday."), "value": ValueError("no"), "other": RuntimeError("no device")}


def broken(kind, error):
    """A part of a kind, every option of which has a default, and that cannot be built."""

    def raises(self, *args, **options):
        raise error

    return type("Unbuildable", (BASES[kind],), {"__init__": raises, "__doc__": "Never built.", "__test__": False})


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("kind", BASES)
def test_a_part_that_cannot_be_built_fails(kind, reason):
    building = (check for check in checks(broken(kind, REASONS[reason])) if check.name not in WITHOUT_PART)
    assert any(check.outcome().status == "FAIL" for check in building)


@pytest.mark.parametrize("kind", ["norm", "ffn", "attention", "position"])
def test_a_missing_option_is_a_skip_that_names_it(kind):
    base = BASES[kind]
    size = inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY, annotation=int)
    signature = inspect.Signature([*inspect.signature(base).parameters.values(), size])
    needs = type("Needs", (base,), {"__doc__": "Needs a size.", "__signature__": signature, "__test__": False})
    outcomes = [check.outcome() for check in checks(needs) if check.name not in WITHOUT_PART]
    assert {(outcome.status, outcome.sentence) for outcome in outcomes} == {("skipped", "it needs --size VALUE")}


class Bounded(RMSNorm):
    """A norm that refuses texts beyond an option of its own."""

    error = UsageError

    def __init__(self, dim: int, longest: int = 10_000):
        """
        Args:
            dim: width of a token.
            longest: tokens at most.
        """
        super().__init__(dim)
        self.longest = longest

    def forward(self, x):
        """x (..., T, dim) to the same shape."""
        if x.dim() > 1 and x.size(-2) > self.longest:
            raise self.error(f"{x.size(-2)} tokens exceed longest={self.longest}.")
        return super().forward(x)


class Crashing(Bounded):
    """The same with an error that is no answer to a user."""

    error = ValueError


@pytest.mark.parametrize(("part", "status"), [(Bounded, "ok"), (Crashing, "FAIL")])
def test_an_option_may_refuse_a_text_in_a_sentence_and_not_otherwise(part, status):
    outcomes = {check.name: check.outcome() for check in checks(part) if check.name in ("copies", "state_round_trip")}
    assert {outcome.status for outcome in outcomes.values()} == {status}, outcomes


class Drawing(CausalLM):
    """Its training loss depends on random numbers whose number follows the width of a batch."""

    def loss(self, batch):
        total, size = super().loss(batch)
        return Loss(total + 0.01 * torch.randn(batch["inputs"].shape).sum() * self.training, size)


class DrawingAndCounting(Drawing):
    """It counts padding in evaluation too."""

    def evaluate(self, batch):
        return Loss(super().evaluate(batch).total, torch.tensor(batch["targets"].numel()))


@pytest.mark.parametrize(("part", "status"), [(Drawing, "ok"), (DrawingAndCounting, "FAIL")])
def test_a_loss_that_is_drawn_is_judged_where_it_is_not(part, status):
    (check,) = (check for check in checks(part) if check.name == "padding_counts_for_nothing")
    assert check.outcome().status == status


class DroppingFeed(FFN):
    """A feed-forward that drops hidden units unless it is told not to."""

    def __init__(self, dim: int, hidden: int, dropout: float = 0.1) -> None:
        super().__init__(dim, hidden)
        self.up, self.down, self.rate = nn.Linear(dim, hidden), nn.Linear(hidden, dim), dropout

    def forward(self, x):
        return self.down(nn.functional.dropout(nn.functional.gelu(self.up(x)), self.rate, self.training))


def test_a_feed_forward_that_drops_by_default_drops_no_token():
    (check,) = [check for check in checks(DroppingFeed) if check.name == "no_token_is_dropped"]
    check()
