"""Attentions against their papers' formulas, head by head and key by key, and in decoding."""

import math
from functools import partial

import pytest
import torch
from frontier_measures import causal_stack, decoding_gap, padded_decoding_gap, padding_gap
from torch.testing import assert_close
from zoo_frontier.attention import MLA, Differential, GatedAttention, Sinks, Softcap, ValueResidual
from zoo_frontier.position import XPos

from zoo.conformance.sequence_checks import check_decoding
from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.models.layer_overrides import Override
from zoo.parts.backend import SDPA, Naive, Tiled
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, RoPE

double = pytest.mark.usefixtures("double")
PARTS = [MLA, GatedAttention, Softcap, Sinks, Differential, ValueResidual]
T, DIM, HEADS = 6, 16, 2
XPOS = partial(XPos, scale_base=4.0)


def build(cls, **options):
    part = initialize(cls(DIM, HEADS, **options)).eval()
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return part


def turned(vector, place, base=10000.0):
    """A vector of pairs (i, i + D/2), each turned by place * base^(-2i/D)."""
    half = len(vector) // 2
    out = vector.clone()
    for i in range(half):
        angle = place * base ** (-2 * i / len(vector))
        out[i] = vector[i] * math.cos(angle) - vector[i + half] * math.sin(angle)
        out[i + half] = vector[i] * math.sin(angle) + vector[i + half] * math.cos(angle)
    return out


def shares(scores):
    """e^score over the sum of them, one by one."""
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def heads_of(part, x):
    """Queries, keys and values (T, H, D) of a part with the base's fused matrix, turned by RoPE."""
    q, k, v = (part.qkv.weight @ token + (0 if part.qkv.bias is None else part.qkv.bias) for token in x), None, None
    rows = [row.view(3, HEADS, -1) for row in q]
    q, k, v = (torch.stack([row[n] for row in rows]) for n in range(3))
    return q, k, v


def run(part, x):
    return part(x[None], pattern=Pattern(causal=True), position=RoPE(DIM, HEADS, Extent((64,))))[0]


@double
@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"value_dim": 5}, {"query_latent_dim": 6, "scale": 0.7, "value_dim": 9}])
def test_latent_attention_is_its_formula(options):
    part, x = build(MLA, latent_dim=10, rope_dim=4, **options), torch.randn(T, DIM)
    wide = options.get("value_dim", 8)
    rows = []
    for t in range(T):
        heads = []
        for h in range(HEADS):
            latent = x[t]
            if "query_latent_dim" in options:
                latent = part.query_down.weight @ x[t]
                latent = latent / (latent.square().mean() + 1e-6).sqrt() * part.query_latent_norm.weight
            q = (part.query.weight @ latent).view(HEADS, 12)[h]
            scores, values = [], []
            for s in range(t + 1):
                down = part.down.weight @ x[s]
                c = down[:10] / (down[:10].square().mean() + 1e-6).sqrt() * part.norm.weight
                k = part.up.weight[h * 8 : (h + 1) * 8] @ c
                v = part.up.weight[HEADS * 8 + h * wide : HEADS * 8 + (h + 1) * wide] @ c
                product = q[:8] @ k + turned(q[8:], t) @ turned(down[10:], s)
                scores.append((product * options.get("scale", 1 / math.sqrt(12))).item())
                values.append(v)
            heads.append(sum(w * v for w, v in zip(shares(scores), values, strict=True)))
        rows.append(part.out.weight @ torch.cat(heads))
    assert_close(run(part, x), torch.stack(rows), atol=1e-10, rtol=0)


@double
@torch.no_grad()
def test_a_gate_multiplies_each_number_of_a_head():
    part, x = build(GatedAttention), torch.randn(T, DIM)
    q, k, v = heads_of(part, x)
    rows = []
    for t in range(T):
        gate = 1 / (1 + torch.exp(-(part.gate.weight @ x[t] + part.gate.bias)))
        heads = []
        for h in range(HEADS):
            scores = [(turned(q[t, h], t) @ turned(k[s, h], s)).item() / math.sqrt(8) for s in range(t + 1)]
            heads.append(sum(w * v[s, h] for s, w in enumerate(shares(scores))))
        rows.append(part.out.weight @ (torch.cat(heads) * gate) + part.out.bias)
    assert_close(run(part, x), torch.stack(rows), atol=1e-10, rtol=0)


@double
@torch.no_grad()
def test_a_cap_bounds_the_scores():
    part, x = build(Softcap, cap=1.5), torch.randn(T, DIM)
    q, k, v = heads_of(part, x)
    rows = []
    for t in range(T):
        heads = []
        for h in range(HEADS):
            scores = [1.5 * math.tanh((turned(q[t, h], t) @ turned(k[s, h], s)).item() / math.sqrt(8) / 1.5)
                      for s in range(t + 1)]  # fmt: skip
            heads.append(sum(w * v[s, h] for s, w in enumerate(shares(scores))))
        rows.append(part.out.weight @ torch.cat(heads) + part.out.bias)
    assert_close(run(part, x), torch.stack(rows), atol=1e-10, rtol=0)


@double
@torch.no_grad()
def test_a_sink_takes_weight_and_gives_nothing():
    part, x = build(Sinks), torch.randn(T, DIM)
    q, k, v = heads_of(part, x)
    rows = []
    for t in range(T):
        heads = []
        for h in range(HEADS):
            scores = [(turned(q[t, h], t) @ turned(k[s, h], s)).item() / math.sqrt(8) for s in range(t + 1)]
            weights = shares([*scores, part.sink[h].item()])[:-1]
            heads.append(sum(w * v[s, h] for s, w in enumerate(weights)))
        rows.append(part.out.weight @ torch.cat(heads) + part.out.bias)
    assert_close(run(part, x), torch.stack(rows), atol=1e-10, rtol=0)


@double
@torch.no_grad()
def test_differential_attention_is_its_formula():
    part, x = build(Differential, lambda_init=0.3), torch.randn(T, DIM)
    q, k, v = heads_of(part, x)
    a, b, c, d = part.vectors
    share = math.exp(a @ b) - math.exp(c @ d) + 0.3
    rows = []
    for t in range(T):
        heads = []
        for h in range(HEADS):
            halves = []
            for half in ([0, 2, 4, 6], [1, 3, 5, 7]):
                scores = [(turned(q[t, h], t)[half] @ turned(k[s, h], s)[half]).item() / 2 for s in range(t + 1)]
                halves.append(sum(w * v[s, h] for s, w in enumerate(shares(scores))))
            out = halves[0] - share * halves[1]
            heads.append(0.7 * out / (out.square().mean() + 1e-5).sqrt() * part.head_norm.weight)
        rows.append(part.out.weight @ torch.cat(heads))
    assert_close(run(part, x), torch.stack(rows), atol=1e-10, rtol=0)


def test_a_layer_has_the_papers_share():
    net = causal_stack(attention=Differential, depth=3)
    assert [block.attend.part.lambda_init for block in net.blocks] == [
        pytest.approx(0.8 - 0.6 * math.exp(-0.3 * n)) for n in range(3)
    ]


@double
@torch.no_grad()
@pytest.mark.parametrize("learned", [True, False])
def test_values_are_mixed_with_those_of_the_first_layer(learned):
    net = causal_stack(attention=partial(ValueResidual, share=0.3, learned=learned), depth=3)
    x, first = torch.randn(T, DIM), None
    stream = x
    for number, block in enumerate(net.blocks):
        part = block.attend.part
        q, k, v = heads_of(part, block.attend.norm(stream))
        assert (part.shares is not None) == (learned and number > 0)
        share, own_share = part.shares.tolist() if part.shares is not None else (0.3, 0.7)
        first = v if number == 0 else first
        mixed = v if number == 0 else share * first + own_share * v
        rows = []
        for t in range(T):
            heads = []
            for h in range(HEADS):
                scores = [(turned(q[t, h], t) @ turned(k[s, h], s)).item() / math.sqrt(8) for s in range(t + 1)]
                heads.append(sum(w * mixed[s, h] for s, w in enumerate(shares(scores))))
            rows.append(part.out.weight @ torch.cat(heads) + part.out.bias)
        stream = stream + torch.stack(rows)
        stream = stream + block.ffn.part(block.ffn.norm(stream))
    assert_close(net(x[None])[0], net.norm(stream), atol=1e-10, rtol=0)


@double
@pytest.mark.parametrize("options", [
    {}, {"overrides": [Override(layers="2-3", attention=ValueResidual)], "attention": MLA},
    {"overrides": [Override(layers="1, 3", heads=4)]},
], ids=["every layer", "the last two", "two sizes"])  # fmt: skip
def test_recomputed_layers_have_the_same_gradients_and_decode(options):
    grads = []
    for recompute in (False, True):
        torch.manual_seed(0)
        net = causal_stack(**{"attention": ValueResidual, "depth": 4, **options}, recompute=recompute, dropout=0.2)
        torch.manual_seed(1)
        net.train()(torch.randn(2, 9, DIM)).square().mean().backward()
        grads.append({name: parameter.grad for name, parameter in net.named_parameters()})
    for name, grad in grads[0].items():
        assert grad.abs().max() > 1e-9, name
        assert_close(grads[1][name], grad, atol=1e-12, rtol=0)
    with torch.no_grad():
        check_decoding(net.eval())


@double
@torch.no_grad()
@pytest.mark.parametrize("cls", PARTS)
@pytest.mark.parametrize(
    "options", [{}, {"window": 4}, {"position": ALiBi}, {"position": XPOS}], ids=["plain", "window", "alibi", "xpos"]
)
def test_decoding_is_one_pass(cls, options):
    net = causal_stack(attention=cls, **options)
    assert decoding_gap(net) < 1e-10
    assert padded_decoding_gap(net) < 1e-10
    assert padding_gap(net) < 1e-10
    assert padding_gap(net, pad_left=False) < 1e-10


@double
@torch.no_grad()
@pytest.mark.parametrize("cls", PARTS)
def test_every_backend_computes_the_same(cls):
    part, x = build(cls), torch.randn(1, 40, DIM)
    outs = []
    for backend in (Naive(), Tiled(8), SDPA()):
        part.backend = backend
        if not part.unsupported(frozenset({"causal"})):
            outs.append(part(x, pattern=Pattern(causal=True)))
    assert len(outs) == 2 + (cls not in (Softcap, Sinks))
    for out in outs[1:]:
        assert_close(out, outs[0], atol=1e-10, rtol=0)


@torch.no_grad()
def test_a_cache_of_latents_holds_the_papers_numbers_for_a_token():
    net = causal_stack(length=64, dim=64, heads=4, attention=MLA)
    part, caches = net.blocks[0].attend.part, net.caches(64)
    net(torch.randn(1, 64, 64), caches=caches)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for cache in caches for tensor in vars(cache.own).values() if isinstance(tensor, torch.Tensor)}  # fmt: skip
    assert (part.latent_dim, part.rope_dim) == (64, 8)
    assert sum(storages.values()) / 64 == 2 * (64 + 8) * 4  # layers, numbers of a token, bytes of float32
    assert part.latent_dim + part.rope_dim < 2 * 64  # keys and values of all heads


@pytest.mark.parametrize(("build", "words"), [
    (lambda: MLA(DIM, HEADS, rope_dim=6), "rope_dim that is a multiple of 4, got 6"),
    (lambda: Softcap(DIM, HEADS, cap=0.0), "cap above 0, got 0"),
    (lambda: causal_stack(attention=Softcap, backend=SDPA), "Softcap asks for score_cap, which backend SDPA cannot"),
    (lambda: causal_stack(attention=Sinks, backend=SDPA), "attention Sinks asks for lse, which backend SDPA cannot"),
    (lambda: ValueResidual(DIM, HEADS, share=1.5), r"share in \[0, 1\], got 1.5"),
    (lambda: Differential(12, 2), "heads of a multiple of 4, got dim=12, heads=2"),
    (lambda: Differential(DIM, HEADS, lambda_init=1.0), r"lambda_init in \[0, 1\), got 1"),
    (lambda: causal_stack(attention=Differential, attention_dropout=0.1), "attention_dropout=0.1 drops attention"),
])  # fmt: skip
def test_what_cannot_work_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()
