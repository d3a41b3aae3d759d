"""How many steps a run may leave out, which part of a batch is named, and the speed that is written down."""

import math
import time
from types import SimpleNamespace

import pytest
import torch

from zoo.errors import NonFiniteError
from zoo.logging.run_record import Ledger
from zoo.tasks.classification import Classification
from zoo.training.nonfinite import MOST_SKIPPED, NonFiniteGuard, first_nonfinite

NAN = float("nan")


@pytest.fixture
def step(tmp_path, monkeypatch):
    """Call with the policy and then with a number: one step of a guard whose gradients are that number."""
    trainer = SimpleNamespace(
        precision_plugin=SimpleNamespace(scaler=None), world_size=1, is_global_zero=True, strategy=None
    )
    module = torch.nn.Linear(2, 2)
    monkeypatch.setattr(NonFiniteGuard, "_report", lambda *_: "step 3: the loss is not finite")
    monkeypatch.setattr(NonFiniteGuard, "_rewind", lambda *_: None)

    def guarded(policy: str):
        guard = NonFiniteGuard(tmp_path, policy)

        def one(number: float) -> NonFiniteGuard:
            for parameter in module.parameters():
                parameter.grad = torch.full_like(parameter, number)
            guard.on_before_optimizer_step(trainer, module, torch.optim.SGD(module.parameters(), 0.1))
            return guard

        return one

    return guarded


@pytest.mark.parametrize("policy", ["skip", "rewind"])
def test_more_steps_in_a_row_than_may_be_left_out_end_the_run(step, policy):
    one = step(policy)
    assert MOST_SKIPPED == 20  # docs/reliability.md says so
    for count in range(1, MOST_SKIPPED + 1):
        assert one(NAN).in_a_row == count
    with pytest.raises(NonFiniteError):
        one(NAN)


def test_a_finite_step_begins_the_count_anew(step):
    one = step("skip")
    for _ in range(MOST_SKIPPED):
        one(NAN)
    assert one(1.0).in_a_row == 0
    for _ in range(MOST_SKIPPED):
        result = one(math.inf)
    assert (result.skipped, result.in_a_row) == (2 * MOST_SKIPPED, MOST_SKIPPED)
    with pytest.raises(NonFiniteError):
        one(NAN)


@pytest.fixture(scope="module")
def classifier():
    return Classification(num_classes=3, image_size=8, channels=1, patch_size=4, dim=8, depth=2, heads=2)


def begin(task, batch) -> str:
    import contextlib

    plugin = SimpleNamespace(forward_context=contextlib.nullcontext)
    return first_nonfinite(SimpleNamespace(precision_plugin=plugin), task, batch)


def test_what_is_not_finite_first_is_named(classifier):
    batch = {"labels": torch.tensor([0, 1]), "images": torch.randn(2, 1, 8, 8)}
    assert begin(classifier, batch) == ""
    for value in (NAN, math.inf, -math.inf):
        spoilt = {**batch, "images": batch["images"].clone()}
        spoilt["images"][1, 0, 3, 3] = value
        assert begin(classifier, spoilt) == "batch.images"
        assert begin(classifier, [spoilt]) == "batch.0.images"
    parameter = dict(classifier.named_parameters())["net.head.weight"]
    before = parameter.detach().clone()
    parameter.data[0, 0] = NAN
    assert begin(classifier, batch) == "parameter net.head.weight"
    parameter.data = before
    handle = classifier.net.stack.blocks[1].register_forward_hook(lambda *args: args[-1] * NAN)
    assert begin(classifier, batch).startswith("net.stack")
    handle.remove()
    assert begin(classifier, batch) == ""


@pytest.mark.parametrize(("tokens", "seconds", "speed"), [(1000, 4.0, 250.0), (0, 4.0, None), (1000, 0.0, None)])
def test_the_speed_of_a_run_too_short_for_windows_is_tokens_over_seconds(tmp_path, tokens, seconds, speed):
    ledger = Ledger(tmp_path, {})
    ledger.seconds = seconds
    result = ledger._cost(SimpleNamespace(callbacks=[]), SimpleNamespace(tokens_seen=tokens))
    assert result["tokens_per_s"] == speed
    assert result["seconds"] == seconds


def test_seconds_go_on_after_a_resume(tmp_path):
    ledger = Ledger(tmp_path, {})
    ledger.seconds, ledger._started_at = 100.0, time.monotonic() - 50.0
    result = ledger._cost(SimpleNamespace(callbacks=[]), SimpleNamespace(tokens_seen=1500))
    assert 150 <= result["seconds"] < 160
    assert 1500 / 160 < result["tokens_per_s"] <= 10
