"""Performer is its formula, estimates softmax better with more features, and is linear, causal and blind to padding."""

import math
from functools import partial

import pytest
import torch
from efficient_measures import Largest, exponent, padded, saved_bytes
from torch.testing import assert_close
from zoo_efficient.directions import orthonormal
from zoo_efficient.performer import CHUNK, Performer

from zoo.errors import UsageError
from zoo.models import LanguageModel
from zoo.models.initialization import initialize
from zoo.models.stack import Stack
from zoo.parts.backend import SDPA, Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, NoPosition, RoPE

DIM, HEADS = 24, 4
double = pytest.mark.usefixtures("double")


def kernel(part, q, k):
    """sum_j phi_j(q) phi_j(k) with phi_j(x) = exp(w_j x / D^(1/4) - |x|^2 / (2 sqrt(D))), (B, H, T, S)."""
    D = q.size(-1)
    rows = part.rows.repeat_interleave(part.heads // part.kv_heads, 0)
    k = k.repeat_interleave(part.heads // part.kv_heads, 1)

    def phi(x):
        return torch.exp(
            torch.einsum("hmd,bhtd->bhtm", rows, x) / D**0.25 - (x * x).sum(-1, keepdim=True) / (2 * D**0.5)
        )

    return torch.einsum("bhtm,bhsm->bhts", phi(q), phi(k))


def masked(weights, causal, valid, offset, start):
    """Rows that sum to one over the keys they may see, or to zero."""
    B, _, T, S = weights.shape
    mask = torch.tensor([[[not causal or start + s <= offset + t for s in range(S)] for t in range(T)]] * B)
    mask = mask if valid is None else mask & valid[:, None]
    weights = weights * mask[:, None]
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


CALLS = {  # T, S, offset, start
    "short": (5, 5, 0, 0), "one": (1, 1, 0, 0), "a chunk": (CHUNK, CHUNK, 0, 0),
    "and one more": (CHUNK + 1, CHUNK + 1, 0, 0), "three": (2 * CHUNK + 7, 2 * CHUNK + 7, 0, 0), "a step": (1, 9, 8, 0),
    "a prefix": (3, 9, 6, 0), "a long prefix": (70, 200, 130, 0), "later keys": (3, 9, 4, 0),
    "no key yet": (6, 4, 0, 2), "behind": (4, 6, 9, 0), "forgotten keys": (3, 5, 12, 10),
}  # fmt: skip


@double
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("some", [True, False])
def test_prefix_sums_and_weights_are_the_masked_kernel_matrix(call, causal, some):
    T, S, offset, start = CALLS[call]
    part = Performer(DIM, HEADS, kv_heads=2)
    q, k, v = torch.randn(2, HEADS, T, 6), torch.randn(2, 2, S, 6), torch.randn(2, 2, S, 6)
    valid = torch.rand(2, S) < 0.6 if some else None
    pattern = Pattern(causal=causal, valid=valid, offset=offset, start=start)
    expected = masked(kernel(part, q, k), causal, valid, offset, start)
    assert_close(part.attend(q, k, v, pattern), expected @ v.repeat_interleave(2, 1), atol=1e-10, rtol=0)
    assert_close(part.weigh(q, k, pattern), expected, atol=1e-10, rtol=0)


def mean_error(features, trials=30, D=16, T=256):
    """Relative error of attention's output for normal vectors, queries and keys of deviation 0.65."""
    errors = []
    for _ in range(trials):
        part = Performer(D, 1, features=features)
        q, k, v = torch.tensor([0.65, 0.65, 1.0])[:, None, None, None, None] * torch.randn(3, 1, 1, T, D)
        exact = SDPA()(q, k, v, Pattern())
        errors.append((part.attend(q, k, v, Pattern()) - exact).norm() / exact.norm())
    return torch.stack(errors).mean().item()


def test_the_error_falls_with_the_number_of_features():
    errors = [mean_error(features) for features in (16, 64, 256, 1024, 4096)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.35 * errors[0]


@double
def test_the_kernel_is_estimated_without_bias():
    q, k = 0.7 * torch.randn(1, 1, 1, 8), 0.7 * torch.randn(1, 1, 1, 8)
    estimates = torch.stack(
        [kernel(part, q, k).mean() / 8 for part in (Performer(8, 1, features=8) for _ in range(2000))]
    )
    exact = math.exp((q * k).sum().item() / math.sqrt(8))
    assert abs(estimates.mean().item() - exact) < 4 * estimates.std().item() / 2000**0.5


def test_rows_are_orthogonal_in_blocks_normal_and_of_no_preferred_direction():
    for block in orthonormal(4 * 16 + 5, 16).split(16):
        assert_close(block @ block.T, torch.eye(len(block), dtype=torch.float64), atol=1e-10, rtol=0)
    many = Performer(8, 1, features=16000).rows[0]
    unit = many / many.norm(dim=1, keepdim=True)
    assert (unit[:8] @ unit[:8].T - torch.eye(8)).abs().max() < 1e-5
    assert many.mean(0).abs().max() < 5 / 16000**0.5
    assert_close(many.T @ many / 16000, torch.eye(8), atol=0.1, rtol=0)
    assert_close(many.square().sum(1).var().item(), 16.0, atol=1.6, rtol=0)


def test_rows_follow_the_seed_differ_between_heads_and_are_saved():
    parts = [initialize(Performer(DIM, HEADS, kv_heads=2, features=10), seed) for seed in (1, 1, 2)]
    assert torch.equal(parts[0].rows, parts[1].rows)
    assert not torch.equal(parts[0].rows, parts[2].rows)
    assert not torch.equal(parts[0].rows[0], parts[0].rows[1])
    assert parts[0].state_dict()["rows"].shape == (2, 10, 6)
    assert Performer(128, 4).rows.size(1) == 4 * 32  # ln 32 = 3.5 blocks, rounded up


@pytest.mark.parametrize("causal", [True, False])
def test_large_vectors_stay_finite_and_right(causal):
    part, (q, k, v) = Performer(DIM, HEADS), torch.randn(3, 2, HEADS, 100, 6)
    out = part.attend(200 * q, 200 * k, v, Pattern(causal=causal))
    exact = part.double().attend(*(y.double() for y in (200 * q, 200 * k, v)), Pattern(causal=causal))
    assert out.isfinite().all()
    assert (out - exact).abs().median() < 1e-3  # not all: of two far exponents float32 may find the other larger
    weights = part.weigh(*(y.double() for y in (200 * q, 200 * k)), Pattern(causal=causal))
    assert_close(weights @ v.double(), exact, atol=1e-9, rtol=0)


def test_a_loud_future_moves_no_bit_of_the_past():
    part, (q, k, v) = Performer(DIM, HEADS), torch.randn(3, 1, HEADS, 150, 6)
    whole = part.attend(q, k, v, Pattern(causal=True))
    for t in (1, 5, 63, 64, 100):
        others = [torch.where(torch.arange(150)[:, None] < t, y, 1e3 * torch.randn_like(y)) for y in (q, k, v)]
        assert_close(part.attend(*others, Pattern(causal=True))[:, :, :t], whole[:, :, :t], atol=1e-5, rtol=0)


@double
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_those_of_the_function(causal):
    part = Performer(8, 2, features=6)
    q, k, v = torch.randn(3, 1, 2, 6, 4, requires_grad=True)
    valid = torch.tensor([[False, True, True, True, False, True]])
    pattern = Pattern(causal=causal, valid=valid)
    assert torch.autograd.gradcheck(lambda *args: part.attend(*args, pattern), (q, k, v))


@pytest.mark.parametrize("causal", [True, False])
def test_memory_is_linear_in_length(causal):
    saved, largest = {}, {}
    for length in (256, 512, 1024, 2048):
        part, x = Performer(32, 2, features=32), torch.randn(1, length, 32)
        run = partial(part, x, pattern=Pattern(causal=causal))
        saved[length] = saved_bytes(run, part.parameters())
        with Largest() as most:
            run().sum().backward()
        largest[length] = most.numbers
    assert 0.9 < exponent(saved) <= 1.1
    assert 0.9 < exponent(largest) <= 1.1


@double
@pytest.mark.parametrize("position", [NoPosition, RoPE])
@pytest.mark.parametrize("on_left", [True, False])
def test_padding_on_either_side_changes_nothing(position, on_left):
    net = Stack(Extent((16,), causal=True), dim=DIM, heads=HEADS, depth=2, attention=Performer, position=position)
    rows = [torch.randn(1, n, DIM) for n in (7, 3, 9)]
    x, valid = padded(rows, on_left, 11)
    out = net(x, valid)
    for b, row in enumerate(rows):
        assert_close(out[b][valid[b]], net(row)[0], atol=1e-10, rtol=0)


@double
@torch.no_grad()
def test_prompts_padded_on_the_left_decode_as_each_alone():
    model = LanguageModel(19, 16, dim=DIM, heads=HEADS, depth=2, attention=Performer).eval()
    rows, valid = [torch.randint(19, (1, n)) for n in (9, 6)], torch.arange(9) >= torch.tensor([[0], [3]])
    batch, caches = torch.cat([rows[0], torch.cat([rows[1][:, :3], rows[1]], 1)]), model.stack.caches(9)
    steps = [model(batch[:, a:b], valid[:, :b], caches) for a, b in ((0, 5), (5, 6), (6, 9))]
    for b, row in enumerate(rows):
        assert_close(torch.cat(steps, 1)[b][valid[b]], model(row)[0], atol=1e-10, rtol=0)


@double
def test_places_are_turned_by_the_position_it_is_given():
    part, scheme, x = Performer(DIM, HEADS), RoPE(DIM, HEADS, Extent((9,), special=1)), torch.randn(2, 5, DIM)
    q, k, v = part.project(x, None, Pattern(), None, None)
    turned = part.project(x, None, Pattern(offset=3), scheme, None)
    place = torch.arange(3, 8) - 1
    for actual, expected in zip(turned, (scheme.rotate(q, place), scheme.rotate(k, place), v), strict=True):
        assert_close(actual, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("build", "words"), [
    (lambda: Performer(DIM, HEADS, features=0), "attention Performer needs features of at least 1, got 0"),
    (lambda: Performer(DIM, HEADS, SDPA()), "attention Performer has no dot product, which is all that backend SDPA"),
    (lambda: Stack(Extent((9,)), dim=DIM, heads=HEADS, attention=Performer, position=ALiBi),
     "position ALiBi adds a bias to the scores, which attention Performer cannot take"),
    (lambda: Stack(Extent((9,)), dim=DIM, heads=HEADS, attention=Performer, attention_dropout=0.1),
     "attention_dropout=0.1 drops attention weights, which attention Performer cannot take"),
    (lambda: Stack(Extent((9,)), dim=DIM, heads=HEADS, attention=Performer, window=3),
     "window=3 hides keys, which attention Performer cannot take"),
])  # fmt: skip
def test_what_cannot_work_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


def test_it_takes_the_one_backend_that_every_attention_takes():
    assert isinstance(Performer(DIM, HEADS, Naive()).backend, Naive)
