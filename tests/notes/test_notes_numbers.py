"""Numbers that course notes on attention print, recomputed by our parts; where the print is wrong, ours is right.

docs/lab/checklist.md shows both side by side.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from zoo.models import LanguageModel, Seq2Seq
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive
from zoo.parts.block import PreNorm
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition, Sinusoidal

near = {"atol": 5e-5, "rtol": 0}

# a cat of four numbers, and what its three projections are printed to be
CAT = torch.tensor([0.5, 1.2, -0.3, 0.8])
W_Q = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
W_K = W_Q.flip(1)
W_V = torch.tensor([[0.3, 0.4], [0.5, 0.6], [0.7, 0.8], [0.9, 1.0]])
KEYS = torch.tensor([[-0.10915, -0.10916], [0.6273, 0.4818], [-0.8182, -0.6545]])
VALUES = torch.tensor([[0.0546, 0.0728], [1.0455, 1.2727], [-0.8182, -0.9091]])


def cat_attention():
    """Two heads of width 2 with the same projections, and an output matrix that changes nothing."""
    part = MultiHead(4, 2, Naive(), bias=False)
    part.qkv.weight.data = torch.cat([w.T for w in (W_Q, W_Q, W_K, W_K, W_V, W_V)])
    part.out.weight.data = torch.eye(4)
    return part


def looked(values):
    q, k, v = torch.tensor([[[[-0.10915, -0.10916]]]]), KEYS[None, None], values[None, None]
    return Naive().weights(q, k, Pattern())[0, 0, 0], Naive()(q, k, v, Pattern())[0, 0, 0]


def test_queries_and_keys_of_the_cat_are_the_printed_ones_and_its_value_is_not():
    x = LayerNorm(4)(CAT)[None, None]
    q, k, v = (result[0, 0, 0] for result in cat_attention().project(x, None, Pattern(), None, None))
    assert_close(q, torch.tensor([-0.10909, -0.10909]), **near)
    assert_close(k, torch.tensor([-0.10909, -0.10909]), **near)
    assert_close(v, torch.tensor([-0.10909, -0.10909]), **near)  # printed: .0546, .0728


def test_keys_of_what_was_normalised_have_two_equal_numbers():
    """W_K's columns differ by 0.1, and a normalised token sums to 0: none has the keys (.6273, .4818)."""
    part = cat_attention()
    _, k, v = part.project(LayerNorm(4)(torch.randn(1, 50, 4)), None, Pattern(), None, None)
    assert_close(k[..., 0], k[..., 1], atol=1e-5, rtol=0)
    assert_close(v[..., 0], v[..., 1], atol=1e-5, rtol=0)
    assert abs(KEYS[1, 0] - KEYS[1, 1]) > 0.1
    sums = (KEYS[1:] @ torch.tensor([1.0, -1.0])) / 0.1, (VALUES[1:] @ torch.tensor([-1.0, 1.0])) / 0.1
    assert_close(sums[0], torch.tensor([1.455, -1.637]), atol=1e-3, rtol=0)
    assert_close(sums[1], torch.tensor([2.272, -0.909]), atol=1e-3, rtol=0)  # even of any x the two contradict


def test_the_cats_weights_are_the_printed_ones_and_its_new_vector_follows_from_its_value():
    weights, printed = looked(VALUES)
    assert_close(weights, torch.tensor([0.3329, 0.3004, 0.3667]), **near)
    assert_close(printed, torch.tensor([0.03226, 0.07324]), **near)  # rounded on the way: .0316, .0723
    true = VALUES.clone()
    true[0] = -0.10909
    assert_close(looked(true)[1], torch.tensor([-0.0222, 0.0127]), **near)


def test_the_printed_residual_is_that_of_two_equal_heads():
    head = torch.tensor([0.0316, 0.0723])
    assert_close(CAT + torch.cat([head, head]), torch.tensor([0.5316, 1.2723, -0.2684, 0.8723]), **near)


def test_heads_read_the_whole_token_and_not_a_slice_of_it():
    part, x = MultiHead(4, 2, Naive()), torch.randn(1, 1, 4)
    for head in range(2):
        for place in range(4):
            moved = x.clone()
            moved[..., place] += 1
            before, after = (part.project(one, None, Pattern(), None, None)[0][0, head] for one in (x, moved))
            assert not torch.allclose(before, after)


def test_a_pre_norm_residual_adds_the_stream_and_not_what_was_normalised():
    net = LanguageModel(5, 8, dim=4, depth=1, heads=2, block=PreNorm, norm=LayerNorm, position=NoPosition)
    inner = net.stack.blocks[0]
    for branch in (inner.attend.part.out, inner.ffn.part.down):
        torch.nn.init.zeros_(branch.weight)
        torch.nn.init.zeros_(branch.bias)
    streams = []
    inner.register_forward_hook(lambda module, inputs, out: streams.append((inputs[0], out)))
    net(torch.tensor([[0, 1, 2]]))
    ((x, out),) = streams
    assert torch.equal(out, x)
    assert not torch.allclose(out, LayerNorm(4)(x), atol=1e-3)


# sizes


def test_scores_of_a_hundred_thousand_tokens_take_1_28_terabytes():
    q = torch.empty(1, 64, 100_000, 1, device="meta", dtype=torch.float16)
    scores = q @ q.mT
    assert scores.numel() == 640_000_000_000
    assert scores.nbytes == 1.28e12  # printed: 1.192 TB, which is GiB by the thousand
    assert round(scores.nbytes / 2**40, 3) == 1.164
    assert round(scores.nbytes / 2**30 / 1000, 3) == 1.192
    assert scores.float().nbytes == 2.56e12


def test_213_million_parameters_are_six_blocks_on_each_side_and_not_twelve_equal_ones():
    options = {"dim": 1024, "heads": 16, "hidden": 4096, "position": Sinusoidal, "norm": LayerNorm, "ffn": MLP}
    with torch.device("meta"):
        pair = Seq2Seq(37_000, 37_000, 512, tie="all", depth=6, **options)
        twelve = LanguageModel(37_000, 512, depth=12, **options)
    result = [sum(p.numel() for p in net.parameters()) / 1e6 for net in (pair, twelve)]
    assert result[0] == pytest.approx(214, abs=0.4)
    assert result[1] == pytest.approx(189, abs=0.4)


def test_an_embedding_and_the_shapes_of_a_sentence():
    with torch.device("meta"):
        net = LanguageModel(30_000, 16, dim=512, depth=1, heads=8, hidden=2048, ffn=MLP)
        assert net.embedding.weight.numel() == 15_360_000
        assert net.embedding(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 512)
        q, _, _ = net.stack.blocks[0].attend.part.project(torch.zeros(1, 10, 512), None, Pattern(), None, None)
    assert q.shape == (1, 8, 10, 64)
    assert net.stack.blocks[0].ffn.part.up.out_features == 2048


@pytest.mark.parametrize("dim", [10, 100])
def test_the_root_of_the_width_is_not_about_constant_vectors(dim):
    ones = torch.ones(dim)
    assert ones @ ones == dim
    assert round(float(ones @ ones) / dim**0.5, 2) == {10: 3.16, 100: 10.0}[dim]  # it still grows


# softmax and masks


def test_weights_are_shares_of_keys_for_each_query():
    """E is (queries, keys): softmax over dim=1 makes rows sum to one, not columns as the notes say."""
    q, k = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 6, 8)
    weights = Naive().weights(q, k, Pattern())[0, 0]
    assert_close(weights.sum(1), torch.ones(4))
    assert (weights.sum(0) - 1).abs().max() > 0.01
    # with tokens as columns, (D, N), the order is V softmax(K'Q), normalised over columns; softmax(K'Q) V is nothing
    columns_q, columns_k, values = q[0, 0].T, k[0, 0].T, torch.randn(6, 8)
    by_columns = values.T @ (columns_k.T @ columns_q / 8**0.5).softmax(0)
    assert_close(by_columns.T, Naive()(q, k, values[None, None], Pattern())[0, 0])
    with pytest.raises(RuntimeError, match="shapes"):
        (columns_k.T @ columns_q).softmax(0) @ values


def test_scores_of_112_and_96_are_divided_by_8():
    assert_close(torch.tensor([112.0, 96.0]).div(64**0.5).softmax(0), torch.tensor([0.8808, 0.1192]), **near)


def test_zeros_after_the_softmax_are_no_distribution_and_a_mask_before_it_is():
    scores = torch.tensor([[1.0, 0.5, 1.0], [2.0, 1.0, -0.5], [0.3, 0.2, 0.1]])
    q, k = scores[None, None], torch.eye(3)[None, None]
    weights = Naive().weights(q * 3**0.5, k, Pattern(causal=True))[0, 0]
    assert (weights.triu(1) == 0).all()
    assert_close(weights.sum(1), torch.ones(3))
    assert_close(weights[1, :2], scores[1, :2].softmax(0))
    after = scores.softmax(1).tril().sum(1)
    assert_close(after, torch.tensor([0.3837, 0.9434, 1.0]), **near)


# positions


def test_sinusoids_are_fast_in_front_and_slow_behind():
    table = Sinusoidal(512, 8, Extent((200,))).embed(torch.zeros(1, 200, 512), torch.arange(200))[0]
    moved = (table[1:] - table[:-1]).abs().mean(0)
    assert moved[0] == pytest.approx(0.61, abs=0.01)
    assert moved[510] < 2e-4  # printed the other way round
    pairs = moved[0::2]
    assert (pairs[8:] < pairs[:-8]).all()


# what a mask is for


@torch.no_grad()
def test_a_mask_does_not_remove_exposure_bias():
    """Masked or not, training reads the right prefix and writing reads its own: after one error, another function."""
    net = LanguageModel(11, 16, dim=16, depth=1, heads=2).eval()
    truth = torch.tensor([[1, 2, 3, 4, 5, 6]])
    taught, message = net(truth), [1]
    for _ in range(5):
        message.append(int(net(torch.tensor([message]))[0, -1].argmax()))
    own = net(torch.tensor([message]))
    first = next(at for at in range(6) if message[at] != truth[0, at])
    assert_close(own[0, :first], taught[0, :first], atol=1e-6, rtol=0)  # the mask: the same prefix, the same answers
    assert (own[0, first:] - taught[0, first:]).abs().max() > 1e-3


def test_a_loss_needs_a_target_for_each_place_and_five_tokens_are_none_for_seven():
    with pytest.raises(ValueError, match="batch_size"):
        F.cross_entropy(torch.randn(5, 100), torch.randint(100, (7,)))
    assert math.isclose(
        float(F.cross_entropy(torch.zeros(7, 100), torch.randint(100, (7,)))), math.log(100), rel_tol=1e-5
    )
