"""Every attention is its paper's formula: layer and weights, with positions, masks, groups and a cached prefix."""

import itertools
from functools import partial

import oracle
import pytest
import torch
from torch.testing import assert_close

from tests.rows import try_each
from zoo.errors import UsageError
from zoo.models.layer_overrides import Override
from zoo.models.stack import Stack
from zoo.parts.attention import Additive, Gaussian, MultiHead, TokenQueries
from zoo.parts.backend import SDPA, Flash, Naive, Tiled
from zoo.parts.cache import Cache, MemoryCache
from zoo.parts.norm import RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, NoPosition, RoPE

pytestmark = pytest.mark.usefixtures("double")
ATTENTIONS = {
    "MultiHead": MultiHead, "grouped": partial(MultiHead, kv_heads=2), "one group": partial(MultiHead, kv_heads=1),
    "wide heads": partial(MultiHead, head_dim=6, kv_heads=2), "no bias": partial(MultiHead, bias=False),
    "normed heads": partial(MultiHead, qk_norm=RMSNorm, kv_heads=2),
    "tokens as queries": partial(TokenQueries, kv_heads=2),
    "Gaussian": Gaussian, "narrow": partial(Gaussian, sigma=0.6, kv_heads=2, bias=False),
    "Additive": Additive, "grouped additive": partial(Additive, kv_heads=2, bias=False),
}  # fmt: skip
PATTERNS = {
    "plain": {}, "causal": {"causal": True}, "window": {"window": 2}, "valid": {"valid": True}, "bias": {"bias": True},
    "all": {"causal": True, "window": 3, "valid": True, "bias": True},
}  # fmt: skip
VALID = torch.tensor([[False, True, True, False, True, True], [True, True, False, True, True, False]])
attentions = pytest.mark.parametrize("name", ATTENTIONS)
DIM, HEADS, LENGTH = 16, 4, 6


def build_part(name, *args):
    """The attention, with biases that are not zero."""
    part = ATTENTIONS[name](DIM, HEADS, *args)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return part


def linear(weight, bias, x):
    return x @ weight.T + (0.0 if bias is None else bias)


def definition(part, x, memory=None, first=0, causal=False, window=None, valid=None, bias=None, turn=None):
    """Rows ``first`` and later of the layer, from projections to output, and its weights."""
    source, D = (x if memory is None else memory), part.head_dim
    cuts = [part.heads * D if part.query_matrix else 0, part.kv_heads * D, part.kv_heads * D]
    weights = part.qkv.weight.detach().split(cuts)
    biases = (None,) * 3 if part.qkv.bias is None else part.qkv.bias.detach().split(cuts)
    inputs = x[:, first:], source, source
    q, k, v = (linear(w, b, y).unflatten(-1, (-1, D)).transpose(1, 2)
               for w, b, y in zip(weights, biases, inputs, strict=True))  # fmt: skip
    if not part.query_matrix:
        q = inputs[0].unflatten(-1, (-1, D)).transpose(1, 2).clone()
    for rows, norm in ((q, part.query_norm), (k, part.key_norm)):
        if isinstance(norm, RMSNorm):
            for b, h, i in itertools.product(*map(range, rows.shape[:3])):
                row = oracle.rms_norm(rows[b, h, i].tolist(), norm.weight.tolist(), norm.eps)
                rows[b, h, i] = torch.tensor(row)
    if turn is not None:
        for rows, start in ((q, first), (k, 0)):
            for b, h, i in itertools.product(*map(range, rows.shape[:3])):
                rows[b, h, i] = torch.tensor(turn(rows[b, h, i].tolist(), i + start))
    score = {
        MultiHead: lambda: oracle.dot(D**-0.5),
        TokenQueries: lambda: oracle.dot(D**-0.5),
        Gaussian: lambda: oracle.kernel(part.sigma),
        Additive: lambda: oracle.additive(part.score.detach()),
    }[type(part)]()

    def allowed(b, t, s):
        return (valid is None or bool(valid[b, s])) and oracle.sees(t + first, s, causal, window)

    added = bias and (lambda h, t, s: bias(h, t + first, s))
    out, weights = oracle.attend(q, k, v, score, allowed, added)
    return linear(part.out.weight, part.out.bias, out.transpose(1, 2).flatten(2)).detach(), weights


def pattern_options(words):
    options = dict(PATTERNS[words])
    if "valid" in options:
        options["valid"] = VALID
    if "bias" in options:
        options["bias"] = lambda head, query, key: 0.1 * (head + 1) * (query - 2 * key)
    return options


@try_each(itertools.product(ATTENTIONS, PATTERNS))
def test_self_attention_is_the_formula(name, words):
    part, x, options = build_part(name), torch.randn(2, LENGTH, DIM), pattern_options(words)
    assert_close(part(x, pattern=Pattern(**options)), definition(part, x, **options)[0], atol=1e-10, rtol=0)


@try_each(itertools.product(ATTENTIONS, PATTERNS, [5, 3]))
def test_queries_after_a_cached_prefix_are_the_formula(name, words, first):
    part, x, options, cache = build_part(name), torch.randn(2, LENGTH, DIM), pattern_options(words), Cache(LENGTH)
    prefix = {**options, "valid": VALID[:, :first]} if "valid" in options else options
    part(x[:, :first], pattern=Pattern(**prefix), cache=cache)
    actual = part(x[:, first:], pattern=Pattern(offset=first, **options), cache=cache)
    assert_close(actual, definition(part, x, first=first, **options)[0], atol=1e-10, rtol=0)


@attentions
@pytest.mark.parametrize("words", ["plain", "valid"])
def test_cross_attention_is_the_formula_and_keeps_its_memory(name, words):
    part, x, memory, cache = build_part(name), torch.randn(2, 3, DIM), torch.randn(2, LENGTH, DIM), MemoryCache()
    options = pattern_options(words)
    expected = definition(part, x, memory, **options)[0]
    for memory_cache in (None, cache, cache):
        assert_close(part(x, memory, pattern=Pattern(**options), cache=memory_cache), expected, atol=1e-10, rtol=0)
    part(x, torch.full_like(memory, torch.nan), pattern=Pattern(**options), cache=cache)
    assert_close(part(x, memory * 2, pattern=Pattern(**options), cache=cache), expected, atol=1e-10, rtol=0)


@try_each(itertools.product(ATTENTIONS, ["RoPE", "ALiBi"], [Extent((9,), causal=True), Extent((2, 3))], [0, 4]))
def test_attention_with_a_position_is_the_formula(name, scheme, extent, first):
    if scheme == "RoPE" and "dditive" in name:
        return  # refused by every stack, see tests/models/test_compatibility.py
    part, x, cache = build_part(name), torch.randn(2, LENGTH, DIM), Cache(LENGTH)
    if scheme == "RoPE" and part.head_dim % (2 * len(extent.sizes)):
        return
    position = (RoPE if scheme == "RoPE" else ALiBi)(DIM, HEADS, extent)
    ours = {"causal": extent.causal, "bias": position.bias if scheme == "ALiBi" else None}
    if first:
        part(x[:, :first], pattern=Pattern(**ours), position=position, cache=cache)
    actual = part(x[:, first:], pattern=Pattern(offset=first, **ours), position=position, cache=cache)
    expected, _ = definition(
        part, x, first=first, causal=extent.causal,
        bias=(lambda h, q, k: oracle.alibi(h, q, k, extent.sizes, HEADS)) if scheme == "ALiBi" else None,
        turn=(lambda row, pos: oracle.turned(row, pos, extent.sizes)) if scheme == "RoPE" else None,
    )  # fmt: skip
    assert_close(actual, expected, atol=1e-10, rtol=0)


@attentions
def test_cross_attention_ignores_positions(name):
    part, x, memory = build_part(name), torch.randn(2, 3, DIM), torch.randn(2, LENGTH, DIM)
    with_rope = part(x, memory, pattern=Pattern(), position=RoPE(DIM, HEADS, Extent((9,))))
    assert torch.equal(with_rope, part(x, memory, pattern=Pattern()))


@try_each(itertools.product(ATTENTIONS, PATTERNS))
def test_weights_are_the_formula_sum_to_one_and_make_the_output(name, words):
    part, x, options = build_part(name), torch.randn(2, LENGTH, DIM), pattern_options(words)
    pattern = Pattern(**options)
    weights = part.weights(x, pattern=pattern)
    assert_close(weights, definition(part, x, **options)[1], atol=1e-10, rtol=0)
    blind = definition(part, x, **options)[1].sum(-1) == 0
    assert_close(weights.sum(-1), (~blind).double(), atol=1e-12, rtol=0)
    heads = weights @ part.project(x, None, pattern, None, None)[2].repeat_interleave(HEADS // part.kv_heads, 1)
    assert_close(part.out(heads.transpose(1, 2).flatten(2)), part(x, pattern=pattern), atol=1e-10, rtol=0)


@attentions
def test_weights_over_a_memory_and_with_a_position_are_the_formula(name):
    part, x, memory = build_part(name), torch.randn(2, 3, DIM), torch.randn(2, LENGTH, DIM)
    actual = part.weights(x, memory, pattern=Pattern(valid=VALID))
    assert_close(actual, definition(part, x, memory, valid=VALID)[1], atol=1e-10, rtol=0)
    position = ALiBi(DIM, HEADS, Extent((9,), causal=True))
    actual = part.weights(memory, pattern=Pattern(causal=True, bias=position.bias), position=position)
    expected = definition(part, memory, causal=True, bias=lambda h, q, k: oracle.alibi(h, q, k, (9,), HEADS))[1]
    assert_close(actual, expected, atol=1e-10, rtol=0)


@try_each(itertools.product(ATTENTIONS, [Naive, SDPA, Flash, Tiled, partial(Tiled, 2)]))
def test_every_backend_serves_an_attention_alike(name, backend):
    if "dditive" in name:
        return
    part, x = build_part(name, backend()), torch.randn(2, LENGTH, DIM)
    assert_close(part(x, pattern=Pattern(causal=True)), definition(part, x, causal=True)[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("attention", [MultiHead, Gaussian, Additive])
@pytest.mark.parametrize("words", ["plain", "causal"])
def test_dropout_of_weights_averages_out_and_is_off_in_evaluation(attention, words):
    part, options = attention(DIM, HEADS, dropout=0.3), pattern_options(words)
    x = torch.randn(1, LENGTH, DIM).expand(2000, -1, -1)
    with torch.no_grad():
        samples, undropped = part(x, pattern=Pattern(**options)), definition(part, x[:1], **options)[0]
        still = part.eval()(x[:1], pattern=Pattern(**options))
        state = torch.get_rng_state()
        part(x[:1], pattern=Pattern(**options))
    assert ((samples.mean(0) - undropped[0]).abs() <= 5 * samples.std(0) / 2000**0.5 + 1e-12).all()
    assert (samples.std(0) > 1e-3).all()
    assert_close(still, undropped, atol=1e-10, rtol=0)
    assert torch.equal(torch.get_rng_state(), state)


@attentions
def test_gradients_are_those_of_the_function(name):
    part, x = build_part(name, Naive()), torch.randn(1, 4, DIM, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: part(x, pattern=Pattern(causal=True)), x, fast_mode=True)


@pytest.mark.parametrize("heads", [1, 8])
def test_multi_head_has_as_many_parameters_with_one_head_as_with_eight(heads):
    assert sum(p.numel() for p in MultiHead(512, heads, bias=False).parameters()) == 1_048_576


def test_the_first_attention_layer_learns_keys_and_values_alone():
    """Queries (N_Q, D) are given, keys and values are X W_K and X W_V: D_X (D_Q + D_V) parameters in front of W_O."""
    part = TokenQueries(DIM, 1, bias=False)
    queries, data = torch.randn(1, 3, DIM), torch.randn(1, 5, DIM)
    w_k, w_v = part.qkv.weight.detach().split(DIM)
    weights = (queries @ (data @ w_k.T).mT / DIM**0.5).softmax(-1)
    expected = weights @ (data @ w_v.T) @ part.out.weight.T
    assert_close(part(queries, data, pattern=Pattern()), expected, atol=1e-12, rtol=0)
    assert sum(p.numel() for p in part.qkv.parameters()) == DIM * (DIM + DIM)


def test_a_layer_of_a_stack_may_lack_the_query_matrix():
    first = Override(layers="first", attention=TokenQueries)
    stack = Stack(Extent((LENGTH,), causal=True), dim=DIM, depth=2, heads=HEADS, overrides=[first])
    whole = Stack(Extent((LENGTH,), causal=True), dim=DIM, depth=2, heads=HEADS)
    sizes = [sum(p.numel() for p in one.blocks[i].parameters()) for one in (whole, stack) for i in range(2)]
    assert sizes[0] - sizes[2] == DIM * DIM + DIM
    assert sizes[1] == sizes[3]


def test_a_wide_kernel_averages_and_a_narrow_one_finds_the_nearest():
    x = torch.randn(1, 5, 8)
    even = Gaussian(8, 1, sigma=1e6).weights(x, pattern=Pattern())
    assert_close(even, torch.full_like(even, 0.2), atol=1e-9, rtol=0)
    part = Gaussian(8, 1, sigma=1e-3)
    q, k, _ = part.project(x, None, Pattern(), None, None)
    assert torch.equal(part.weights(x, pattern=Pattern()).argmax(-1)[0, 0], torch.cdist(q, k).argmin(-1)[0, 0])


def test_keys_of_equal_length_turn_the_kernel_into_scaled_dot_products():
    part, q, k = Gaussian(8, 2), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 6, 4)
    k = k / k.norm(dim=-1, keepdim=True)
    assert_close(part.weigh(q, k, Pattern()), Naive().weights(q, k, Pattern()), atol=1e-12, rtol=0)


def test_no_position_and_none_are_the_same():
    part, x = build_part("MultiHead"), torch.randn(1, 4, DIM)
    scheme = NoPosition(DIM, HEADS, Extent((9,)))
    assert torch.equal(part(x, pattern=Pattern(), position=scheme), part(x, pattern=Pattern()))


@pytest.mark.parametrize(("build", "words"), [
    (lambda: MultiHead(10, 4), r"dim=10 is not divisible by heads=4. Try heads=2 or heads=5\."),
    (lambda: MultiHead(16, 4, kv_heads=3), r"heads=4 is not divisible by kv_heads=3. Try kv_heads=2 or kv_heads=4\."),
    (lambda: MultiHead(16, 4, kv_heads=8), r"heads=4 is not divisible by kv_heads=8. Try kv_heads=4\."),
    (lambda: Gaussian(16, 4, sigma=0.0), "attention Gaussian needs a kernel width sigma above 0, got 0.0"),
    (lambda: Additive(16, 4, SDPA()), "attention Additive has no dot product, which is all that backend SDPA"),
])  # fmt: skip
def test_what_cannot_work_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


@attentions
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_low_and_close(name, dtype):
    part, x, options = build_part(name), torch.randn(2, LENGTH, DIM), pattern_options("all")
    part, x = part.to(dtype), x.to(dtype)
    out = part(x, pattern=Pattern(**options))
    assert out.dtype == dtype
    exact = part.double()(x.double(), pattern=Pattern(**options))
    assert (out.double() - exact).abs().max() <= 16 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("part", [MultiHead, Gaussian])
@pytest.mark.parametrize("kv_heads", [-1, -4])
def test_a_negative_number_of_key_heads_is_refused(part, kv_heads):
    with pytest.raises(UsageError, match=f"kv_heads >= 1, got {kv_heads}"):
        part(16, 4, kv_heads=kv_heads)
