"""With torch's weights copied in, our layers compute what torch's layers compute, and send back the same gradients."""

import itertools
import traceback
from functools import partial
from pathlib import Path

import pytest
import torch
from small import names, spread
from small import stack as small_stack
from torch import nn
from torch.testing import assert_close

from tests.covering import covering_params
from tests.rows import try_each
from zoo import registry
from zoo.errors import UsageError
from zoo.models import LanguageModel
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Naive, Tiled
from zoo.parts.block import Memory, PostNorm, PreNorm
from zoo.parts.ffn import MLP
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, Learned, NoPosition

pytestmark = pytest.mark.usefixtures("double")
DIM, HEADS, HIDDEN, DEPTH, T, S = 16, 4, 24, 3, 5, 7
VALID = torch.arange(S) < torch.tensor([[7], [4], [5]])
BACKENDS = (Naive, SDPA, Tiled)
backends = pytest.mark.parametrize("backend", BACKENDS)
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)


def copy_attention(ours, torchs):
    for mine, theirs in (
        (ours.qkv, (torchs.in_proj_weight, torchs.in_proj_bias)),
        (ours.out, torchs.out_proj.parameters()),
    ):
        for a, b in zip(mine.parameters(), theirs, strict=True):
            a.data.copy_(b.data)
    return [(ours.qkv.weight, torchs.in_proj_weight), (ours.qkv.bias, torchs.in_proj_bias),
            (ours.out.weight, torchs.out_proj.weight), (ours.out.bias, torchs.out_proj.bias)]  # fmt: skip


def copy(ours, torchs):
    pairs = list(zip(ours.parameters(), torchs.parameters(), strict=True))
    for a, b in pairs:
        a.data.copy_(b.data)
    return pairs


def same(ours, theirs, inputs, pairs):
    """Outputs, gradients of the inputs, and gradients of all weights agree."""
    assert_close(ours, theirs, atol=1e-10, rtol=0)
    weight = torch.randn_like(ours)
    ours_grads = torch.autograd.grad((ours * weight).sum(), [*inputs, *(a for a, _ in pairs)])
    their_grads = torch.autograd.grad((theirs * weight).sum(), [*inputs, *(b for _, b in pairs)])
    for a, b in zip(ours_grads, their_grads, strict=True):
        assert_close(a, b, atol=1e-10, rtol=0)


@backends
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("valid", [None, VALID[:, :T]])
def test_self_attention_is_torchs(backend, causal, valid):
    ours, torchs = MultiHead(DIM, HEADS, backend()), spread_torch(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    pairs, x = copy_attention(ours, torchs), torch.randn(3, T, DIM, requires_grad=True)
    theirs, weights = torchs(
        x, x, x, attn_mask=FUTURE if causal else None, key_padding_mask=None if valid is None else ~valid,
        average_attn_weights=False,
    )  # fmt: skip
    pattern = Pattern(causal=causal, valid=valid)
    same(ours(x, pattern=pattern), theirs, [x], pairs)
    assert_close(ours.weights(x, pattern=pattern), weights, atol=1e-10, rtol=0)


@backends
@pytest.mark.parametrize("valid", [None, VALID])
def test_cross_attention_is_torchs(backend, valid):
    ours, torchs = MultiHead(DIM, HEADS, backend()), spread_torch(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    pairs = copy_attention(ours, torchs)
    x, memory = torch.randn(3, T, DIM, requires_grad=True), torch.randn(3, S, DIM, requires_grad=True)
    theirs, _ = torchs(x, memory, memory, key_padding_mask=None if valid is None else ~valid)
    same(ours(x, memory, pattern=Pattern(valid=valid)), theirs, [x, memory], pairs)


def spread_torch(net):
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net


def twins(cross, causal, prenorm, activation, backend):
    """Our stack and torch's, with the same weights."""
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": prenorm}
    layer = (nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer)(DIM, HEADS, HIDDEN, **options)
    last = nn.LayerNorm(DIM) if prenorm else None
    if cross:
        torchs = nn.TransformerDecoder(layer, DEPTH, last)
    else:
        torchs = nn.TransformerEncoder(layer, DEPTH, last, enable_nested_tensor=False)
    spread_torch(torchs)
    ours = Stack(
        Extent((9,), causal=causal), cross=cross, dim=DIM, depth=DEPTH, heads=HEADS, hidden=HIDDEN,
        block=PreNorm if prenorm else PostNorm,
        position=NoPosition, backend=backend, ffn=partial(MLP, activation=activation),
    )  # fmt: skip
    pairs = copy(ours.norm, torchs.norm) if prenorm else []
    for block, other in zip(ours.blocks, torchs.layers, strict=True):
        branches = [block.attend, block.cross, block.ffn] if cross else [block.attend, block.ffn]
        pairs += copy_attention(block.attend.part, other.self_attn)
        if cross:
            pairs += copy_attention(block.cross.part, other.multihead_attn)
        pairs += copy(block.ffn.part.up, other.linear1) + copy(block.ffn.part.down, other.linear2)
        for number, branch in enumerate(branches, 1):
            pairs += copy(branch.norm, getattr(other, f"norm{number}"))
    assert len(pairs) == len(list(ours.parameters())) == len(list(torchs.parameters()))
    return ours, torchs, pairs


@try_each(itertools.product(BACKENDS, [True, False], ["relu", "gelu"], ["", "causal", "valid", "causal valid"]))
def test_an_encoder_is_torchs(backend, prenorm, activation, masks):
    ours, torchs, pairs = twins(False, "causal" in masks, prenorm, activation, backend)
    x, valid = torch.randn(3, T, DIM, requires_grad=True), VALID[:, :T] if "valid" in masks else None
    theirs = torchs(x, FUTURE if "causal" in masks else None, None if valid is None else ~valid)
    same(ours(x, valid), theirs, [x], pairs)


@backends
@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("valid", [None, VALID])
def test_a_decoder_is_torchs(backend, prenorm, activation, valid):
    ours, torchs, pairs = twins(True, True, prenorm, activation, backend)
    x, memory = torch.randn(3, T, DIM, requires_grad=True), torch.randn(3, S, DIM, requires_grad=True)
    theirs = torchs(x, memory, FUTURE, memory_key_padding_mask=None if valid is None else ~valid)
    same(ours(x, memory=Memory(memory, valid)), theirs, [x, memory], pairs)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_language_model_is_embedding_stack_and_output_matrix(tie, scale):
    model = LanguageModel(11, 9, tie=tie, scale_embedding=scale != 1, dim=DIM, depth=1, heads=2)
    model, x = spread(model), torch.randint(11, (2, 5))
    output = model.embedding.weight if tie else model.head.weight
    states = model.stack(torch.nn.functional.one_hot(x, 11).double() @ model.embedding.weight * scale)
    same(model(x), states @ output.T, [], [(parameter, parameter) for parameter in model.parameters()])
    assert sum("embedding" in n or "head" in n for n in model.state_dict()) == (1 if tie else 2)


@pytest.mark.parametrize(
    ("attention", "backend", "rubbish", "dtype"),
    covering_params(
        names("attention"), names("backend"), [float("nan"), float("inf"), 1e30], [torch.float64, torch.bfloat16]
    ),
)
def test_padding_may_hold_anything(rubbish, backend, attention, dtype):
    """States that come from elsewhere, such as a memory, may be nan where nobody was asked to compute them."""
    parts = {"attention": registry.get("attention", attention), "backend": registry.get("backend", backend)}
    valid = torch.tensor([[True, True, True, False], [False, True, True, False]])
    torch.manual_seed(0)
    results = []
    try:
        net = small_stack(Extent((8,)), cross=True, padded=True, position=Learned, **parts).to(dtype).train()
    except UsageError as error:
        pytest.skip(str(error))
    x, states = torch.randn(2, 2, 4, 16, dtype=dtype)
    for filling in (0.5, rubbish):
        net.zero_grad()
        here, there = (y.masked_fill(~valid[..., None], filling).requires_grad_() for y in (x, states))
        out = net(here, valid, Memory(there, valid))[valid]
        out.square().sum().backward()
        results.append([out, here.grad[valid], there.grad[valid], *(p.grad for p in net.parameters())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_few_calls_stand_between_a_model_and_the_kernel_of_its_attention(monkeypatch):
    kernel, calls = torch.nn.functional.scaled_dot_product_attention, []

    def recorded(*args, **options):
        calls.append([Path(frame.filename) for frame in traceback.extract_stack()])
        return kernel(*args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    LanguageModel(8, T, dim=DIM, depth=2, heads=HEADS)(torch.zeros(1, T, dtype=torch.long))
    folder = Path(registry.__file__).parent
    # the model, its stack; a block, how it joins a branch and calls its part; the attention, its function, its backend
    assert [sum(folder in path.parents for path in call) for call in calls] == [8, 8]
