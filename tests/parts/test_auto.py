"""The backend that measures: right whatever it chooses, measured once, said, and without a trace."""

import logging
import time

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from zoo.parts import auto
from zoo.parts.auto import Auto
from zoo.parts.backend import SDPA, Naive
from zoo.parts.pattern import Pattern


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(Auto, "chosen", {})


def call(T=6, grad=True):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, T, 4, generator=generator, dtype=torch.float64).requires_grad_(grad) for _ in range(3)]


def slow(kind):
    class Slow(kind):
        def __call__(self, *args, **kwargs):
            time.sleep(0.02)
            return super().__call__(*args, **kwargs)

    return Slow


@pytest.mark.parametrize(("rivals", "wanted"), [((slow(SDPA), Naive), Naive), ((SDPA, slow(Naive)), SDPA)])
def test_the_fastest_is_chosen_once_and_said(rivals, wanted, monkeypatch, caplog):
    monkeypatch.setattr(auto, "CANDIDATES", rivals)
    backend, other = Auto(), Auto()
    with caplog.at_level(logging.WARNING):
        for one in (backend, other, backend):
            out = one(*call(), Pattern(causal=True))
    (chosen,) = Auto.chosen.values()
    assert type(chosen) is wanted
    (record,) = caplog.records
    assert record.getMessage().startswith(f"backend Auto: {wanted.__name__} for 6 x 6, 2 heads of 4, causal, float64")
    torch.testing.assert_close(out, Naive()(*call(), Pattern(causal=True)))


def test_a_call_of_another_kind_is_measured_anew():
    for pattern in (Pattern(causal=True), Pattern(), Pattern(window=2)):
        for T in (6, 7, 8, 12):
            Auto()(*call(T), pattern)
    assert len(Auto.chosen) == 6  # three patterns; up to 8, and up to 16 tokens


def test_measuring_leaves_no_gradient_and_no_random_number_behind():
    q, k, v = call()
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    Auto()(q, k, v, Pattern(causal=True), dropout=0.0)
    assert torch.equal(torch.rand(1), wanted)
    assert all(x.grad is None for x in (q, k, v))


def test_it_may_be_measured_within_a_block_that_is_computed_again():
    q, k, v = call()
    out = checkpoint(lambda *x: Auto()(*x, Pattern(causal=True)), q, k, v, use_reentrant=False)
    found = torch.autograd.grad(out.sum(), (q, k, v))
    wanted = torch.autograd.grad(Naive()(q, k, v, Pattern(causal=True)).sum(), (q, k, v))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_without_gradients_only_the_forward_is_measured(monkeypatch):
    monkeypatch.setattr(torch.autograd, "grad", lambda *args: pytest.fail("gradients were computed"))
    with torch.no_grad():
        Auto()(*call(), Pattern())


def test_scores_that_would_take_too_much_memory_are_not_tried(monkeypatch):
    q, k, v = call()
    monkeypatch.setattr(auto, "LARGEST", 2 * 2 * 6 * 6 * 4 - 1)
    monkeypatch.setattr(auto, "fastest", lambda *_: pytest.fail("a quadratic kernel was tried"))
    torch.testing.assert_close(Auto()(q, k, v, Pattern(causal=True)), Naive()(q, k, v, Pattern(causal=True)))
    assert not Auto.chosen
