"""Windows and strides hide what they say, reach as far as they say, and cost what they say."""

from functools import partial

import pytest
import torch
from efficient_measures import Largest, exponent, padded
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode
from zoo_efficient.local import SlidingWindow, Strided

from zoo.errors import UsageError
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Flash, Naive, Tiled
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, NoPosition, RoPE

DIM, HEADS, LENGTH = 16, 4, 13
NEAR, FAR = partial(SlidingWindow, width=3), partial(Strided, stride=4)
BOTH = {"window": (NEAR, lambda gap: abs(gap) < 3), "stride": (FAR, lambda gap: abs(gap) < 4 or gap % 4 == 0)}
double = pytest.mark.usefixtures("double")
both = pytest.mark.parametrize("name", BOTH)


def stack(attention, causal=True, **options):
    return Stack(Extent((64,), causal=causal), dim=DIM, heads=HEADS, attention=attention,
                 **{"position": NoPosition, "depth": 1} | options)  # fmt: skip


def reach(net):
    """Which token has a gradient for which, (T, T)."""
    x = torch.randn(1, LENGTH, DIM, requires_grad=True)
    out, probe = net(x), torch.linspace(-1, 2, DIM)  # a plain sum is what a norm holds still
    grads = [torch.autograd.grad(out[0, t] @ probe, x, retain_graph=True)[0][0] for t in range(LENGTH)]
    return torch.stack([grad.abs().sum(-1) > 0 for grad in grads])


def pairs(rule):
    return torch.tensor([[rule(t, s) for s in range(LENGTH)] for t in range(LENGTH)])


@double
@both
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("backend", [Naive, SDPA, partial(Tiled, 4)])
def test_a_hidden_token_has_no_gradient_and_every_other_has_one(name, causal, backend):
    attention, rule = BOTH[name]
    expected = pairs(lambda t, s: rule(t - s) and (s <= t or not causal))
    assert torch.equal(reach(stack(attention, causal, backend=backend)), expected)


@double
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_reach_of_a_window_grows_by_width_less_one_with_each_layer(depth):
    influence = reach(stack(NEAR, depth=depth))
    assert influence.sum(1).tolist() == [min(t + 1, depth * (3 - 1) + 1) for t in range(LENGTH)]


@double
def test_two_layers_of_strides_reach_everything():
    assert torch.equal(reach(stack(FAR, depth=2)), pairs(lambda t, s: s <= t))


@double
@both
@pytest.mark.parametrize("causal", [True, False])
def test_weights_are_those_of_the_same_scores_among_fewer_keys(name, causal):
    attention, rule = BOTH[name]
    part, x = attention(DIM, HEADS, kv_heads=2), torch.randn(2, LENGTH, DIM)
    whole = MultiHead(DIM, HEADS, kv_heads=2)
    whole.load_state_dict(part.state_dict())
    powers = whole.weights(x, pattern=Pattern()) * pairs(lambda t, s: rule(t - s) and (s <= t or not causal))
    expected = powers / powers.sum(-1, keepdim=True)
    assert_close(part.weights(x, pattern=Pattern(causal=causal)), expected, atol=1e-10, rtol=0)
    selected = part.weights(x, pattern=Pattern(causal=causal), rows=[7, 2], heads=[3])
    assert_close(selected, expected[:, [3]][:, :, [7, 2]], atol=1e-10, rtol=0)


@double
@both
@pytest.mark.parametrize("window", [None, 2, 7])
def test_decoding_is_one_pass_in_steps_also_where_the_cache_forgets(name, window):
    net, x = stack(BOTH[name][0], depth=2, position=RoPE, window=window), torch.randn(2, LENGTH, DIM)
    caches = net.caches(LENGTH)
    steps = torch.cat([net(part, caches=caches) for part in x.split([4, 1, 3, 5], 1)], 1)
    assert_close(steps, net(x), atol=1e-10, rtol=0)


@double
@both
@pytest.mark.parametrize("on_left", [True, False])
def test_padding_on_either_side_changes_nothing(name, on_left):
    net, rows = stack(BOTH[name][0], depth=2, position=ALiBi, padded=True), [torch.randn(1, n, DIM) for n in (9, 4)]
    x, valid = padded(rows, on_left, 11)
    out = net(x, valid)
    for b, row in enumerate(rows):
        assert_close(out[b][valid[b]], net(row)[0], atol=1e-10, rtol=0)


def test_of_two_windows_the_narrower_counts():
    for own, of_stack in ((3, 9), (9, 3)):
        influence = reach(stack(partial(SlidingWindow, width=own), window=of_stack))
        assert influence.sum(1).max() == 3


@double
@both
def test_a_memory_is_seen_whole(name):
    part, whole = BOTH[name][0](DIM, HEADS), MultiHead(DIM, HEADS)
    whole.load_state_dict(part.state_dict())
    x, memory = torch.randn(2, 3, DIM), torch.randn(2, 9, DIM)
    assert torch.equal(part(x, memory, pattern=Pattern()), whole(x, memory, pattern=Pattern()))
    assert torch.equal(part.weights(x, memory, pattern=Pattern()), whole.weights(x, memory, pattern=Pattern()))


def test_layers_with_one_stride_share_one_mask():
    net, calls = stack(FAR, depth=3), []

    class CallCounter(type(net.blocks[0].attend.part.rule)):
        def __call__(self, query, key):
            calls.append(1)
            return super().__call__(query, key)

    for block in net.blocks:
        block.attend.part.rule = CallCounter(4)
    net(torch.randn(1, LENGTH, DIM))
    assert len(calls) == 1


def growth(attention, backend, measure):
    """How FLOPs or the largest tensor of causal self-attention grow with length."""
    sizes = {}
    for length in (512, 1024, 2048):
        part = attention(DIM, HEADS, backend())
        q, k, v = (torch.randn(1, HEADS, length, DIM // HEADS) for _ in range(3))
        with torch.no_grad(), FlopCounterMode(display=False) if measure == "flops" else Largest() as counter:
            part.attend(q, k, v, part.thin(Pattern(causal=True)))
        sizes[length] = counter.get_total_flops() if measure == "flops" else counter.numbers
    return exponent(sizes)


@pytest.mark.parametrize("measure", ["flops", "numbers"])
def test_only_a_window_on_tiles_is_linear(measure):
    assert growth(partial(SlidingWindow, width=64), Tiled, measure) < 1.1
    assert growth(partial(SlidingWindow, width=64), Naive, measure) > 1.9
    assert growth(partial(Strided, stride=32), Naive, measure) > 1.9
    assert growth(partial(Strided, stride=32), Tiled, "flops") > 1.8  # tiles hold the memory linear, not the work


@pytest.mark.parametrize(("build", "words"), [
    (lambda: SlidingWindow(DIM, HEADS, width=0), "attention SlidingWindow needs width of at least 1, got 0"),
    (lambda: Strided(DIM, HEADS, stride=0), "attention Strided needs stride of at least 1, got 0"),
    (lambda: stack(SlidingWindow, backend=Flash), "SlidingWindow asks for window, which backend Flash cannot take"),
    (lambda: stack(Strided, backend=Flash), "Strided asks for sparse, which backend Flash cannot take"),
])  # fmt: skip
def test_what_cannot_work_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()
