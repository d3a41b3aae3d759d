"""The backend that measures: right whatever it chooses, measured once, said, and without a trace."""

import logging
import time

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.covering import covering_params
from tests.models.small import WORDS, language, names, spread
from zoo import registry
from zoo.errors import UsageError
from zoo.parts import autotune
from zoo.parts.autotune import Auto, fastest
from zoo.parts.backend import SDPA, Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5
from zoo.system import kernel_choice


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(Auto, "fastest_backends", {})
    monkeypatch.setenv(kernel_choice.SWITCH, "measured")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    kernel_choice.forget()
    yield
    kernel_choice.forget()


def call(T=6, grad=True):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, T, 4, generator=generator, dtype=torch.float64).requires_grad_(grad) for _ in range(3)]


def slow(kind):
    class Slow(kind):
        def __call__(self, *args, **kwargs):
            start = time.thread_time()
            while time.thread_time() < start + 0.002:
                pass
            return super().__call__(*args, **kwargs)

    return Slow


@pytest.mark.parametrize(("rivals", "expected"), [((slow(SDPA), Naive), Naive), ((SDPA, slow(Naive)), SDPA)])
def test_the_fastest_is_chosen_once_and_said(rivals, expected, monkeypatch, caplog):
    monkeypatch.setattr(autotune, "CANDIDATES", rivals)
    backend, other = Auto(), Auto()
    with caplog.at_level(logging.WARNING):
        for one in (backend, other, backend):
            out = one(*call(), Pattern(causal=True))
    (backend_of_call,) = Auto.fastest_backends.values()
    assert type(backend_of_call) is expected
    (record,) = caplog.records
    assert record.getMessage().startswith(f"backend Auto: {expected.__name__} for 6 x 6, 2 heads of 4, causal, float64")
    torch.testing.assert_close(out, Naive()(*call(), Pattern(causal=True)))


def test_a_call_of_another_kind_is_measured_anew():
    for pattern in (Pattern(causal=True), Pattern(), Pattern(window=2)):
        for T in (6, 7, 8, 12):
            Auto()(*call(T), pattern)
    assert len(Auto.fastest_backends) == 6  # three patterns; up to 8, and up to 16 tokens


def test_measuring_leaves_no_gradient_and_no_random_number_behind():
    q, k, v = call()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    Auto()(q, k, v, Pattern(causal=True), dropout=0.0)
    assert torch.equal(torch.rand(1), expected)
    assert all(x.grad is None for x in (q, k, v))


def test_it_may_be_measured_within_a_block_that_is_computed_again():
    q, k, v = call()
    out = checkpoint(lambda *x: Auto()(*x, Pattern(causal=True)), q, k, v, use_reentrant=False)
    result = torch.autograd.grad(out.sum(), (q, k, v))
    expected = torch.autograd.grad(Naive()(q, k, v, Pattern(causal=True)).sum(), (q, k, v))
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_without_gradients_only_the_forward_is_measured(monkeypatch):
    monkeypatch.setattr(torch.autograd, "grad", lambda *args: pytest.fail("gradients were computed"))
    with torch.no_grad():
        Auto()(*call(), Pattern())


def test_scores_that_would_take_too_much_memory_are_not_tried(monkeypatch):
    q, k, v = call()
    monkeypatch.setattr(autotune, "LARGEST", 2 * 2 * 6 * 6 * 4 - 1)
    monkeypatch.setattr(autotune, "fastest", lambda *_: pytest.fail("a quadratic kernel was tried"))
    torch.testing.assert_close(Auto()(q, k, v, Pattern(causal=True)), Naive()(q, k, v, Pattern(causal=True)))
    assert not Auto.fastest_backends


def trained(dtype, **options):
    """Loss, gradients, buffers and the next random number of one step of a language model."""
    torch.manual_seed(5)
    net = spread(language(backend=Auto, dropout=0.2, attention_dropout=0.3, **options)).train()
    tokens = torch.arange(24).view(2, 12) % WORDS
    # both with and without autocast's cache something was cast twice
    with torch.autocast("cpu", dtype or torch.bfloat16, dtype is not None):
        loss = net(tokens).float().square().mean() + net(tokens[:, :7]).float().square().mean()
    loss.backward()
    grads = {name: p.grad for name, p in net.named_parameters()}
    return {"loss": loss.detach(), "random": torch.rand(3), **grads, **dict(net.named_buffers())}


@pytest.mark.parametrize(
    ("position", "recompute", "dtype"),
    covering_params(names("position"), [False, True], [None, torch.bfloat16, torch.float16]),
)
def test_a_step_with_measurements_equals_one_without(position, recompute, dtype):
    options = {"position": registry.get("position", position), "recompute": recompute}
    measured = trained(dtype, **options)
    assert Auto.fastest_backends
    again = trained(dtype, **options)
    for name, value in measured.items():
        assert value is None or torch.equal(value, again[name]), name
    assert all(value is not None for value in measured.values())


@pytest.mark.parametrize("attention", names("attention"))
@pytest.mark.parametrize("ffn", ["MLP", "MoE"])
def test_a_step_with_measurements_equals_one_without_whatever_measures(attention, ffn):
    options = {"attention": registry.get("attention", attention), "ffn": registry.get("ffn", ffn)}
    options |= {"position": T5, "recompute": True}
    try:
        measured = trained(None, **options)
    except UsageError as error:
        pytest.skip(str(error))
    again = trained(None, **options)
    assert all(torch.equal(value, again[name]) for name, value in measured.items() if value is not None)


def test_a_pattern_that_was_measured_remembers_nothing():
    learned = torch.randn(2, 6, 6, dtype=torch.float64, requires_grad=True)
    pattern = Pattern(causal=True, bias=lambda head, query, key: learned[head, query, key])
    fastest(*call(), pattern, 0.0, None, True)
    assert not pattern._memo
    assert learned.grad is None


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_is_computed_alike(reentrant, monkeypatch):
    """A reentrant checkpoint runs forward without a graph: that another backend is faster so must not matter."""

    class Steady(SDPA):
        def __call__(self, *args):
            time.sleep(0 if torch.is_grad_enabled() else 0.02)
            return super().__call__(*args)

    class Fickle(Naive):
        def __call__(self, *args):
            time.sleep(0.02 if torch.is_grad_enabled() else 0)
            torch.rand(1)  # its dropout is another one
            return super().__call__(*args)

    monkeypatch.setattr(autotune, "CANDIDATES", (Steady, Fickle))
    q, k, v = call()
    torch.manual_seed(1)
    with torch.no_grad():
        direct = Auto()(q, k, v, Pattern(causal=True), dropout=0.5)
    torch.manual_seed(1)
    out = checkpoint(lambda *x: Auto()(*x, Pattern(causal=True), dropout=0.5), q, k, v, use_reentrant=reentrant)
    torch.testing.assert_close(out, direct)
    out.square().sum().backward()
    again = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(1)
    Auto()(*again, Pattern(causal=True), dropout=0.5).square().sum().backward()
    for got, want in zip((q, k, v), again, strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_measured_in_inference_mode_with_dropout():
    with torch.inference_mode():
        Auto()(*call(grad=False), Pattern(causal=True), dropout=0.5)
