"""What is packed for a varlen kernel gives Naive's values and gradients, through slow kernels with its semantics."""

import gc
import inspect
import random
import weakref

import pytest
import torch
import varlen_reference
from torch.nn.attention.varlen import varlen_attn
from torch.testing import assert_close
from zoo_flash import FlashVarlen
from zoo_flash.packing import pack, plan

from zoo.errors import UsageError
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent

pytestmark = pytest.mark.usefixtures("slow_kernels")
# queries, keys, positions of the first query and key: a whole sequence, a new token, a chunk after a prefix, a memory,
# keys still to come, and what a window's cache has kept
SHAPES = {"whole": (7, 7, 0, 0), "step": (1, 6, 5, 0), "chunk": (3, 7, 4, 0), "few": (2, 7, 0, 0), "many": (6, 3, 0, 0),
          "ahead": (2, 7, 3, 0), "early": (1, 6, 2, 0), "one": (1, 1, 0, 0), "kept step": (1, 3, 7, 5),
          "kept chunk": (3, 5, 7, 5), "kept whole": (4, 4, 6, 6), "kept early": (2, 6, 6, 5), "late": (4, 4, 2, 0),
          "behind": (4, 4, 0, 2)}  # fmt: skip
BANDS = {"open": {}, "causal": {"causal": True}, "window": {"window": 2}, "wide": {"window": 4},
         "causal window": {"causal": True, "window": 2}, "causal wide": {"causal": True, "window": 3}}  # fmt: skip
PADDING = {
    "none": lambda S: None,
    "right": lambda S: torch.arange(S) < torch.tensor([[S], [max(1, S - 2)], [0]]),
    "left": lambda S: torch.arange(S) >= torch.tensor([[0], [min(2, S - 1)], [S]]),
    "both": lambda S: (torch.arange(S) >= torch.tensor([[1], [0], [2]])) & (torch.arange(S) < S - 1),
    "gaps": lambda S: torch.arange(S) % 3 != torch.tensor([[0], [1], [2]]),
}


def leaves(T, S, groups, heads=4, width=3, out=3):
    make = torch.Generator().manual_seed(100 * T + S)
    shapes = (3, heads, T, width), (3, groups, S, width), (3, groups, S, out)
    return [torch.randn(shape, generator=make, dtype=torch.float64).requires_grad_() for shape in shapes]


def alibi(heads=4, **extent):
    return ALiBi(8 * heads, heads, Extent((99,), **extent))


def both(pattern, inputs, **options):
    """Values and gradients of FlashVarlen and of Naive."""
    results = []
    for backend in (FlashVarlen(**options), Naive()):
        out = backend(*inputs, pattern)
        probe = torch.arange(out.numel(), dtype=out.dtype).sin().view(out.shape)
        results.append(
            (out, *torch.autograd.grad((out * probe).sum(), inputs, allow_unused=True, materialize_grads=True))
        )
    return results


def assert_same(pattern, inputs, **options):
    for ours, naive in zip(*both(pattern, inputs, **options), strict=True):
        assert_close(ours, naive, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", ["torch", "flash-attn"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", BANDS)
def test_a_band_with_padding_is_naive(kernel, shape, padding, name):
    T, S, offset, start = SHAPES[shape]
    pattern = Pattern(offset=offset, start=start, valid=PADDING[padding](S), **BANDS[name])
    assert_same(pattern, leaves(T, S, 2), kernel=kernel)


@pytest.mark.parametrize("padding", ["none", "right", "left", "both"])
@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("shape", ["whole", "step", "chunk", "kept step", "kept chunk", "kept whole", "one"])
def test_alibi_is_naive_as_slopes(shape, padding, name):
    T, S, offset, start = SHAPES[shape]
    valid = PADDING[padding](S)
    pattern = Pattern(bias=alibi().bias, offset=offset, start=start, valid=valid, **BANDS[name])
    assert_same(pattern, leaves(T, S, 2))


def test_any_padding_at_any_place_is_naive():
    draw = random.Random(0)
    for number in range(300):
        T, S = draw.randint(1, 9), draw.randint(1, 9)
        start = draw.randint(0, 3)
        valid = torch.tensor([[draw.random() < 0.6 for _ in range(S)] for _ in range(3)])
        pattern = Pattern(
            causal=draw.random() < 0.5, window=draw.choice([None, 1, 2, 3, 5]), valid=draw.choice([None, valid]),
            offset=draw.randint(max(0, start - 2), start + S), start=start,
        )  # fmt: skip
        try:
            assert_same(pattern, leaves(T, S, draw.choice([1, 2, 4])))
        except AssertionError as error:
            raise AssertionError(f"case {number}: T={T}, S={S}, {pattern}") from error


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_heads_may_share_keys_and_differ_in_slope_and_width(groups):
    pattern = Pattern(causal=True, bias=alibi().bias, valid=PADDING["right"](7))
    assert_same(pattern, leaves(7, 7, groups, width=5, out=11))
    inputs = leaves(7, 7, groups)
    ours, naive = (part(*inputs, pattern, scale=0.3) for part in (FlashVarlen(), Naive()))
    assert_close(ours, naive, atol=1e-12, rtol=0)


def test_a_language_model_is_one_call_that_copies_nothing():
    (call,) = plan(Pattern(causal=True), (3, 8, 8))
    assert (call.queries, call.keys) == (None, None)
    assert call.query_ends.tolist() == [0, 8, 16, 24]
    assert call.query_ends.dtype == torch.int32
    assert call.key_ends is call.query_ends  # torch then lets cuDNN be causal
    assert (call.longest_query, call.longest_key, call.window) == (8, 8, (-1, 0))
    (call,) = pack(Pattern(causal=True), (3, 8, 8), torch.device("meta"), False)
    assert call.key_ends is call.query_ends
    assert call.query_ends.is_meta
    (call,) = plan(Pattern(causal=True, window=3), (3, 8, 8))
    assert (call.queries, call.keys, call.window) == (None, None, (2, 0))


def test_padding_is_not_packed():
    valid = torch.arange(6) >= torch.tensor([[2], [0]])  # on the left, as prompts are
    (call,) = plan(Pattern(causal=True, valid=valid), (2, 6, 6))
    assert call.queries.tolist() == call.keys.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert call.query_ends.tolist() == call.key_ends.tolist() == [0, 4, 10]
    (call,) = plan(Pattern(valid=valid.flip(1)), (2, 3, 6))  # a memory
    assert call.queries is None
    assert call.keys.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert (call.query_ends.tolist(), call.key_ends.tolist()) == ([0, 3, 6], [0, 4, 10])


def test_one_step_of_decoding_in_a_window_takes_no_key_that_is_out_of_sight():
    (call,) = plan(Pattern(causal=True, window=3, offset=9), (2, 1, 10))
    assert call.keys.tolist() == [7, 8, 9, 17, 18, 19]
    assert (call.longest_query, call.longest_key) == (1, 3)


def test_queries_at_padding_share_one_run_of_keys_or_are_skipped():
    valid = torch.arange(6) < torch.tensor([[6], [2]])
    real, padding = plan(Pattern(causal=True, valid=valid), (2, 6, 6))
    assert real.queries.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (padding.queries.tolist(), padding.keys.tolist()) == ([8, 9, 10, 11], [6, 7])
    assert (padding.query_ends.tolist(), padding.key_ends.tolist(), padding.window) == ([0, 4], [0, 2], (-1, -1))
    (only,) = plan(Pattern(causal=True, valid=valid), (2, 6, 6), skip_padding=True)
    assert torch.equal(only.queries, real.queries)
    (memory,) = plan(Pattern(valid=valid), (2, 6, 6), skip_padding=True)  # queries here may stand elsewhere
    assert memory.queries is None


@pytest.mark.parametrize("padding", ["right", "left", "both", "gaps"])
@pytest.mark.parametrize("name", BANDS)
def test_skipped_padding_is_zeros_and_nothing_else_changes(padding, name):
    valid = PADDING[padding](7)
    pattern, inputs = Pattern(valid=valid, **BANDS[name]), leaves(7, 7, 2)
    ours, naive = FlashVarlen(skip_padding=True)(*inputs, pattern), Naive()(*inputs, pattern)
    real = valid if name != "open" else torch.ones_like(valid)
    assert_close(ours, naive.masked_fill(~real[:, None, :, None], 0.0), atol=1e-12, rtol=0)


def test_all_layers_share_what_is_packed_and_it_goes_with_its_pattern():
    pattern = Pattern(causal=True, valid=torch.ones(2, 6, dtype=torch.bool))
    call = (2, 6, 6), torch.device("cpu")
    assert pack(pattern, *call, False) is pack(pattern, *call, False) is not pack(pattern, *call, True)
    reference = weakref.ref(pattern)
    del pattern
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 3, 0)])
def test_without_keys_or_rows_there_is_no_call(shape):
    B, T, S = shape
    out = FlashVarlen()(torch.randn(B, 2, T, 4), torch.randn(B, 2, S, 4), torch.randn(B, 2, S, 4), Pattern())
    assert torch.equal(out, torch.zeros(B, 2, T, 4))


def test_alibi_with_gaps_or_with_keys_on_both_sides_of_a_chunk_is_refused():
    q, k, v = leaves(7, 7, 4)
    for pattern in (
        Pattern(causal=True, bias=alibi().bias, valid=torch.tensor([[1, 1, 0, 1, 1, 1, 1]] * 3).bool()),
        Pattern(bias=alibi().bias, valid=torch.tensor([[1, 1, 0, 1, 1, 1, 1]] * 3).bool()),
    ):
        with pytest.raises(UsageError, match="supports ALiBi's bias over keys that stand side by side"):
            FlashVarlen()(q, k, v, pattern)
    with pytest.raises(UsageError, match="not on both sides of a query"):
        FlashVarlen()(q[:, :, :2], k, v, Pattern(bias=alibi().bias, offset=3))


def test_torchs_kernel_takes_what_it_is_given(monkeypatch):
    calls, slow = [], varlen_reference.varlen_attn

    def watched(*args, **options):
        calls.append(inspect.signature(varlen_attn).bind(*args, **options).arguments)
        return slow(*args, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", watched)
    FlashVarlen("torch")(*leaves(1, 6, 2), Pattern(causal=True, offset=5))
    (names,) = calls
    assert (names["max_q"], names["max_k"]) == (1, 6)
    assert [names[ends].tolist() for ends in ("cu_seq_q", "cu_seq_k")] == [[0, 1, 2, 3], [0, 6, 12, 18]]
    assert (names["window_size"], names["enable_gqa"], names["scale"]) == ((-1, 0), True, 3**-0.5)
