"""Positions against their papers' formulas, pair by pair, and in decoding."""

import math

import pytest
import torch
from frontier_measures import causal_stack, decoding_gap, padded_decoding_gap, padding_gap
from torch.testing import assert_close
from zoo_frontier.position import FIRE, KERPLE, XPos, YaRN

from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.parts.position import Extent, RoPE

double = pytest.mark.usefixtures("double")
DIM, HEADS, TEXT = 32, 4, Extent((64,), causal=True)


@double
@pytest.mark.parametrize("ramp", ["pairs", "turns"])
def test_yarn_slows_what_does_not_turn_and_sharpens_the_softmax(ramp):
    width, length, factor = 64, 4096, 8.0
    scheme = YaRN(width, 1, TEXT, scaling_factor=factor, original_max_length=length, ramp=ramp)
    x, place = torch.randn(1, 1, 1, width), 77
    out = scheme.rotate(x, torch.tensor([place]))[0, 0, 0]
    kinds = set()
    pair_of = [width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(10000.0)) for turns in (32, 1)]
    begin, end = math.floor(pair_of[0]), math.ceil(pair_of[1])
    for i in range(width // 2):
        rate = 10000.0 ** (-2 * i / width)
        turns = length * rate / (2 * math.pi)
        share = (turns - 1) / (32 - 1) if ramp == "turns" else (end - i) / (end - begin)
        share = min(max(share, 0.0), 1.0)
        kinds.add(0 if share == 0 else 2 if share == 1 else 1)
        angle = place * ((1 - share) * rate / factor + share * rate)
        a, b = x[0, 0, 0, i].item(), x[0, 0, 0, i + width // 2].item()
        sharp = 0.1 * math.log(factor) + 1
        assert out[i].item() == pytest.approx(sharp * (a * math.cos(angle) - b * math.sin(angle)), abs=1e-10)
        pair = sharp * (a * math.sin(angle) + b * math.cos(angle))
        assert out[i + width // 2].item() == pytest.approx(pair, abs=1e-10)
    assert kinds == {0, 1, 2}


@double
def test_yarn_of_texts_no_longer_is_rope():
    x = torch.randn(2, HEADS, 9, 8)
    rope, scaled = RoPE(DIM, HEADS, TEXT), YaRN(DIM, HEADS, TEXT, scaling_factor=1.0)
    assert_close(scaled.rotate(x, torch.arange(9)), rope.rotate(x, torch.arange(9)), atol=1e-12, rtol=0)


@double
def test_scores_of_xpos_decay_with_distance_alone():
    scheme, (q, k) = XPos(DIM, HEADS, TEXT, scale_base=16.0), torch.randn(2, 8).tolist()
    for query, key in ((5, 5), (9, 2), (2000, 1993)):
        turned = scheme.rotate(torch.tensor(q)[None, None, None], torch.tensor([query]))
        score = (turned * scheme.rotate_keys(torch.tensor(k)[None, None, None], torch.tensor([key]))).sum()
        expected, gap = 0.0, query - key
        for i in range(4):
            angle = gap * 10000.0 ** (-2 * i / 8)
            even = q[i] * k[i] + q[i + 4] * k[i + 4]
            odd = q[i] * k[i + 4] - q[i + 4] * k[i]
            zeta = (i / 4 + 0.4) / 1.4
            expected += zeta ** (gap / 16) * (even * math.cos(angle) + odd * math.sin(angle))
        assert score.item() == pytest.approx(expected, abs=1e-8)


def table(scheme, queries=20, keys=20):
    heads = torch.arange(HEADS)[:, None, None]
    return scheme.bias(heads, torch.arange(queries)[:, None], torch.arange(keys)[None])


@double
def test_kerple_is_a_logarithm_of_distance():
    scheme = initialize(KERPLE(DIM, HEADS, TEXT))
    out = table(scheme)
    for h in range(HEADS):
        r1, r2 = (math.exp(value) for value in scheme.rates[:, h].tolist())
        for q, k in ((0, 0), (5, 2), (19, 0), (3, 11)):
            assert out[h, q, k].item() == pytest.approx(-r1 * math.log(1 + r2 * abs(q - k)), abs=1e-10)


@double
def test_fire_is_a_network_of_relative_distance():
    scheme = initialize(FIRE(DIM, HEADS, TEXT, hidden=5, threshold=8.0))
    with torch.no_grad():
        scheme.c.fill_(0.7)
        scheme.scale.fill_(1.25)  # L is 10
        scheme.up.bias.normal_()
        scheme.down.bias.normal_()
    out = table(scheme)
    for h in range(HEADS):
        for q, k in ((0, 0), (5, 2), (19, 0), (12, 11)):
            ratio = math.log(0.7 * (q - k) + 1) / math.log(0.7 * max(q, 10.0) + 1)
            hidden = [max(0.0, w * ratio + b) for (w,), b in zip(scheme.up.weight.tolist(), scheme.up.bias.tolist(),
                                                                strict=True)]  # fmt: skip
            weights = scheme.down.weight[h].tolist()
            expected = sum(w * v for w, v in zip(weights, hidden, strict=True)) + scheme.down.bias[h].item()
            assert out[h, q, k].item() == pytest.approx(expected, abs=1e-10)


@double
@torch.no_grad()
@pytest.mark.parametrize("scheme", [YaRN, XPos, KERPLE, FIRE])
def test_decoding_is_one_pass(scheme):
    net = causal_stack(position=scheme)
    assert decoding_gap(net) < 1e-10
    assert padded_decoding_gap(net) < 1e-10
    assert padding_gap(net) < 1e-10
    assert padding_gap(net, pad_left=False) < 1e-10


def test_what_cannot_work_is_refused():
    with pytest.raises(UsageError, match="FIRE needs one axis, got 2"):
        FIRE(DIM, HEADS, Extent((8, 8)))
    with pytest.raises(UsageError, match="hidden >= 1 and threshold > 0"):
        FIRE(DIM, HEADS, TEXT, hidden=0)
    with pytest.raises(UsageError, match="XPos needs one axis, got 2"):
        XPos(DIM, HEADS, Extent((8, 8)))
    with pytest.raises(UsageError, match=r"scale_base and gamma above 0, got 512\.0 and 0"):
        XPos(DIM, HEADS, TEXT, gamma=0.0)
    with pytest.raises(UsageError, match="scaling_factor >= 1"):
        YaRN(DIM, HEADS, TEXT, scaling_factor=0.5)
