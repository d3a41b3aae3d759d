"""Every position scheme is its paper's formula, on text and on a grid."""

import itertools
import math

import oracle
import pytest
import torch
from torch.testing import assert_close

from zoo.errors import UsageError
from zoo.parts.attention import MultiHead
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent, Learned, NoPosition, RoPE, Sinusoidal, slopes

pytestmark = pytest.mark.usefixtures("double")
TEXT, GRID = (20,), (3, 4)
EXTENTS = [Extent(TEXT), Extent(TEXT, causal=True), Extent(GRID), Extent(GRID, special=1), Extent(TEXT, special=2)]
extents = pytest.mark.parametrize("extent", EXTENTS, ids=str)


def places(extent):
    return range(-extent.special, math.prod(extent.sizes))


def exact(actual, expected):
    assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=1e-10, rtol=0)


@extents
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_sinusoidal_adds_the_papers_waves(extent, base):
    x, pos = torch.randn(2, len(places(extent)), 8), torch.tensor(places(extent))
    waves = torch.tensor([oracle.sinusoid(p, extent.sizes, 8, base) for p in places(extent)])
    exact(Sinusoidal(8, 2, extent, base).embed(x, pos), x + waves)


def test_the_first_sinusoids_are_those_of_the_notes():
    table = Sinusoidal(4, 1, Extent((3,))).embed(torch.zeros(1, 3, 4), torch.arange(3))[0]
    expected = [[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.0100, 0.99995], [0.9093, -0.4161, 0.0200, 0.9998]]
    assert_close(table, torch.tensor(expected), atol=5e-5, rtol=0)


def test_sinusoids_with_an_endpoint_reach_the_longest_wave_and_begin_at_an_offset():
    scheme = Sinusoidal(6, 1, Extent((3,)), base=100.0, layout="halves", endpoint=True, offset=2)
    table = scheme.embed(torch.zeros(1, 3, 6), torch.arange(3))[0]
    turns = torch.arange(2.0, 5.0)[:, None] * torch.tensor([1.0, 0.1, 0.01])
    assert_close(table, torch.cat([turns.sin(), turns.cos()], -1))


def test_the_second_pair_of_sinusoids_is_slower_than_the_first():
    table = Sinusoidal(512, 8, Extent((2,))).embed(torch.zeros(1, 2, 512), torch.arange(2))[0]
    assert_close(table[1, 2:4], torch.tensor([0.8219, 0.5697]), atol=5e-5, rtol=0)  # not sin 1 = .841, cos 1 = .540


def test_a_shift_of_sinusoids_is_one_linear_map():
    table = Sinusoidal(16, 1, Extent((3000,))).embed(torch.zeros(1, 3000, 16), torch.arange(3000))[0]
    turn = torch.zeros(16, 16)
    for i in range(8):
        angle = 7 / 10000 ** (2 * i / 16)
        block = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(block)
    exact(table[7:2007], table[:2000] @ turn.T)


@extents
def test_learned_adds_its_row_with_special_tokens_first(extent):
    scheme, x = Learned(8, 2, extent), torch.randn(2, len(places(extent)), 8)
    assert scheme.table.weight.shape == (len(places(extent)), 8)
    assert scheme.limit == math.prod(extent.sizes)
    exact(scheme.embed(x, torch.tensor(places(extent))), x + scheme.table.weight)


@pytest.mark.parametrize("scheme", [Sinusoidal, Learned])
def test_each_row_of_a_batch_may_stand_elsewhere(scheme):
    part, x, pos = scheme(8, 2, Extent(TEXT)), torch.randn(2, 3, 8), torch.tensor([[0, 1, 2], [4, 4, 9]])
    alone = torch.cat([part.embed(x[b : b + 1], pos[b]) for b in range(2)])
    exact(part.embed(x, pos), alone)


@extents
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_rope_turns_the_papers_planes(extent, base):
    x = torch.randn(2, 3, len(places(extent)), 8)
    expected = [[[oracle.turned(x[b, h, i].tolist(), p, extent.sizes, base)
                  for i, p in enumerate(places(extent))] for h in range(3)] for b in range(2)]  # fmt: skip
    exact(RoPE(8, 3, extent, base).rotate(x, torch.tensor(places(extent))), expected)


@pytest.mark.parametrize("shift", [1, 1000])
def test_rope_scores_depend_on_the_distance_alone(shift):
    scheme, q, k = RoPE(8, 1, Extent((4096,))), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8)
    here, there = torch.arange(5), torch.arange(5) + shift
    exact(scheme.rotate(q, there) @ scheme.rotate(k, there).mT, scheme.rotate(q, here) @ scheme.rotate(k, here).mT)
    exact(scheme.rotate(q, there).norm(dim=-1), q.norm(dim=-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rope_angles_are_right_at_position_8191_in_low_precision(dtype):
    x, pos = torch.randn(1, 1, 1, 64).to(dtype), torch.tensor([8191])
    expected = torch.tensor(oracle.turned(x.flatten().double().tolist(), 8191, (8192,)))
    actual = RoPE(64, 1, Extent((8192,))).rotate(x, pos)
    assert actual.dtype == dtype
    assert_close(actual.flatten().double(), expected, atol=2e-3, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sinusoids_are_right_at_position_8191_in_low_precision(dtype):
    actual = Sinusoidal(64, 1, Extent((8192,))).embed(torch.zeros(1, 1, 64, dtype=dtype), torch.tensor([8191]))
    assert actual.dtype == dtype
    expected = torch.tensor(oracle.sinusoid(8191, (8192,), 64))
    assert_close(actual.flatten().double(), expected, atol=2e-3, rtol=torch.finfo(dtype).eps)


def grid_of(scheme, heads, places):
    """bias(head, query, key) for all heads and places, called once as dense backends do."""
    pos = torch.tensor(places)
    return scheme.bias(torch.arange(heads)[:, None, None], pos[:, None], pos[None])


@extents
@pytest.mark.parametrize("heads", [1, 4, 12])
def test_alibi_is_minus_slope_times_distance(extent, heads):
    expected = [[[oracle.alibi(h, q, k, extent.sizes, heads) for k in places(extent)] for q in places(extent)]
                for h in range(heads)]  # fmt: skip
    exact(grid_of(ALiBi(8, heads, extent), heads, places(extent)), expected)


def test_alibi_slopes_for_8_and_12_heads_are_the_published_ones():
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(8) == eight
    assert slopes(12) == pytest.approx([*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rel=1e-12)


@pytest.mark.parametrize("heads", range(1, 33))
def test_alibi_slopes_are_the_published_functions(heads):
    assert slopes(heads) == pytest.approx(oracle.alibi_slopes(heads), rel=1e-12)


@extents
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 6), (4, 20)])
def test_t5_adds_its_table_by_bucket(extent, buckets, reach):
    scheme, heads = T5(8, 3, extent, buckets, reach), 3
    sided = extent.causal and len(extent.sizes) == 1

    def entry(h, q, k):
        if q < 0 or k < 0:
            return 0.0
        pairs = zip(oracle.coordinates(q, extent.sizes), oracle.coordinates(k, extent.sizes), strict=True)
        numbers = [oracle.t5_bucket(b - a, sided, buckets, reach) for a, b in pairs]
        return sum(scheme.table[axis, number, h].item() for axis, number in enumerate(numbers))

    expected = [[[entry(h, q, k) for k in places(extent)] for q in places(extent)] for h in range(heads)]
    exact(grid_of(scheme, heads, places(extent)), expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (16, 100), (10, 33), (7, 50), (4, 9), (64, 512)])
def test_t5_buckets_are_the_papers_at_every_distance(causal, buckets, reach):
    scheme, gaps = T5(8, 1, Extent((2000,), causal=causal), buckets, reach), range(-1100, 1101)
    expected = [oracle.t5_bucket(gap, causal, buckets, reach) for gap in gaps]
    assert scheme.bucket(torch.tensor(gaps)).tolist() == expected


def test_t5_is_two_sided_on_a_causal_grid():
    assert T5(8, 1, Extent(GRID, causal=True)).bucket(torch.tensor(3)) != T5(8, 1, Extent(GRID)).bucket(torch.tensor(0))


@pytest.mark.parametrize(("cls", "hooks"), [
    (NoPosition, set()), (Sinusoidal, {"embed"}), (Learned, {"embed"}),
    (RoPE, {"rotate"}), (ALiBi, {"bias"}), (T5, {"bias"}),
])  # fmt: skip
def test_a_scheme_enters_in_one_place_and_leaves_the_others_alone(cls, hooks):
    scheme, x, pos = cls(8, 2, Extent(TEXT)), torch.randn(1, 3, 8), torch.arange(3)
    torch.nn.init.normal_(next(scheme.parameters(), torch.empty(1)))
    assert scheme.rotates == ("rotate" in hooks)
    assert scheme.biases == ("bias" in hooks)
    assert torch.equal(scheme.embed(x, pos), x) == ("embed" not in hooks)
    assert torch.equal(scheme.rotate(x[:, None], pos), x[:, None]) == ("rotate" not in hooks)


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (2, 3, 5)])
def test_axes_are_the_coordinates_of_a_flat_index(sizes):
    pos = torch.arange(-2, math.prod(sizes))
    expected = [(0,) * len(sizes)] * 2 + list(itertools.product(*map(range, sizes)))
    assert list(zip(*(axis.tolist() for axis in Extent(sizes, 2).axes(pos)), strict=True)) == expected


LONG = {"kind": "longrope", "short_factors": [1.0], "long_factors": [2.0]}


@pytest.mark.parametrize(("build", "words"), [
    (lambda: Sinusoidal(2, 1, Extent(TEXT), endpoint=True), "endpoint needs dim of at least 4"),
    (lambda: Sinusoidal(7, 1, Extent(TEXT)), "position Sinusoidal needs dim divisible by 2 for 1 axes, got 7"),
    (lambda: Sinusoidal(6, 1, Extent(GRID)), "position Sinusoidal needs dim divisible by 4 for 2 axes, got 6"),
    (lambda: RoPE(6, 1, Extent(GRID)).check(6), "position RoPE needs a head width divisible by 4 for 2 axes, got 6"),
    (lambda: RoPE(8, 1, Extent(TEXT), scaling={"kind": "yarn"}, base=1.0), "with scaling yarn needs base above 1"),
    (lambda: RoPE(8, 1, Extent(TEXT), scaling=LONG | {"long_factors": None}), "long_factors, numbers above 0"),
    (lambda: RoPE(8, 1, Extent(TEXT), scaling={"long_factors": [1.0]}), "long_factors, .* with scaling longrope and"),
    (lambda: RoPE(8, 1, Extent(TEXT), scaling={"kind": "ntk"}), "position RoPE: scaling has kind, one of llama3"),
    (lambda: RoPE(8, 1, Extent(TEXT), scaling={"kind": "yarn", "mscale": 1}), "position RoPE: scaling has kind, one"),
    (lambda: RoPE(8, 1, Extent(TEXT), scaling=LONG).check(8),
     "a factor for each of 4 pairs, got 1 factors"),
    (lambda: T5(8, 1, Extent(TEXT), num_buckets=3), "position T5 needs num_buckets of at least 4"),
    (lambda: T5(8, 1, Extent(TEXT), max_distance=8), "max_distance above 8"),
])  # fmt: skip
def test_a_width_that_cannot_be_split_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


@pytest.mark.parametrize("offset", [-1, -(10**12)])
def test_learned_positions_have_no_rows_before_the_table(offset):
    with pytest.raises(UsageError, match="offset >= 0"):
        Learned(8, 2, Extent(TEXT), offset=offset)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_keys_may_turn_in_a_way_of_their_own(kv_heads):
    class Apart(RoPE):
        def rotate_keys(self, x, pos):
            return 3 * super().rotate(x, pos)

    part, x = MultiHead(8, 2, kv_heads=kv_heads), torch.randn(1, 5, 8)
    q, k, v = part.project(x, None, Pattern(offset=2), Apart(8, 2, Extent((9,))), None)
    unrotated = part.project(x, None, Pattern(offset=2), RoPE(8, 2, Extent((9,))), None)
    assert_close((q, k, v), (unrotated[0], 3 * unrotated[1], unrotated[2]), atol=1e-12, rtol=0)
