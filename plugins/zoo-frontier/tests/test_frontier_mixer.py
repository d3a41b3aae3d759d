"""Chunked and recurrent forms agree, with each other and with loops over numbers; decoding needs one state."""

import math
from functools import partial

import pytest
import torch
from frontier_measures import causal_stack, decoding_gap, padded_decoding_gap, padding_gap
from torch.testing import assert_close
from zoo_frontier.mixer import GatedDeltaNet, Mamba2, linear_chunks, linear_step

from zoo.errors import UsageError
from zoo.finetuning.weight_transfer import transfer_weights
from zoo.models.initialization import initialize
from zoo.models.language import LanguageModel
from zoo.models.layer_overrides import Override
from zoo.parts.attention import MultiHead
from zoo.parts.lora import adapt, merge
from zoo.parts.pattern import Pattern

double = pytest.mark.usefixtures("double")


def inputs(T, delta):
    q, k = torch.randn(2, 2, 3, T, 4)
    v, g, S = torch.randn(2, 3, T, 5), -torch.rand(2, 3, T), torch.randn(2, 3, 4, 5)
    return q, torch.nn.functional.normalize(k, dim=-1), v, g, torch.rand(2, 3, T) if delta else None, S


@double
@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("T", [1, 7, 32, 33, 100])
def test_chunks_are_the_recurrence(T, delta):
    arguments = inputs(T, delta)
    assert_close(linear_chunks(*arguments), linear_step(*arguments), atol=1e-10, rtol=0)


@double
@pytest.mark.parametrize("delta", [True, False])
def test_the_recurrence_is_its_formula(delta):
    q, k, v, g, beta, S = inputs(6, delta)
    out, last = linear_step(q, k, v, g, beta, S)
    for b in range(2):
        for h in range(3):
            state = S[b, h]
            for t in range(6):
                key, decay = k[b, h, t], g[b, h, t].exp()
                if delta:  # S (1 - beta k k') decay + beta v k', transposed
                    erased = torch.eye(4) - beta[b, h, t] * torch.outer(key, key)
                    state = decay * erased @ state + beta[b, h, t] * torch.outer(key, v[b, h, t])
                else:
                    state = decay * state + torch.outer(key, v[b, h, t])
                assert_close(out[b, h, t], state.T @ q[b, h, t], atol=1e-10, rtol=0)
            assert_close(last[b, h], state, atol=1e-10, rtol=0)


def silu(x):
    return x / (1 + torch.exp(-x))


def build(cls, **options):
    part = initialize(cls(8, 2, **options))
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return part


def convolved(part, x):
    """silu of the sum of the last 4 tokens' features times the kernel, token by token, and the other features."""
    features = [part.read.weight @ token for token in x]
    width, out = part.convolved, []
    for t in range(len(x)):
        total = sum(part.kernel[3 - n] * features[t - n][:width] for n in range(4) if t >= n)
        bias = 0 if part.kernel_bias is None else part.kernel_bias
        out.append((silu(total + bias), features[t][width:]))
    return out


@double
@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [{}, {"negative_eigenvalues": True}, {"key_heads": 1, "key_dim": 3, "value_dim": 5, "eps": 0.1}],
)
def test_the_gated_delta_rule_is_its_formula(options):
    part, x, rows = build(GatedDeltaNet, **options), torch.randn(40, 8), []
    count, width, wide = options.get("key_heads", 2), options.get("key_dim", 4), options.get("value_dim", 4)
    states, strength = [torch.zeros(wide, width) for _ in range(2)], 1 + options.get("negative_eigenvalues", False)
    for features, gates in convolved(part, x):
        q, k = features[: 2 * count * width].view(2, count, width)
        v, heads = features[2 * count * width :].view(2, wide), []
        for h in range(2):
            query, key = q[h * count // 2], k[h * count // 2]
            query = query / (query.square().sum() + 1e-6).sqrt() / math.sqrt(width)
            key = key / (key.square().sum() + 1e-6).sqrt()
            a = math.exp(-math.exp(part.rate[h]) * math.log(1 + math.exp(gates[2 * wide + h] + part.shift[h])))
            b = strength / (1 + math.exp(-gates[2 * wide + 2 + h]))
            states[h] = a * states[h] @ (torch.eye(width) - b * torch.outer(key, key)) + b * torch.outer(v[h], key)
            out = states[h] @ query
            heads.append(out / (out.square().mean() + options.get("eps", 1e-5)).sqrt() * part.head_norm.weight)
        rows.append(part.write.weight @ (torch.cat(heads) * silu(gates[: 2 * wide])))
    assert_close(part(x[None], pattern=Pattern(causal=True))[0], torch.stack(rows), atol=1e-10, rtol=0)


@double
@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"groups": 2, "kernel_bias": True, "eps": 0.1}])
def test_mamba_2_is_its_formula(options):
    part, x = build(Mamba2, state_dim=5, **options), torch.randn(40, 8)
    states, rows, groups = [torch.zeros(8, 5) for _ in range(2)], [], options.get("groups", 1)
    for features, gates in convolved(part, x):
        u, (B, C), heads = features[:16].view(2, 8), features[16:].view(2, groups, 5), []
        for h in range(2):
            d = math.log(1 + math.exp(gates[16 + h] + part.shift[h]))
            b, c = B[h * groups // 2], C[h * groups // 2]
            states[h] = math.exp(-math.exp(part.rate[h]) * d) * states[h] + d * torch.outer(u[h], b)
            heads.append(states[h] @ c + part.skip[h] * u[h])
        y = torch.cat(heads) * silu(gates[:16])
        y = torch.cat([z / (z.square().mean() + options.get("eps", 1e-5)).sqrt() for z in y.chunk(groups)])
        rows.append(part.write.weight @ (y * part.inner_norm.weight))
    assert_close(part(x[None], pattern=Pattern(causal=True))[0], torch.stack(rows), atol=1e-10, rtol=0)


@double
@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_a_softmax_attention_becomes_a_delta_rule_with_its_matrices(kv_heads):
    options = {"length": 16, "dim": 8, "heads": 2, "depth": 2}
    old = causal_stack(**options, attention=partial(MultiHead, kv_heads=kv_heads))
    new = causal_stack(**options, attention=GatedDeltaNet)
    result = transfer_weights(new, old.state_dict(), "x", old)
    attention, mixer = old.blocks[1].attend.part, new.blocks[1].attend.part
    x, keys = torch.randn(3, 8), kv_heads * 4
    right = (x @ attention.qkv.weight.T).split([8, keys, keys], -1)
    for y, z in zip(mixer.read(x)[:, :24].chunk(3, -1), right, strict=True):
        assert_close(y.unflatten(-1, (2, 4)), z.unflatten(-1, (-1, 4)).expand(3, 2, 4), atol=0, rtol=0)
    assert torch.equal(mixer.write.weight, attention.out.weight)
    x = torch.randn(1, 5, 24)
    assert_close(mixer.convolve(x, None), silu(x), atol=1e-12, rtol=0)
    assert {name.rpartition(".")[2] for name in result.unused} <= {"bias"}
    assert mixer.convert_state(old.blocks[1].ffn.part, {}) == {}


HYBRID = [Override(layers="every 2nd", attention=MultiHead)]


@double
@torch.no_grad()
@pytest.mark.parametrize("overrides", [None, HYBRID], ids=["alone", "hybrid"])
@pytest.mark.parametrize("cls", [
    GatedDeltaNet, partial(GatedDeltaNet, key_heads=1, value_dim=6), partial(GatedDeltaNet, negative_eigenvalues=True),
    partial(Mamba2, state_dim=6), partial(Mamba2, groups=2, kernel_bias=True),
], ids=["GatedDeltaNet", "GatedDeltaNet-keys", "negative", "Mamba2", "Mamba2-groups"])  # fmt: skip
def test_decoding_is_one_pass(cls, overrides):
    net = causal_stack(attention=cls, overrides=overrides)
    assert decoding_gap(net) < 1e-10
    assert padded_decoding_gap(net) < 1e-10
    assert padding_gap(net) < 1e-10
    assert padding_gap(net, pad_left=False) < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("cls", [GatedDeltaNet, Mamba2])
def test_a_state_has_one_size_whatever_the_length(cls):
    net, sizes = causal_stack(length=300, attention=cls), []
    for length in (5, 300):
        caches = net.caches(300)
        net(torch.randn(1, length, 16), caches=caches)
        tensors = [
            tensor for cache in caches for tensor in vars(cache.own).values() if isinstance(tensor, torch.Tensor)
        ]
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in tensors))
        assert len(tensors) == 4
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("build", "words"), [
    (lambda: GatedDeltaNet(10, 4), "dim=10 is not divisible by heads=4"),
    (lambda: GatedDeltaNet(8, 4, kernel=0), "sizes of at least 1, got 0"),
    (lambda: GatedDeltaNet(8, 4, key_heads=3), "=4 is not divisible by heads=3"),
    (lambda: Mamba2(8, 4, state_dim=0), "sizes of at least 1, got 0"),
    (lambda: Mamba2(8, 4, groups=3), "=4 is not divisible by heads=3"),
])  # fmt: skip
def test_impossible_sizes_are_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


@torch.no_grad()
@pytest.mark.parametrize("mixer", [GatedDeltaNet, Mamba2])
def test_adapters_change_every_matrix_of_a_mixer_and_can_be_merged(mixer):
    net = LanguageModel(11, 16, dim=16, depth=1, heads=2, attention=mixer).eval()
    tokens = torch.arange(7)[None]
    before = net(tokens)
    for name in adapt(net, lambda name: "blocks" in name, 2, 4.0):
        torch.nn.init.normal_(net.get_submodule(name).up)
    adapted = net(tokens)
    assert not torch.allclose(adapted, before, atol=1e-3)
    torch.testing.assert_close(merge(net)(tokens), adapted, rtol=1e-4, atol=1e-5)
