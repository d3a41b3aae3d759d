"""Linformer is its formula, exact attention at full rank, linear in memory, and untouched by padding."""

import math

import pytest
import torch
from efficient_measures import Largest, exponent, padded, saved_bytes
from torch.testing import assert_close
from zoo_efficient.linformer import Linformer

from zoo.errors import UsageError
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Flash, Naive, Tiled
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, NoPosition, RoPE

DIM, HEADS = 16, 4
double = pytest.mark.usefixtures("double")


def attend(part, q, k, v, valid):
    """softmax(q (E k)' / sqrt(D)) F v, one number at a time; columns of E and F are dealt to real keys in order."""
    B, H, T, D = q.shape
    out = torch.zeros(B, H, T, D)
    for b in range(B):
        real = [s for s in range(k.size(2)) if valid is None or valid[b, s]]
        for h in range(H):
            g = h * part.kv_heads // H
            E, F = (mix[g if mix.size(0) > 1 else 0].detach() for mix in (part.mix_keys, part.mix_values))
            keys = [sum(E[r, n] * k[b, g, s] for n, s in enumerate(real)) for r in range(len(E))]
            values = [sum(F[r, n] * v[b, g, s] for n, s in enumerate(real)) for r in range(len(F))]
            for t in range(T):
                powers = [math.exp(float((q[b, h, t] * key).sum()) / math.sqrt(D)) for key in keys]
                out[b, h, t] = sum(p / sum(powers) * value for p, value in zip(powers, values, strict=True))
    return out


@double
@pytest.mark.parametrize("share", ["none", "headwise", "kv"])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("valid", [None, [[1, 1, 0, 1, 0], [0, 0, 1, 1, 1]]])
def test_it_is_the_formula_and_its_weights_make_it(share, groups, valid):
    part = Linformer(DIM, HEADS, length=7, rank=3, share=share, kv_heads=groups)
    q, k, v = torch.randn(2, HEADS, 4, 4), torch.randn(2, groups, 5, 4), torch.randn(2, groups, 5, 4)
    valid = valid and torch.tensor(valid, dtype=torch.bool)
    out, pattern = part.attend(q, k, v, Pattern(valid=valid)), Pattern(valid=valid)
    assert_close(out, attend(part, q, k, v, valid), atol=1e-10, rtol=0)
    heads = part.weigh(q, k, pattern) @ v.repeat_interleave(HEADS // groups, 1)
    assert_close(heads, out, atol=1e-10, rtol=0)


@double
@pytest.mark.parametrize("position", [NoPosition, RoPE])
def test_with_identity_projections_of_full_rank_it_is_exact_attention(position):
    exact, part = MultiHead(DIM, HEADS), Linformer(DIM, HEADS, length=9, rank=9)
    part.load_state_dict(exact.state_dict() | {"mix_keys": torch.eye(9)[None], "mix_values": torch.eye(9)[None]})
    x, scheme = torch.randn(2, 9, DIM), position(DIM, HEADS, Extent((9,)))
    actual, expected = (layer(x, pattern=Pattern(), position=scheme) for layer in (part, exact))
    assert_close(actual, expected, atol=1e-10, rtol=0)


def test_scores_are_length_times_rank():
    shapes = []

    class Watched(Naive):
        def weights(self, *args):
            shapes.append(super().weights(*args).shape)
            return super().weights(*args)

    part = Linformer(DIM, HEADS, Watched(), length=512, rank=8)
    with torch.no_grad(), Largest() as largest:
        part(torch.randn(1, 512, DIM), pattern=Pattern())
    assert shapes == [(1, HEADS, 512, 8)]
    assert largest.numbers <= 512 * max(3 * DIM, HEADS * 8)


def test_memory_grows_with_the_length_and_not_its_square():
    sizes = {}
    for length in (256, 512, 1024, 2048):
        part, x = Linformer(DIM, HEADS, Naive(), length=length, rank=32), torch.randn(1, length, DIM)
        sizes[length] = saved_bytes(lambda part=part, x=x: part(x, pattern=Pattern()), part.parameters())
    assert 0.9 < exponent(sizes) <= 1.1


@double
@pytest.mark.parametrize("on_left", [True, False])
@pytest.mark.parametrize("backend", [Naive, SDPA, Tiled, Flash])
def test_padding_on_either_side_changes_nothing(on_left, backend):
    net = Stack(Extent((9,)), dim=DIM, heads=HEADS, depth=2, position=RoPE, backend=backend, padded=True,
                attention=lambda *args: Linformer(*args, length=9, rank=4))  # fmt: skip
    rows = [torch.randn(1, n, DIM) for n in (5, 2, 7)]
    x, valid = padded(rows, on_left, 9)
    out = net(x, valid)
    for b, row in enumerate(rows):
        assert_close(out[b][valid[b]], net(row)[0], atol=1e-10, rtol=0)
    assert (net(x)[valid] - out[valid]).abs().max() > 1e-6  # the mask was needed


@double
def test_a_memory_is_projected_like_any_keys():
    part, x, memory = Linformer(DIM, HEADS, length=8, rank=3), torch.randn(2, 4, DIM), torch.randn(2, 6, DIM)
    valid = torch.arange(6) < torch.tensor([[6], [2]])
    q, k, v = (y.detach() for y in part.project(x, memory, Pattern(), None, None))
    expected = part.out(attend(part, q, k, v, valid).transpose(1, 2).flatten(2))
    assert_close(part(x, memory, pattern=Pattern(valid=valid)), expected, atol=1e-10, rtol=0)


def test_shared_projections_are_counted_once_and_start_as_long_as_keys():
    count = {}
    for share in ("none", "headwise", "kv"):
        part = Linformer(DIM, HEADS, length=100, rank=50, share=share)
        count[share] = sum(p.numel() for name, p in part.named_parameters() if "mix" in name)
        mixed = part.mix_keys @ torch.randn(100, DIM)
        assert 0.8 < mixed.std() < 1.2
    assert count == {"none": 2 * HEADS * 5000, "headwise": 2 * 5000, "kv": 5000}


@pytest.mark.parametrize(("build", "words"), [
    (lambda: Linformer(DIM, HEADS, length=0), "attention Linformer needs length of at least 1, got 0"),
    (lambda: Linformer(DIM, HEADS, rank=0), "attention Linformer needs rank of at least 1, got 0"),
    (lambda: Linformer(DIM, HEADS, length=8)(torch.randn(1, 9, DIM), pattern=Pattern()),
     r"sequence length 9 exceeds length=8 of attention Linformer. Set model.attention.length to at least 9\."),
    (lambda: Stack(Extent((9,), causal=True), dim=DIM, heads=HEADS, attention=Linformer),
     "this model is causal, which attention Linformer cannot take"),
    (lambda: Stack(Extent((9,)), dim=DIM, heads=HEADS, attention=Linformer, position=ALiBi),
     "position ALiBi adds a bias to the scores, which attention Linformer cannot take"),
    (lambda: Stack(Extent((9,)), dim=DIM, heads=HEADS, attention=Linformer, window=3),
     "window=3 hides keys, which attention Linformer cannot take"),
])  # fmt: skip
def test_what_cannot_work_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


def test_of_its_backend_it_asks_for_dropout_only():
    part = Linformer(DIM, HEADS, Flash())
    assert part.unsupported(frozenset({"valid", "rotate", "cross"})) == set()
    assert part.unsupported(frozenset({"dropout"})) == {"dropout"} - part.backend.supports
    assert part.unsupported(frozenset({"causal", "valid"})) == {"causal"}
