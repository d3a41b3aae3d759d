"""Gated convolutions against a loop, and what they can see; what convolving, carrying on and attending cost."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from zoo_classic.convolutional import ConvolutionalNet
from zoo_classic.recurrent import RecurrentNet

from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern

LENGTHS = (128, 256, 512)


@pytest.mark.usefixtures("double")
def test_it_is_a_loop_over_places_and_gates():
    net = ConvolutionalNet(9, 16, width=3, dim=4, depth=2).eval()
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    x = [net.embedding.weight[token] * 2 for token in tokens[0]]
    for layer in net.layers:
        after = []
        for t in range(5):
            both = layer.bias.clone()
            for back in range(3):
                if t - back >= 0:
                    both = both + layer.weight[:, :, 2 - back] @ x[t - back]
            after.append(x[t] + both[:4] / (1 + torch.exp(-both[4:])))
        x = after
    expected = F.layer_norm(torch.stack(x), (4,)) @ net.embedding.weight.T
    assert torch.allclose(net(tokens)[0], expected, atol=1e-12)


@pytest.mark.parametrize(("width", "depth"), [(3, 2), (4, 3), (1, 2)])
def test_it_sees_one_place_and_width_less_one_more_with_each_layer(width, depth):
    net = ConvolutionalNet(9, 32, width, dim=8, depth=depth).eval()
    reach = 1 + depth * (width - 1)
    assert net.reach == reach
    tokens = torch.randint(1, 9, (1, 14))
    changed = tokens.clone()
    changed[0, 0] = 0
    same = (net(changed) == net(tokens)).all(-1)[0]
    assert same[reach:].all()  # beyond the receptive field
    assert not same[:reach].any()
    later = tokens.clone()
    later[0, 9:] = 0
    assert torch.equal(net(later)[:, :9], net(tokens)[:, :9])


def test_it_writes_as_it_reads():
    net = ConvolutionalNet(9, 32, width=3, dim=8, depth=2).eval()
    tokens = torch.randint(9, (2, 12))
    state, steps = net.begin(12), []
    for at in range(12):
        steps.append(state.step(tokens[:, at : at + 1]))
    assert torch.allclose(torch.stack(steps, 1), net(tokens), atol=1e-6)
    assert state.past.size(1) == net.reach  # what it remembers does not grow
    state.select(torch.tensor([1, 0]))
    again = net.begin(12)
    again.step(tokens[[1, 0]])
    next_ones = torch.randint(9, (2, 1))
    assert torch.allclose(state.step(next_ones), again.step(next_ones), atol=1e-6)


def growth(cost):
    """b of cost(N) = a N^b, by least squares over N = 128, 256 and 512."""
    x, y = ([math.log(one) for one in ones] for ones in (LENGTHS, [cost(n) for n in LENGTHS]))
    middle, height = sum(x) / 3, sum(y) / 3
    return sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def flops(run):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


def test_work_grows_with_length_for_cells_and_convolutions_and_with_its_square_for_attention():
    recurrent = RecurrentNet(9, 512, "rnn", dim=16, depth=1).to("meta").eval()
    convolutional = ConvolutionalNet(9, 512, 4, dim=16, depth=1).to("meta").eval()
    attention = MultiHead(16, 2, Naive()).to("meta")

    def read(net):
        return growth(lambda n: flops(lambda: net(torch.zeros(1, n, dtype=torch.long, device="meta"))))

    def scores(n):
        whole = flops(lambda: attention(torch.randn(1, n, 16, device="meta"), pattern=Pattern()))
        return whole - 2 * 4 * n * 16 * 16  # four projections

    assert read(recurrent) == pytest.approx(1, abs=1e-6)
    assert read(convolutional) == pytest.approx(1, abs=1e-6)
    assert growth(scores) == pytest.approx(2, abs=1e-6)
    assert scores(128) == 2 * 2 * 128**2 * 16


@pytest.mark.parametrize("name", ["width", "dim", "depth"])
def test_what_cannot_be_is_refused(name):
    with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
        ConvolutionalNet(9, 16, **{"width": 2, "dim": 4, "depth": 1} | {name: 0})
