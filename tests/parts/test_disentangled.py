"""DeBERTa's attention is its paper's formula on every backend, shares its table, and says what it cannot take."""

import oracle
import pytest
import torch
from torch.testing import assert_close

from tests.covering import choices_in_turn
from zoo.errors import UsageError
from zoo.models.layer_overrides import Override
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA, Flash, Naive, Tiled
from zoo.parts.cache import Cache
from zoo.parts.disentangled import Disentangled
from zoo.parts.norm import LayerNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, NoPosition

pytestmark = pytest.mark.usefixtures("double")
DIM, HEADS, LENGTH = 12, 3, 23
KINDS = {
    "version 1": {"span": 8, "max_distance": None, "share_att_key": False, "key_bias": False},
    "version 3": {"span": 8, "max_distance": 16, "norm": LayerNorm},
    "beyond the reach": {"span": 6, "max_distance": 9, "share_att_key": False},
    "c2p": {"span": 8, "max_distance": None, "pos_att_type": "c2p", "share_att_key": False},
    "p2c": {"span": 8, "max_distance": 20, "pos_att_type": "p2c", "key_bias": False},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def build(kind, backend=None):
    part = Disentangled(DIM, HEADS, backend, **KINDS[kind])
    torch.manual_seed(1)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return part


def matrix(linear):
    return linear.weight.tolist(), None if linear.bias is None else linear.bias.tolist()


def rows_of(part, kind, number):
    """Rows of the table as keys (number 1) or queries (0) of every head, in plain loops."""
    if not kind:
        return None
    table = part.places.table.weight.tolist()
    if normed(part):
        norm = part.places.norm
        table = [oracle.layer_norm(row, norm.weight.tolist(), norm.bias.tolist(), norm.eps) for row in table]
    own = part.place_key if number else part.place_query
    if own is not None:
        weight, bias = matrix(own)
    else:
        weight, bias = (x[number * DIM : (number + 1) * DIM] for x in matrix(part.qkv))
    projected = [oracle.affine(weight, bias, row) for row in table]
    D = DIM // HEADS
    return [[row[h * D : (h + 1) * D] for row in projected] for h in range(HEADS)]


def normed(part):
    return isinstance(part.places.norm, LayerNorm)


def definition(part, x, reach, causal=False, valid=None):
    """Weights and result of the layer for x (B, T, dim), a number at a time."""
    D, out = DIM // HEADS, torch.zeros(x.shape[0], x.shape[1], DIM)
    weights = torch.zeros(x.size(0), HEADS, x.size(1), x.size(1))
    keys = rows_of(part, part.pos_att_type != "p2c", 1)
    queries = rows_of(part, part.pos_att_type != "c2p", 0)
    for b, tokens in enumerate(x.tolist()):
        projected = [oracle.affine(*matrix(part.qkv), token) for token in tokens]
        for h in range(HEADS):
            q, k, v = ([row[n * DIM + h * D : n * DIM + (h + 1) * D] for row in projected] for n in range(3))
            scores = oracle.disentangled(q, k, keys and keys[h], queries and queries[h], part.span, reach)
            for i, line in enumerate(scores):
                visible = [j for j in range(len(k)) if oracle.sees(i, j, causal) and (valid is None or valid[b, j])]
                if not visible:
                    continue
                for j, share in zip(visible, oracle.softmax([line[j] for j in visible]), strict=True):
                    weights[b, h, i, j] = share
                    out[b, i, h * D : (h + 1) * D] += share * torch.tensor(v[j])
    return weights, out @ part.out.weight.T + part.out.bias


@pytest.mark.parametrize(("kind", "backend"), choices_in_turn(KINDS, [None, Naive, SDPA, lambda: Tiled(5)]))
def test_it_is_the_formula(kind, backend):
    part, x = build(kind, backend and backend()), torch.randn(2, LENGTH, DIM)
    valid = torch.rand(2, LENGTH) < 0.8
    for causal, mask in ((False, None), (True, valid)):
        weights, out = definition(part, x, KINDS[kind]["max_distance"], causal, mask)
        pattern = Pattern(causal=causal, valid=mask)
        assert_close(part.weights(x, pattern=pattern), weights, atol=1e-10, rtol=0)
        assert_close(part(x, pattern=pattern), out, atol=1e-10, rtol=0)


@kinds
def test_queries_after_a_cached_prefix_stand_behind_it(kind):
    part, x, cache = build(kind), torch.randn(2, LENGTH, DIM), Cache(LENGTH)
    whole = part(x, pattern=Pattern(causal=True))
    steps = [
        part(x[:, a:b], pattern=Pattern(causal=True, offset=a), cache=cache) for a, b in ((0, 9), (9, 10), (10, 23))
    ]
    assert_close(torch.cat(steps, 1), whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("span", "reach"), [(8, None), (8, 16), (6, 9), (256, 512), (32, 128)])
def test_rows_are_the_papers(span, reach):
    part = Disentangled(DIM, HEADS, span=span, max_distance=reach)
    gaps = torch.arange(-600, 601)
    assert part.row(gaps).tolist() == [oracle.deberta_row(int(gap), span, reach) for gap in gaps]


def test_without_distances_it_is_plain_attention_at_a_scale_of_the_root_of_three_widths():
    part = build("version 1")
    multihead = MultiHead(DIM, HEADS, scale=(3 * DIM / HEADS) ** -0.5)
    with torch.no_grad():
        for linear in (part.place_key, part.place_query):
            for parameter in linear.parameters():
                parameter.zero_()
        multihead.qkv.weight.copy_(part.qkv.weight)
        multihead.qkv.bias.copy_(part.qkv.bias)
    multihead.out.load_state_dict(part.out.state_dict())
    x = torch.randn(2, 9, DIM)
    assert_close(part(x, pattern=Pattern()), multihead(x, pattern=Pattern()), atol=1e-12, rtol=0)


def test_a_bias_of_positions_is_added_to_its_own():
    part, scheme = build("version 3"), ALiBi(DIM, HEADS, Extent((LENGTH,)))
    x = torch.randn(1, 7, DIM)
    both = part.weights(x, pattern=Pattern(bias=scheme.bias)).log()
    alone = part.weights(x, pattern=Pattern()).log()
    place = torch.arange(7)
    cost = scheme.bias(torch.arange(HEADS)[:, None, None], place[:, None], place[None])
    assert_close((both - alone - cost).diff(dim=-1), torch.zeros(1, HEADS, 7, 6), atol=1e-10, rtol=0)


def stack(**options):
    return Stack(Extent((LENGTH,)), dim=DIM, heads=HEADS, position=NoPosition, attention=Disentangled, **options)


def test_all_layers_share_one_table():
    one, three = stack(depth=1), stack(depth=3)
    layer = sum(p.numel() for p in one.blocks[0].parameters()) - 2 * 32 * DIM
    assert sum(p.numel() for p in three.parameters()) - sum(p.numel() for p in one.parameters()) == 2 * layer
    tables = {id(attention.places) for attention in three.attentions()}
    assert len(tables) == 1
    three.load_state_dict(stack(depth=3).state_dict())


def test_layers_whose_tables_differ_in_size_have_their_own():
    wide = [Override(first=2, attention=lambda *args: Disentangled(*args, span=16, max_distance=None))]
    parts = stack(depth=3, overrides=wide).attentions()
    assert parts[0].places is parts[1].places
    assert parts[2].places is not parts[1].places


def test_a_memory_is_looked_at_by_plain_attention():
    block = stack(depth=1, cross=True).blocks[0]
    assert (type(block.attend.part), type(block.cross.part)) == (Disentangled, MultiHead)


def test_what_it_cannot_take_is_refused():
    with pytest.raises(UsageError, match="asks for content, which backend Flash cannot take"):
        stack(depth=1, backend=Flash)
    with pytest.raises(UsageError, match="max_distance above"):
        Disentangled(DIM, HEADS, span=64, max_distance=16)
    with pytest.raises(UsageError, match="cannot lower content"):
        Flash()(*torch.randn(3, 1, 1, 4, 8), Pattern(content=lambda query, key: torch.zeros(1, 1, 4, 4)))
