"""Shaw's attention is the paper's formula on every backend, with a cache too, and says what it cannot take."""

import oracle
import pytest
import torch
from torch.testing import assert_close

from zoo.errors import UsageError
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Flash, Naive, Tiled
from zoo.parts.cache import Cache
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition, RoPE
from zoo.parts.shaw import Shaw

pytestmark = pytest.mark.usefixtures("double")
DIM, HEADS, LENGTH = 12, 3, 11
D = DIM // HEADS
KINDS = {
    "keys": {"max_distance": 4}, "keys and values": {"max_distance": 3, "values": True},
    "one group": {"max_distance": 1, "kv_heads": 1, "values": True, "bias": False},
    "farther than the text": {"max_distance": 20, "kv_heads": 1},
}  # fmt: skip
BACKENDS = {"own": lambda: None, "Naive": Naive, "SDPA": SDPA, "Tiled": lambda: Tiled(5)}
kinds = pytest.mark.parametrize("kind", KINDS)


def build(kind, backend=None, dropout=0.0):
    part = Shaw(DIM, HEADS, backend, dropout, **KINDS[kind])
    torch.manual_seed(1)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return part


def definition(part, x, causal=False, valid=None):
    """Weights and result of the layer for x (B, T, dim), a number at a time."""
    weights, out = torch.zeros(x.size(0), HEADS, x.size(1), x.size(1)), torch.zeros_like(x)
    bias = None if part.qkv.bias is None else part.qkv.bias.tolist()
    values = None if part.distance_values is None else part.distance_values.weight.tolist()
    for b, tokens in enumerate(x.tolist()):
        rows = [oracle.affine(part.qkv.weight.tolist(), bias, token) for token in tokens]
        for h in range(HEADS):
            group = h // (HEADS // part.kv_heads)
            places = h, HEADS + group, HEADS + part.kv_heads + group
            q, k, v = ([row[n * D : (n + 1) * D] for row in rows] for n in places)
            weights[b, h], out[b, :, h * D : (h + 1) * D] = map(
                torch.tensor,
                oracle.shaw(
                    q, k, v, part.distance_keys.weight.tolist(), values, part.max_distance,
                    lambda i, j, b=b: oracle.sees(i, j, causal) and (valid is None or bool(valid[b, j])),
                ),
            )  # fmt: skip
    return weights, out @ part.out.weight.T + (0.0 if part.out.bias is None else part.out.bias)


@kinds
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_the_formula(kind, backend):
    if KINDS[kind].get("values") and backend in ("SDPA", "Tiled"):
        with pytest.raises(UsageError, match=f"needs the weights themselves, which backend {backend} does not give"):
            build(kind, BACKENDS[backend]())
        return
    part, x = build(kind, BACKENDS[backend]()), torch.randn(2, LENGTH, DIM)
    valid = torch.rand(2, LENGTH) < 0.8
    for causal, mask in ((False, None), (True, valid)):
        weights, out = definition(part, x, causal, mask)
        pattern = Pattern(causal=causal, valid=mask)
        assert_close(part.weights(x, pattern=pattern), weights, atol=1e-10, rtol=0)
        assert_close(part(x, pattern=pattern), out, atol=1e-10, rtol=0)


@kinds
def test_queries_after_a_cached_prefix_stand_behind_it(kind):
    part, x, cache = build(kind), torch.randn(2, LENGTH, DIM), Cache(LENGTH)
    whole = part(x, pattern=Pattern(causal=True))
    cuts = ((0, 6), (6, 7), (7, LENGTH))
    steps = [part(x[:, a:b], pattern=Pattern(causal=True, offset=a), cache=cache) for a, b in cuts]
    assert_close(torch.cat(steps, 1), whole, atol=1e-10, rtol=0)


def test_what_it_gives_depends_on_distances_and_not_on_where_a_text_begins():
    part, x = build("keys and values"), torch.randn(1, LENGTH, DIM)
    here, there = (part(x, pattern=Pattern(offset=place, start=place)) for place in (0, 40))
    assert_close(here, there, atol=1e-12, rtol=0)
    assert not torch.allclose(part(x.flip(1), pattern=Pattern()).flip(1), here)


def test_dropped_weights_lose_their_distances_value_too():
    part, x = build("keys and values", dropout=1.0).train(), torch.randn(1, LENGTH, DIM)
    assert_close(part(x, pattern=Pattern()), part.out.bias.expand(1, LENGTH, -1), atol=0, rtol=0)


def stack(**options):
    options = {"position": NoPosition, "attention": Shaw, **options}
    return Stack(Extent((LENGTH,)), dim=DIM, heads=HEADS, depth=1, **options)


def test_a_memory_is_looked_at_by_plain_attention():
    block = stack(cross=True).blocks[0]
    assert (type(block.attend.part), type(block.cross.part)) == (Shaw, MultiHead)


def test_what_it_cannot_take_is_refused():
    with pytest.raises(UsageError, match="asks for content, which backend Flash cannot take"):
        stack(backend=Flash)
    with pytest.raises(UsageError, match="turns queries and keys, which attention Shaw cannot take"):
        stack(position=RoPE)
    with pytest.raises(UsageError, match="needs max_distance >= 1"):
        Shaw(DIM, HEADS, max_distance=0)
