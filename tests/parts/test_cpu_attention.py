"""The products of attention on a CPU equal the textbook with every feature, with and without gradients."""

import contextlib

import pytest
import torch
from torch.testing import assert_close

from zoo.parts import cpu_attention
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern

VALID = torch.tensor([[True, True, False, True, True], [False, False, True, True, True]])
FEATURES = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 2},
    "padding": {"valid": VALID},
    "bias": {"bias": lambda head, query, key: 0.3 * (head + 1) * (query - 2 * key)},
    "bias, mask": {"bias": lambda head, query, key: 0.3 * (head + 1) * (query - 2 * key), "causal": True},
}


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.no_grad], ids=["training", "no_grad"])
@pytest.mark.parametrize("scores", [1, 75, 200, 2**20], ids=["one head", "three heads", "a text", "all"])
@pytest.mark.usefixtures("double")
def test_it_is_the_textbook(fields, scale, context, scores, monkeypatch):
    monkeypatch.setattr(cpu_attention, "CACHE", 4 * scores)
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 5, 6), torch.randn(2, 2, 5, 3)
    with context():
        out = cpu_attention.attention(q, k, v, Pattern(**fields), scale=scale)
    assert_close(out, Naive()(q, k, v, Pattern(**fields), scale=scale), atol=1e-10, rtol=0)


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("scores", [1, 75, 100], ids=["one head", "three heads", "a text"])
@pytest.mark.usefixtures("double")
def test_gradients_of_groups_of_heads_are_those_of_all_at_once(fields, scores, monkeypatch):
    tensors = [torch.randn(2, 4, 5, width).requires_grad_() for width in (6, 6, 3)]
    table = torch.randn(4, 5, 5).requires_grad_()
    fields = {**fields, "bias": lambda head, query, key: table[head, query, key]} if "bias" in fields else fields
    results = []
    for size in (2**20, scores):
        monkeypatch.setattr(cpu_attention, "CACHE", 4 * size)
        out = cpu_attention.attention(*tensors, Pattern(**fields))
        parameters = [*tensors, *[table] * ("bias" in fields)]
        results.append((out, *torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), parameters)))
    for whole, part in zip(*results, strict=True):
        assert_close(part, whole, atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.usefixtures("double")
def test_second_derivatives_and_torch_func_are_those_of_the_textbook(fields):
    """Both take another way through the scores than a training step."""
    q, k, v = (torch.randn(2, 4, 5, width, requires_grad=True) for width in (6, 6, 3))

    def loss(attend, query):
        return attend(query, k, v, Pattern(**fields)).square().sum()

    results = []
    for attend in (cpu_attention.attention, Naive()):
        (first,) = torch.autograd.grad(loss(attend, q), q, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), (q, k, v))
        by_function, value = torch.func.grad_and_value(lambda query, attend=attend: loss(attend, query))(q)
        results.append((first, *second, by_function, value))
    for one, other in zip(*results, strict=True):
        assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("double")
def test_dropout_in_groups_of_heads_has_the_gradient_of_its_own_noise(monkeypatch):
    monkeypatch.setattr(cpu_attention, "CACHE", 4 * 75)
    tensors = [torch.randn(2, 4, 5, 2).requires_grad_() for _ in range(3)]

    def attend(q, k, v):
        torch.manual_seed(3)
        return cpu_attention.attention(q, k, v, Pattern(causal=True), dropout=0.4)

    active = cpu_attention.attention(*tensors[:2], torch.eye(5).expand(2, 4, 5, 5), Pattern(), dropout=0.4) != 0
    assert active.double().mean() == pytest.approx(0.6, abs=0.15)
    assert len({tuple(head.flatten().tolist()) for head in active.flatten(0, 1)}) == 8  # other noise for each head
    assert torch.autograd.gradcheck(attend, tensors)


def test_groups_cover_all_heads_once():
    for texts, heads, size in ((1, 1, 5), (3, 4, 2), (3, 4, 4), (5, 2, 5), (2, 6, 4), (7, 3, 100)):
        places = torch.zeros(texts * heads, dtype=torch.int64)
        for group in groups_for(size, texts, heads):
            places[group.rows] += 1
            assert places[group.rows].numel() == group.shape[0] * group.shape[1] <= max(1, size)
            expected = torch.arange(texts * heads).view(texts, heads)[group.texts, group.heads].flatten()
            assert torch.equal(torch.arange(texts * heads)[group.rows], expected)
        assert (places == 1).all()


def groups_for(size, texts, heads):
    """The groups of heads where the scores of ``size`` heads fit into the cache."""
    queries = 1024
    keys = cpu_attention.CACHE // (4 * queries * size)
    return cpu_attention.groups_in_cache((texts, heads), queries, keys)
