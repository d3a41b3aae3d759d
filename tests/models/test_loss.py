"""Chunked cross-entropy against torch's own over all logits at once."""

import pytest
import torch
import torch.nn.functional as F

import zoo.models.loss
from zoo.models.loss import cross_entropy, rows_in_cache

TOKENS, DIM, VOCAB = 37, 12, 53


def start(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(TOKENS, DIM, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(VOCAB, DIM, generator=generator, dtype=dtype).requires_grad_()
    bias = torch.randn(VOCAB, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(VOCAB, (TOKENS,), generator=generator)
    return states, weight, bias, targets


def whole(states, weight, targets, bias=None, smoothing=0.0):
    logits = F.linear(states, weight, bias).flatten(0, -2).float() if states.dtype != torch.float64 else None
    logits = F.linear(states, weight, bias).flatten(0, -2) if logits is None else logits
    return F.cross_entropy(logits, targets.flatten(), reduction="sum", label_smoothing=smoothing)


def both(tensors, **options):
    """Losses and gradients of the chunked and of the plain computation, scaled as gradient accumulation does."""
    states, weight, bias, targets = tensors
    result = []
    for function, extra in ((cross_entropy, {"rows": options.pop("rows", 8)}), (whole, {})):
        bias_given = bias if options.get("biased", True) else None
        loss = function(states, weight, targets, bias_given, options.get("smoothing", 0.0), **extra)
        parameters = [t for t in (states, weight, bias_given) if t is not None]
        result.append((loss, torch.autograd.grad(loss * 0.37, parameters)))
    return result


@pytest.mark.parametrize("rows", [1, 8, 37, 64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("few", [1, 3, TOKENS])
def test_equals_the_plain_loss_and_its_gradients(rows, smoothing, biased, few, monkeypatch):
    monkeypatch.setattr(zoo.models.loss, "rows_in_cache", lambda logits: few)
    (loss, grads), (target, expected) = both(start(), rows=rows, smoothing=smoothing, biased=biased)
    torch.testing.assert_close(loss, target, rtol=1e-12, atol=1e-12)
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [torch.arange(TOKENS) % 3 == 0, torch.arange(TOKENS) % 5 > 0], ids=["few", "most"])
def test_ignored_targets_count_nothing_even_where_padding_holds_nan(smoothing, ignored):
    states, weight, bias, targets = start()
    targets[ignored] = -100
    (loss, grads), (target, expected) = both((states, weight, bias, targets), smoothing=smoothing)
    torch.testing.assert_close(loss, target)
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, want)
    spoiled = states.detach().clone()
    spoiled[ignored] = float("nan")
    spoiled.requires_grad_()
    other = cross_entropy(spoiled, weight, targets, bias, smoothing, rows=8)
    torch.testing.assert_close(other, target)
    d_states, d_weight = torch.autograd.grad(other, (spoiled, weight))
    assert d_states.isfinite().all()
    torch.testing.assert_close(d_weight * 0.37, expected[1])


def test_most_tokens_without_a_target_cost_no_logits(monkeypatch):
    states, weight, _, targets = start()
    targets[4:] = -100
    row_counts = []
    monkeypatch.setattr(zoo.models.loss, "rows_in_cache", lambda logits: row_counts.append(len(logits)) or len(logits))
    cross_entropy(states, weight, targets, rows=8).backward()
    assert row_counts == [4]


def test_all_ignored_is_zero_with_zero_gradients():
    states, weight, _, targets = start()
    loss = cross_entropy(states, weight, targets.fill_(-100), rows=8)
    assert loss == 0
    assert not any(grad.any() for grad in torch.autograd.grad(loss, (states, weight)))


def test_a_target_that_the_model_excludes_costs_a_finite_amount():
    states, weight, _, targets = start(torch.float32)
    (loss, grads), (target, expected) = both(((states * 1e4).detach().requires_grad_(), weight, None, targets),
                                             biased=False)  # fmt: skip
    assert loss.isfinite()
    assert loss > 87 * TOKENS  # where exp(-loss) is zero in float32
    torch.testing.assert_close(loss, target)
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_tied_matrix_gets_both_gradients():
    _, weight, _, targets = start()
    tokens = torch.arange(TOKENS) % VOCAB

    def through(loss):
        return torch.autograd.grad(loss(F.embedding(tokens, weight), weight, targets), weight)[0]

    torch.testing.assert_close(through(cross_entropy), through(whole))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_under_autocast_it_is_as_near_to_the_truth_as_the_plain_loss(smoothing):
    tensors = start(torch.float32)
    exact = both([t.detach().double().requires_grad_() if t.is_floating_point() else t for t in tensors],
                 smoothing=smoothing)[1]  # fmt: skip
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, reference = both(tensors, smoothing=smoothing)
    assert ours[0].dtype == torch.float32
    for got, other, want in zip(ours[1], reference[1], exact[1], strict=True):
        assert got.dtype == torch.float32
        assert (got - want).norm() <= 1.2 * (other - want).norm() + 1e-3 * want.norm()


def test_no_more_than_a_chunk_of_logits_is_ever_alive():
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    states, weight, _, targets = start()
    with Watch():
        cross_entropy(states, weight, targets, rows=8).backward()
    assert largest <= max(8 * VOCAB, VOCAB * DIM, TOKENS * DIM)


@pytest.mark.parametrize("autocast", [False, True])
def test_how_many_rows_stay_in_the_cache_changes_no_digit(autocast, monkeypatch):
    states, weight, _, targets = start(torch.float32)
    targets[::5] = -100
    results = []
    for size in (4 * VOCAB, 4 * 3 * VOCAB, 2**20):
        monkeypatch.setattr(zoo.models.loss, "CACHE", size)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = cross_entropy(states, weight, targets, smoothing=0.1, rows=8)
        results.append((loss, *torch.autograd.grad(loss, (states, weight))))
    assert rows_in_cache(torch.empty(8, VOCAB)) == 2**20 // (4 * VOCAB)
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], other, strict=True))


def test_a_row_longer_than_the_cache_is_taken_alone():
    assert rows_in_cache(torch.empty(1, 2**20).expand(8, -1)) == 1


def test_without_gradients_none_are_computed():
    states, weight, _, targets = start()
    with torch.no_grad():
        loss = cross_entropy(states, weight, targets, rows=8)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, whole(states, weight, targets).detach())


def test_leading_dimensions_are_tokens():
    states, weight, _, targets = start()
    loss = cross_entropy(states[:36].view(4, 9, DIM), weight, targets[:36].view(4, 9), rows=8)
    torch.testing.assert_close(loss, whole(states[:36], weight, targets[:36]))
