"""Low-rank adapters: exact, merged without loss, and alone in learning."""

import pytest
import torch
from torch import nn

from zoo.errors import UsageError
from zoo.models import LanguageModel, Seq2Seq
from zoo.parts.lora import LowRank, adapt, merge, merge_tensors

TINY = {"dim": 16, "depth": 2, "heads": 2}


@pytest.mark.parametrize("bias", [True, False])
def test_an_adapter_is_its_formula_and_begins_as_nothing(double, bias):
    linear, x = nn.Linear(12, 7, bias=bias), torch.randn(5, 3, 12)
    part = LowRank(linear, rank=4, alpha=6.0)
    assert torch.equal(part(x), linear(x))
    nn.init.normal_(part.up)
    slow = torch.zeros(5, 3, 7)
    for i in range(7):
        for j in range(12):
            delta = sum(part.up[i, r] * part.down[r, j] for r in range(4)) * 6.0 / 4
            slow[..., i] += x[..., j] * (linear.weight[i, j] + delta)
    slow = slow if not bias else slow + linear.bias
    torch.testing.assert_close(part(x), slow, atol=1e-12, rtol=0)
    torch.testing.assert_close(part.merged()(x), slow, atol=1e-12, rtol=0)


def shaken(net):
    for module in net.modules():
        if isinstance(module, LowRank):
            nn.init.normal_(module.up, std=0.3)
    return net.eval()


def test_a_merged_model_says_the_same(double):
    net = LanguageModel(40, 16, **TINY)
    names = [name for name, _ in net.named_parameters()]
    assert len(adapt(net, lambda name: "blocks" in name, 4, 8.0)) == 8
    tokens = torch.randint(40, (3, 9))
    adapted = shaken(net)(tokens)
    assert not torch.allclose(adapted, LanguageModel(40, 16, **TINY).eval()(tokens))
    torch.testing.assert_close(merge(net)(tokens), adapted, atol=1e-12, rtol=0)
    assert [name for name, _ in net.named_parameters()] == names


@pytest.mark.parametrize("selects", ["", "blocks", "down", "embedding"])
def test_saved_tensors_are_merged_to_those_of_the_merged_model(selects):
    """A feed-forward has layers called up and down, as an adapter has matrices."""
    net = shaken(LanguageModel(40, 16, **TINY))
    adapt(net, lambda name: bool(selects) and selects in name, 4, 8.0)
    saved = {name: tensor.clone() for name, tensor in shaken(net).state_dict().items()}
    merged = merge(net).state_dict()
    result = merge_tensors(saved, 4, 8.0)
    assert list(result) == list(merged)
    assert all(torch.equal(tensor, merged[name]) for name, tensor in result.items())


def test_parts_that_read_the_matrix_themselves_see_the_adapter(double):
    """Cross-attention takes rows of the fused projection."""
    net = Seq2Seq(30, 30, 16, **TINY).eval()
    adapt(net, lambda name: name.endswith("cross.part.qkv"), 4, 8.0)
    source, target = torch.randint(30, (2, 5)), torch.randint(30, (2, 4))
    before = net(source, target)
    adapted = shaken(net)(source, target)
    assert not torch.allclose(before, adapted)
    torch.testing.assert_close(merge(net)(source, target), adapted, atol=1e-12, rtol=0)


def test_only_the_adapter_learns():
    part = LowRank(nn.Linear(6, 5), 2)
    part(torch.randn(3, 6)).sum().backward()
    assert {name for name, p in part.named_parameters() if p.requires_grad} == {"down", "up"}
    assert part.linear.weight.grad is None
    assert part.up.grad.abs().sum() > 0


@pytest.mark.parametrize("rank", [0, 6])
def test_a_rank_that_the_matrix_cannot_have_is_refused(rank):
    with pytest.raises(UsageError, match="rank is"):
        LowRank(nn.Linear(6, 5), rank)
    with pytest.raises(UsageError, match=r"^1: rank is"):
        adapt(nn.Sequential(nn.ReLU(), nn.Linear(6, 5)), lambda name: True, rank, 16.0)


@pytest.mark.parametrize("key_bias", [True, False])
@pytest.mark.parametrize("adapters", ["qkv", "blocks", "ffn"])
def test_merged_layers_have_the_class_that_they_had(adapters, key_bias):
    """What serves a class of linear layers, such as eight bits, serves a model whose adapters are merged as well."""
    from functools import partial

    from zoo.models.language import LanguageModel
    from zoo.parts.disentangled import Disentangled
    from zoo.parts.position import NoPosition

    attention = partial(Disentangled, key_bias=key_bias)
    net = LanguageModel(16, 8, position=NoPosition, attention=attention, **TINY).eval()
    before = {name: type(module) for name, module in net.named_modules()}
    names = adapt(net, lambda name: adapters in name, 2, 16.0)
    assert any("qkv" in name for name in names) == (adapters != "ffn")
    for name in names:
        torch.nn.init.normal_(net.get_submodule(name).up)
    tokens = torch.randint(16, (2, 6))
    right = net(tokens)
    merge(net)
    assert {name: type(module) for name, module in net.named_modules()} == before
    torch.testing.assert_close(net(tokens), right, rtol=1e-4, atol=1e-4)
