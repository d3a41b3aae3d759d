"""Norms, feed-forwards and blocks against their papers' formulas, number by number."""

import math
from functools import partial

import pytest
import torch
from frontier_measures import causal_stack, decoding_gap, padded_decoding_gap, padding_gap
from torch.testing import assert_close
from zoo_frontier.attention import MLA, ValueResidual
from zoo_frontier.block import DropPath, HyperConnections, LayerScale
from zoo_frontier.ffn import DeepSeekMoE, SharedMoE, SquaredReLU
from zoo_frontier.mixer import GatedDeltaNet
from zoo_frontier.norm import DynamicTanh

from zoo.conformance.sequence_checks import check_decoding
from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.models.layer_overrides import Override
from zoo.models.stack import Stack
from zoo.parts.block import PreNorm
from zoo.parts.ffn import SwiGLU
from zoo.parts.position import Extent

double = pytest.mark.usefixtures("double")


@double
def test_dynamic_tanh_is_its_formula():
    norm, x = DynamicTanh(5), 3 * torch.randn(4, 5)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    for row, out in zip(x.tolist(), norm(x).tolist(), strict=True):
        for i, value in enumerate(row):
            power = math.exp(2 * 0.5 * value)
            expected = norm.weight[i].item() * (power - 1) / (power + 1) + norm.bias[i].item()
            assert out[i] == pytest.approx(expected, abs=1e-12)


@double
@pytest.mark.parametrize("bias", [False, True])
def test_squared_relu_is_its_formula(bias):
    ffn, x = initialize(SquaredReLU(6, 10, bias=bias)), torch.randn(4, 6)
    for row, out in zip(x, ffn(x), strict=True):
        hidden = [max(0.0, sum(w * v for w, v in zip(line, row.tolist(), strict=True))) ** 2
                  for line in ffn.up.weight.tolist()]  # fmt: skip
        assert_close(out, ffn.down.weight @ torch.tensor(hidden), atol=1e-12, rtol=0)


@double
def test_shared_experts_are_added_to_the_selected_ones_weighted_by_affinity_alone():
    ffn, x = initialize(DeepSeekMoE(6, 9, experts=5, top_k=2, shared=2, scale=2.5)), torch.randn(7, 6)
    with torch.no_grad():
        ffn.selection_bias.copy_(torch.tensor([0.5, 0, 0, -0.5, 0.2]))
    picked = set()
    for token, out in zip(x, ffn(x), strict=True):
        affinity = [1 / (1 + math.exp(-(line @ token).item())) for line in ffn.router.weight]
        order = sorted(range(5), key=lambda e: -(affinity[e] + 0.3 * ffn.selection_bias[e].item()))[:2]
        picked |= set(order)
        expected = sum(expert(token[None])[0] for expert in ffn.shared)
        for e in order:
            expected = expected + 2.5 * affinity[e] / sum(affinity[i] for i in order) * ffn.experts[e](token[None])[0]
        assert_close(out, expected, atol=1e-12, rtol=0)
    assert 0 in picked
    assert 3 not in picked


@double
@torch.no_grad()
@pytest.mark.parametrize("options", [
    {"gate": True, "shared_hidden": 15}, {"shared": 2, "scale": 2.5, "normalize": False, "groups": 3, "group_top_k": 2},
    {"gate": True, "groups": 6, "group_top_k": 3, "top_k": 1},
])  # fmt: skip
def test_shared_experts_stand_beside_a_mixture(options):
    ffn, x = initialize(SharedMoE(6, 9, experts=6, **options)), torch.randn(40, 6)
    size, picked = 6 // ffn.groups, set()
    for token, out in zip(x, ffn(x), strict=True):
        powers = [math.exp((line @ token).item()) for line in ffn.router.weight]
        chance = [power / sum(powers) for power in powers]
        likely = sorted(range(ffn.groups), key=lambda g: -max(chance[g * size : (g + 1) * size]))[: ffn.group_top_k]
        order = [e for e in sorted(range(6), key=lambda e: -chance[e]) if e // size in likely][: ffn.top_k]
        gate = 1 / (1 + math.exp(-(ffn.shared_gate.weight[0] @ token).item())) if ffn.shared_gate else 1
        expected = gate * sum(expert(token[None])[0] for expert in ffn.shared)
        whole = sum(chance[e] for e in order) if ffn.normalize else 1
        expected = expected + sum(ffn.scale * chance[e] / whole * ffn.experts[e](token[None])[0] for e in order)
        assert_close(out, expected, atol=1e-12, rtol=0)
        picked |= set(order)
    assert len(picked) == 6


@double
@torch.no_grad()
def test_a_token_stays_within_the_groups_of_the_best_pairs():
    ffn, x = initialize(DeepSeekMoE(6, 9, experts=6, groups=2, group_top_k=1)), torch.randn(60, 6)
    with torch.no_grad():
        ffn.selection_bias.copy_(torch.tensor([2.0, -2, -2, 0, 0, 0]))  # the best expert is in the worse group
    affinity = ffn.route(x)
    choice = ffn.select(affinity)[1]
    score = affinity + 0.3 * ffn.selection_bias
    pairs = score.unflatten(-1, (2, 3)).sort(-1).values[..., 1:].sum(-1)
    assert ((choice // 3) == pairs.argmax(-1, keepdim=True)).all()
    assert (score.argmax(-1) // 3 != pairs.argmax(-1)).any()


def test_loads_become_even_without_a_loss():
    ffn = initialize(DeepSeekMoE(8, 4, experts=4, top_k=1))
    with torch.no_grad():
        ffn.router.weight.copy_(torch.eye(4, 8))
    optimizer = torch.optim.AdamW([ffn.selection_bias], lr=0.02, weight_decay=0.0)
    tokens = torch.randn(512, 8) + torch.tensor([1.5, 0.5, 0, -1, 0, 0, 0, 0])
    loads = []
    for _ in range(300):
        ffn.load.zero_()
        ffn.train()(tokens)
        assert ffn.aux_loss.item() == 0.0
        optimizer.zero_grad()
        ffn.aux_loss.backward()
        gradient = ffn.selection_bias.grad
        assert torch.equal(gradient, 1e-4 * (ffn.load - 128).sign().to(gradient.dtype))
        optimizer.step()
        loads.append(ffn.load.tolist())
    assert max(loads[0]) > 250
    assert max(loads[-1]) < 150
    assert min(loads[-1]) > 105


@pytest.mark.parametrize("size", [10.0, 1000.0])
def test_the_selection_moves_by_the_rate_and_weighs_nothing_in_the_norm_that_is_clipped(size):
    ffn = initialize(DeepSeekMoE(8, 4, experts=64)).train()
    out = ffn(torch.randn(256, 8))
    (size * out.square().mean() + ffn.aux_loss).backward()
    others = torch.stack([weight.grad.norm() for weight in ffn.parameters() if weight is not ffn.selection_bias])
    whole = torch.nn.utils.clip_grad_norm_(ffn.parameters(), 1.0)
    assert whole.item() == pytest.approx(others.norm().item(), rel=1e-3)
    signs = ffn.selection_bias.grad.sign()
    torch.optim.AdamW([ffn.selection_bias], lr=0.02, weight_decay=0.0).step()
    assert_close(ffn.selection_bias.detach(), -0.02 * signs, rtol=0.05, atol=0)


def test_no_gradient_of_the_prediction_reaches_the_selection():
    ffn = initialize(DeepSeekMoE(8, 4)).train()
    ffn(torch.randn(16, 8)).square().sum().backward()
    assert not ffn.selection_bias.grad.any()
    assert ffn.router.weight.grad.any()


@double
def test_layer_scale_is_a_scaled_branch():
    net = causal_stack(block=LayerScale, norm=DynamicTanh, depth=1)
    block, x = net.blocks[0], torch.randn(2, 6, 16)
    norm_stack = causal_stack(block=PreNorm, norm=DynamicTanh, depth=1)
    norm_stack.load_state_dict({name: value for name, value in net.state_dict().items() if ".scale." not in name})
    for branch in ("attend", "ffn"):
        scale = getattr(block, branch).scale.weight
        last = getattr(norm_stack.blocks[0], branch).part
        matrix = last.out if branch == "attend" else last.down
        with torch.no_grad():
            matrix.weight.mul_(scale[:, None])
            matrix.bias.mul_(scale)
    assert_close(net(x), norm_stack(x), atol=1e-10, rtol=0)
    for depth, start in ((18, 0.1), (24, 1e-5), (25, 1e-6)):
        begins = initialize(LayerScale(*parts(), depth=depth)).attend.scale.weight.unique().item()
        assert begins == pytest.approx(start)


def parts():
    net = causal_stack(depth=1)
    return net.blocks[0].attend.part, None, net.blocks[0].ffn.part, lambda: DynamicTanh(16), 0.0


@double
def test_drop_path_leaves_out_whole_sequences_and_divides_by_what_is_left():
    net = causal_stack(block=partial(DropPath, drop_path=0.5), depth=1).train()
    net.norm = torch.nn.Identity()
    x = torch.randn(64, 5, 16)
    block = net.blocks[0]
    with torch.no_grad():
        for parameter in block.ffn.part.down.parameters():
            parameter.zero_()
    added = net(x) - x
    dropped = added.flatten(1).abs().amax(1) == 0
    assert 15 <= dropped.sum() <= 49
    whole = net.eval()(x) - x
    assert_close(added[~dropped], 2 * whole[~dropped], atol=1e-10, rtol=0)
    assert whole.flatten(1).abs().amax(1).min() > 0


def test_drop_path_grows_to_the_last_layer():
    net = causal_stack(block=DropPath, depth=4)
    assert [block.chance for block in net.blocks] == pytest.approx([0.025, 0.05, 0.075, 0.1])


def matrix_of(H, connection, dynamic):
    """The matrix of Zhu et al. (2024) for streams H (n, dim) of a token: 0 and B in a row, A_m and A_r below."""
    n = len(H)
    hc = torch.zeros(1 + n, 1 + n)
    hc[0, 1:], hc[1:] = connection.output, connection.mixing
    if dynamic:
        normed = connection.norm(H)
        s_a, s_b = connection.scales.tolist()
        for i in range(n):
            hc[0, 1 + i] += s_b * math.tanh((normed[i] @ connection.output_weight).item())
            for j in range(1 + n):
                hc[1 + i, j] += s_a * math.tanh((normed[i] @ connection.weight[j]).item())
    return hc


@double
@torch.no_grad()
@pytest.mark.parametrize("dynamic", [True, False])
def test_hyper_connections_are_the_papers_matrices(dynamic):
    net, n = causal_stack(block=partial(HyperConnections, streams=3, dynamic=dynamic)), 3
    net.norm = torch.nn.Identity()
    x = torch.randn(1, 5, 16)
    streams = [[token] * n for token in x[0]]
    for block in net.blocks:
        for branch in (block.attend, block.ffn):
            matrices = [matrix_of(torch.stack(H), branch.connect, dynamic) for H in streams]
            h0 = [sum(hc[1 + i, 0] * H[i] for i in range(n)) for hc, H in zip(matrices, streams, strict=True)]
            options = {"pattern": net.pattern(), "position": net.position} if branch is block.attend else {}
            outs = branch.part(branch.norm(torch.stack(h0))[None], **options)[0]
            streams = [
                [hc[0, 1 + j] * out + sum(hc[1 + i, 1 + j] * H[i] for i in range(n)) for j in range(n)]
                for hc, H, out in zip(matrices, streams, outs, strict=True)
            ]
    assert_close(net(x)[0], torch.stack([sum(H) / n for H in streams]), atol=1e-10, rtol=0)


@double
@torch.no_grad()
@pytest.mark.parametrize("dynamic", [True, False])
def test_hyper_connections_begin_as_the_plain_residual(dynamic):
    net = Stack(Extent((24,), causal=True), dim=16, depth=3, heads=2,
                block=partial(HyperConnections, dynamic=dynamic))  # fmt: skip
    initialize(net)
    usual = Stack(Extent((24,), causal=True), dim=16, depth=3, heads=2, block=PreNorm)
    usual.load_state_dict({name: value for name, value in net.state_dict().items() if ".connect." not in name})
    x = torch.randn(2, 7, 16)
    assert_close(net.eval()(x), usual.eval()(x), atol=1e-12, rtol=0)
    readers = [
        branch.connect.mixing[:, 0].argmax().item() for block in net.blocks for branch in (block.attend, block.ffn)
    ]
    assert readers == [0, 1, 2, 3, 0, 1]


@double
@pytest.mark.parametrize("options", [
    {}, {"overrides": [Override(layers="every 2nd", block=PreNorm)]},
    {"overrides": [Override(layers="last 2", block=partial(HyperConnections, streams=2))]},
    {"attention": ValueResidual, "overrides": [Override(layers="first", attention=MLA)]},
    {"attention": GatedDeltaNet},
], ids=["every layer", "every 2nd", "two widths", "value residual", "delta"])  # fmt: skip
def test_recomputed_streams_have_the_same_gradients_and_decode(options):
    grads = []
    for recompute in (False, True):
        torch.manual_seed(0)
        net = causal_stack(**{"block": HyperConnections, "depth": 4, **options}, recompute=recompute, dropout=0.2)
        torch.manual_seed(1)
        net.train()(torch.randn(2, 9, 16)).square().mean().backward()
        grads.append({name: parameter.grad for name, parameter in net.named_parameters()})
    for name, grad in grads[0].items():
        assert_close(grads[1][name], grad, atol=1e-12, rtol=0)
    with torch.no_grad():
        check_decoding(net.eval())


def test_streams_stay_in_float32_under_autocast():
    net = causal_stack(block=HyperConnections)
    streams = []
    net.blocks[1].register_forward_pre_hook(lambda block, args: streams.append(args[0]))
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(2, 6, 16))
    assert streams[0].shape == (2, 6, 4, 16)
    assert streams[0].dtype is torch.float32


def test_impossible_options_are_refused():
    with pytest.raises(UsageError, match="at least 2 streams, got 1"):
        HyperConnections(*parts(), streams=1)
    with pytest.raises(UsageError, match=r"drop_path in \[0, 1\), got 1"):
        DropPath(*parts(), drop_path=1.0)
    with pytest.raises(UsageError, match="shared of at least 1, got 0"):
        DeepSeekMoE(8, 4, shared=0)
    with pytest.raises(UsageError, match="top_k=9 of experts=8"):
        DeepSeekMoE(8, 4, top_k=9)
    with pytest.raises(UsageError, match="group_top_k=1 of groups=3 of experts=8"):
        SharedMoE(8, 4, groups=3)
    with pytest.raises(UsageError, match="fewer than top_k=3 experts in group_top_k=1"):
        DeepSeekMoE(8, 4, top_k=3, groups=4)


STACKS = {
    "DynamicTanh": {"norm": DynamicTanh},
    "SquaredReLU": {"ffn": SquaredReLU},
    "DeepSeekMoE": {"ffn": DeepSeekMoE},
    "SharedMoE": {"ffn": partial(SharedMoE, gate=True, groups=4, group_top_k=2)},
    "LayerScale": {"block": LayerScale, "ffn": SwiGLU},
    "DropPath": {"block": DropPath},
    "HyperConnections": {"block": HyperConnections},
}


@double
@torch.no_grad()
@pytest.mark.parametrize("name", STACKS)
def test_decoding_is_one_pass(name):
    net = causal_stack(**STACKS[name])
    assert decoding_gap(net) < 1e-10
    assert padded_decoding_gap(net) < 1e-10
    assert padding_gap(net) < 1e-10
