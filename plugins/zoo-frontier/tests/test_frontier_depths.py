"""Mixture-of-Depths against attention that hides the other tokens, in decoding, and what it saves."""

import math
from functools import partial

import pytest
import torch
from frontier_measures import causal_stack
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode
from zoo_frontier.attention import MLA, Differential, GatedAttention, ValueResidual
from zoo_frontier.block import DropPath, HyperConnections, LayerScale, MixtureOfDepths
from zoo_frontier.mixer import GatedDeltaNet, Mamba2

from zoo.conformance.sequence_checks import check_decoding
from zoo.errors import UsageError
from zoo.models.initialization import GPT2
from zoo.models.language import LanguageModel
from zoo.models.layer_overrides import Override
from zoo.models.stack import Stack
from zoo.parts.attention import Gaussian, MultiHead
from zoo.parts.backend import Tiled
from zoo.parts.block import Memory, PreNorm
from zoo.parts.ffn import MoE, aux_losses
from zoo.parts.position import T5, ALiBi, Extent, RoPE
from zoo.tasks.lm import CausalLM

double = pytest.mark.usefixtures("double")
HALF = partial(MixtureOfDepths, capacity=0.5)


def hiding(net, x, valid=None):
    """What a stack of MixtureOfDepths gives, every token computed and the keys of those not selected hidden."""
    valid = torch.ones(x.shape[:2], dtype=torch.bool) if valid is None else valid
    for block in net.blocks:
        weight = (x * block.router.weight[0]).sum(-1)
        selected = torch.zeros_like(valid)
        for row in range(len(x)):
            places = valid[row].nonzero()[:, 0].tolist()
            if net.causal and not net.training:
                best = [t for t in places if weight[row, t] > 0]
            else:
                best = sorted(places, key=lambda t: -weight[row, t].item())[: math.ceil(block.capacity * len(places))]
            selected[row, best] = True
        stream = x
        for branch in (block.attend, block.ffn):
            options = {"pattern": net.pattern(selected), "position": net.position} if branch is block.attend else {}
            stream = stream + branch.part(branch.norm(stream), **options)
        x = torch.where(selected[..., None], x + weight[..., None] * (stream - x), x)
    return net.norm(x)


@double
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("position", [RoPE, ALiBi, T5])
def test_it_is_attention_among_the_selected_tokens(train, causal, position):
    net = Stack(Extent((40,), causal=causal), dim=16, heads=2, depth=2, position=position, block=HALF, padded=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    net.train(train)
    x, valid = torch.randn(3, 9, 16), torch.arange(9) < torch.tensor([[9], [5], [8]])
    for pad_left, mask in ((False, None), (False, valid), (True, valid.flip(1))):
        real = torch.ones(3, 9, dtype=torch.bool) if mask is None else mask
        gap = (net(x, mask) - hiding(net, x, mask))[real].abs().max()
        assert gap < 1e-10, (pad_left, mask)


@double
@torch.no_grad()
@pytest.mark.parametrize("options", [
    {}, {"position": ALiBi}, {"window": 4}, {"attention": GatedAttention}, {"attention": Differential},
    {"attention": partial(MultiHead, kv_heads=1)}, {"ffn": MoE},
    {"overrides": [Override(layers="every 2nd", block=PreNorm, attention=MLA)]},
    {"overrides": [Override(layers="first", block=HyperConnections, attention=ValueResidual)]},
], ids=str)  # fmt: skip
def test_every_way_of_decoding_is_one_function(options):
    net = causal_stack(**{"block": HALF, "depth": 4, **options}, padded=True)
    check_decoding(net)
    x = torch.randn(4, 18, 16)
    shares = [
        (block.router(x) > 0).double().mean().item() for block in net.blocks if isinstance(block, MixtureOfDepths)
    ]
    assert all(0 < share < 1 for share in shares)  # some tokens are computed, and some are not


@double
@torch.no_grad()
def test_a_memory_is_looked_at_by_the_selected_tokens_alone():
    net = Stack(Extent((40,), causal=True), cross=True, dim=16, heads=2, depth=2, block=HALF, padded=True)
    for parameter in net.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    net.eval()
    x, memory = torch.randn(2, 9, 16), Memory(torch.randn(2, 6, 16), torch.arange(6) < torch.tensor([[6], [4]]))
    whole, caches = net(x, memory=memory), net.caches(9)
    steps = [net(x[:, a:b], memory=memory, caches=caches) for a, b in ((0, 4), (4, 5), (5, 6), (6, 9))]
    assert_close(torch.cat(steps, 1), whole, atol=1e-10, rtol=0)
    alone = net(x[1:], memory=Memory(memory.states[1:, :4]))
    assert_close(alone[0], whole[1], atol=1e-10, rtol=0)


@double
def test_recomputed_blocks_have_the_same_gradients():
    grads = []
    for recompute in (False, True):
        torch.manual_seed(0)
        net = causal_stack(block=HALF, depth=3, recompute=recompute, dropout=0.2)
        torch.manual_seed(1)
        out = net.train()(torch.randn(2, 9, 16))
        (out.square().mean() + sum(aux_losses(net))).backward()
        grads.append({name: parameter.grad for name, parameter in net.named_parameters()})
    for name, grad in grads[0].items():
        assert_close(grads[1][name], grad, atol=1e-12, rtol=0)


@torch.no_grad()
def test_a_cache_holds_the_computed_tokens_alone():
    net = causal_stack(length=200, block=HALF, depth=1)
    x, caches = torch.randn(1, 200, 16), net.caches(200)
    for t in range(200):
        net(x[:, t : t + 1], caches=caches)
    computed = int((net.blocks[0].router(x) > 0).sum())
    assert caches[0].own.length == computed < 150
    assert caches[0].own._k.size(2) <= 2 * computed


@torch.no_grad()
def test_no_token_costs_nothing():
    net, x = causal_stack(block=HALF, depth=1), torch.randn(2, 5, 16)
    net.blocks[0].router.weight.zero_()
    net.blocks[0].attend.part.register_forward_hook(lambda *_: pytest.fail("attention runs for no token"))
    assert torch.equal(net(x), net.norm(x))


def flops(net, x):
    """Operations of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        net(x).square().mean().backward()
    return counter.get_total_flops()


def test_training_costs_the_share_of_tokens_that_are_computed():
    x = torch.randn(2, 64, 16)
    usual = flops(causal_stack(length=64, depth=4).train(), x)
    for capacity in (0.125, 0.25):
        routed = causal_stack(length=64, depth=4, block=partial(MixtureOfDepths, capacity=capacity)).train()
        share = flops(routed, x) / usual
        assert share < 1.1 * capacity  # attention's share of the cost falls with its square
        half = causal_stack(length=64, depth=4, overrides=[
            Override(layers="every 2nd", block=partial(MixtureOfDepths, capacity=capacity))])  # fmt: skip
        assert flops(half.train(), x) / usual < 0.5 + 0.55 * capacity


def test_the_loss_of_the_router_makes_evaluation_compute_the_share_of_training():
    net = causal_stack(block=partial(MixtureOfDepths, capacity=0.25), depth=1)
    block, x = net.blocks[0], torch.randn(32, 24, 16)
    x[..., 0] = 1.0  # a threshold other than 0 needs a constant
    optimizer = torch.optim.Adam(block.router.parameters(), lr=0.02)
    for _ in range(300):
        net.train()(x)
        (loss,) = aux_losses(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    share = (block.router(x) > 0).double().mean().item()
    assert 0.2 < share < 0.3
    assert aux_losses(net) == []


def test_the_loss_of_the_router_is_the_mean_over_calls():
    net, single = causal_stack(block=HALF, depth=1).train(), []
    batches = torch.randn(3, 2, 12, 16)
    for batch in batches:
        net(batch)
        single += aux_losses(net)
    for batch in batches:
        net(batch)
    assert_close(aux_losses(net), [sum(single) / 3])


@pytest.mark.parametrize(("options", "vector"), [
    ({"attention": Differential}, "vectors"), ({"attention": GatedDeltaNet}, "kernel"),
    ({"attention": Mamba2}, "kernel"), ({"block": HyperConnections}, "mixing"),
])  # fmt: skip
def test_numbers_for_each_feature_or_head_do_not_decay(options, vector):
    task = CausalLM(9, 8, dim=16, depth=1, heads=2, **options)
    (group,) = (group for group in task.make_optimizer().param_groups if group["weight_decay"] == 0)
    assert any(name.endswith(f".{vector}") for name in group["param_names"])


@pytest.mark.parametrize(("attention", "writer"), [(GatedDeltaNet, "write"), (Mamba2, "write"), (MLA, "out")])
def test_each_matrix_that_writes_into_the_stream_is_scaled_and_no_other(attention, writer):
    options = {"dim": 64, "depth": 8, "heads": 4, "attention": attention, "init": GPT2}
    net = LanguageModel(9, 8, **options, overrides=[Override(layers="last", attention=MultiHead)])
    for name, module in net.stack.blocks.named_modules():
        if isinstance(module, nn.Linear):
            writes = name.endswith((".out", "ffn.part.down", f".{writer}"))
            assert module.weight.std().item() == pytest.approx(0.02 / (4 if writes else 1), rel=0.15), name


@pytest.mark.parametrize("mixer", [GatedDeltaNet, Mamba2])
@pytest.mark.parametrize("block", [LayerScale, HyperConnections, DropPath])
def test_blocks_take_mixers_whose_last_matrix_has_another_name(block, mixer):
    x = torch.randn(2, 5, 16)
    assert causal_stack(block=block, attention=mixer)(x).shape == x.shape


@pytest.mark.parametrize(("options", "words"), [
    ({"capacity": 0.0}, r"capacity in \(0, 1\], got 0.0"), ({"capacity": 1.5}, r"capacity in \(0, 1\], got 1.5"),
])  # fmt: skip
def test_another_capacity_is_refused(options, words):
    with pytest.raises(UsageError, match=words):
        causal_stack(block=partial(MixtureOfDepths, **options))


@pytest.mark.parametrize("options", [
    {"attention": MLA}, {"attention": ValueResidual}, {"backend": Tiled}, {"attention": Gaussian, "backend": Tiled},
])  # fmt: skip
def test_what_takes_no_tokens_at_any_places_is_refused(options):
    with pytest.raises(UsageError, match="computes tokens at any places, which attention"):
        causal_stack(block=MixtureOfDepths, **options)
