"""Every backend is softmax(q k' scale + bias) v, values and gradients, for all it claims, and refuses the rest."""

import itertools
import math
from dataclasses import replace
from functools import lru_cache, partial

import oracle
import pytest
import torch
from torch.testing import assert_close

from tests.covering import covering_params
from tests.rows import try_each
from zoo.errors import UsageError
from zoo.parts import cpu_attention
from zoo.parts.backend import SDPA, Backend, Flash, Naive, Tiled
from zoo.parts.pattern import Pattern

pytestmark = pytest.mark.usefixtures("double")


class Products(Backend):
    """What SDPA does in bfloat16 on a CPU, in every type."""

    def __call__(self, *call):
        return cpu_attention.attention(*call)


BACKENDS = {"Naive": Naive, "SDPA": SDPA, "Products": Products, "Flash": Flash} | {
    f"Tiled{n}": partial(Tiled, n) for n in (1, 2, 3, 4, 128)
}
FEATURES = {"causal": {"causal": True}, "window": {"window": 2}, "valid": {"valid": True}, "bias": {"bias": True},
            "sparse": {"sparse": lambda query, key: (query - key) % 2 == 0}}  # fmt: skip
PATTERNS = ["", "causal", "window", "valid", "bias", "causal window", "causal valid", "causal window valid bias",
            "window valid bias", "causal bias", "valid bias", "sparse", "causal sparse valid bias"]  # fmt: skip
# queries, keys, positions of the first query and key: a whole sequence, a new token, a chunk after a prefix, a memory,
# keys still to come, one token, and what a window's cache has kept
SHAPES = {"whole": (5, 5, 0, 0), "step": (1, 6, 5, 0), "chunk": (3, 7, 4, 0), "few": (2, 7, 0, 0), "many": (6, 3, 0, 0),
          "ahead": (2, 7, 3, 0), "early": (1, 6, 2, 0), "one": (1, 1, 0, 0), "kept step": (1, 3, 7, 5),
          "kept chunk": (3, 5, 7, 5), "kept whole": (4, 4, 6, 6), "kept early": (2, 6, 6, 5), "late": (4, 4, 2, 0),
          "behind": (4, 4, 0, 2)}  # fmt: skip
GROUPS = [4, 2, 1]
backends = pytest.mark.parametrize("backend", BACKENDS)
CLAIM_MASKS = [name for name in BACKENDS if name != "Flash"]
claims_masks = pytest.mark.parametrize("backend", CLAIM_MASKS)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def leaves(T, S, groups, heads=4, width=3, out=3):
    make = torch.Generator().manual_seed(100 * T + S)
    shapes = (2, heads, T, width), (2, groups, S, width), (2, groups, S, out), (heads,)
    return [torch.randn(shape, generator=make).requires_grad_() for shape in shapes]


def padding(S):
    """The first row has nothing but padding, the second has it on the left and inside."""
    return torch.stack([torch.zeros(S, dtype=torch.bool), torch.arange(S) % 3 != 0])


def pattern_of(words, S, offset, table, start=0):
    options = {key: value for word in words.split() for key, value in FEATURES[word].items()}
    if "valid" in options:
        options["valid"] = padding(S)
    if "bias" in options:  # neither symmetric nor a function of the distance
        options["bias"] = lambda head, query, key: table[head] * (query - 2 * key)
    return Pattern(offset=offset, start=start, **options)


LSE = {"Naive": Naive} | {name: BACKENDS[name] for name in BACKENDS if name.startswith("Tiled")}


def loss(out):
    return (out * torch.arange(out.numel(), dtype=out.dtype).sin().view(out.shape)).sum()


@lru_cache
def truth(words, shape, groups):
    """The oracle's values and gradients."""
    T, S, offset, start = SHAPES[shape]
    q, k, v, table = leaves(T, S, groups)

    def allowed(b, t, s):
        window = FEATURES["window"]["window"] if "window" in words else None
        real = padding(S)[b, s] if "valid" in words else True
        on_grid = "sparse" not in words or (t + offset - s - start) % 2 == 0
        return bool(real) and on_grid and oracle.sees(t + offset, s + start, "causal" in words, window)

    def bias(h, t, s):
        return table[h] * (t + offset - 2 * (s + start)) if "bias" in words else 0.0

    out, _ = oracle.attend(q, k, v, oracle.dot(3**-0.5), allowed, bias)
    return out.detach(), torch.autograd.grad(loss(out), [q, k, v, table], allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.campaign)])
@try_each(itertools.product(PATTERNS, SHAPES))
def test_every_backend_is_the_formula_or_refuses(words, shape, every):
    """Every fourth backend for each pattern and shape, and in a campaign all, with the same key heads: the oracle is
    slow."""
    turn = PATTERNS.index(words) + list(SHAPES).index(shape)
    for number, backend in enumerate(BACKENDS):
        if (number + turn) % every == 0:
            check_backend(backend, words, shape, GROUPS[turn % len(GROUPS)])


def check_backend(backend, words, shape, groups):
    T, S, offset, start = SHAPES[shape]
    part, (q, k, v, table) = BACKENDS[backend](), leaves(T, S, groups)
    pattern = pattern_of(words, S, offset, table, start)
    if not pattern.needs <= part.supports or (backend == "Flash" and words == "causal" and offset + T != start + S):
        with pytest.raises(UsageError, match="backend Flash cannot lower"):
            part(q, k, v, pattern)
        return
    out = part(q, k, v, pattern)
    grads = torch.autograd.grad(loss(out), [q, k, v, table], allow_unused=True, materialize_grads=True)
    expected, slopes = truth(words, shape, groups)
    for mine, right in zip((out, *grads), (expected, *slopes), strict=True):
        assert_close(mine, right, atol=1e-10, rtol=0, msg=lambda text: f"{backend}, {groups} key heads: {text}")


def test_only_flash_claims_less_than_everything():
    everything = frozenset(FEATURES) | {"dropout", "content"}  # the latter: test_disentangled.py
    assert Backend.supports == everything
    assert SDPA().supports == everything | {"places"}
    assert Tiled().supports == everything | {"score_cap", "lse"}
    assert Naive().supports == everything | {"score_cap", "lse", "places"}
    assert Flash().supports == ({"causal", "dropout"} if torch.cuda.is_available() else {"causal"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CUDA kernel drops weights")
def test_flash_refuses_dropout_on_a_processor():
    with pytest.raises(UsageError, match="backend Flash cannot lower dropout"):
        Flash()(*leaves(5, 5, 4)[:3], Pattern(), 0.1)


@pytest.mark.filterwarnings("ignore:Flash attention")
def test_flash_runs_the_flash_kernel_or_says_that_there_is_none():
    q, k, v, _ = leaves(5, 5, 4)
    with pytest.raises(UsageError, match=r"no kernel for torch.float64 on cpu with head width 3"):
        Flash()(q, k, v[..., :2], Pattern())  # values narrower than keys


@pytest.mark.parametrize("words", ["", "causal"])
@pytest.mark.parametrize("shape", ["whole", "step", "chunk", "one", "kept step", "kept chunk", "kept whole"])
def test_flash_never_needs_a_mask_which_the_kernel_of_a_gpu_does_not_take(monkeypatch, words, shape):
    masks, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def watched(*args, attn_mask=None, **options):
        masks.append(attn_mask)
        return kernel(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    T, S, offset, start = SHAPES[shape]
    Flash()(*leaves(T, S, 2)[:3], pattern_of(words, S, offset, None, start))
    assert masks == [None]


ODD = [(37, 37, 0), (11, 41, 30), (1, 129, 128)]


@pytest.mark.parametrize(
    ("backend", "words", "sizes"), covering_params(BACKENDS, ["", "causal", "causal window", "window valid bias"], ODD)
)
def test_a_backend_equals_naive_at_odd_sizes(backend, words, sizes):
    T, S, offset = sizes
    part, results = BACKENDS[backend](), []
    if not pattern_of(words, S, offset, None).needs <= part.supports:
        return
    for each in (part, Naive()):
        q, k, v, table = leaves(T, S, 2, heads=6, width=5, out=5)
        out = each(q, k, v, pattern_of(words, S, offset, table))
        grads = torch.autograd.grad(loss(out), [q, k, v, table], allow_unused=True, materialize_grads=True)
        results.append((out, *grads))
    for mine, naive in zip(*results, strict=True):
        assert_close(mine, naive, atol=1e-10, rtol=0)


@claims_masks
def test_values_may_be_wider_or_narrower_than_keys_and_the_scale_is_a_choice(backend):
    for out in (2, 7):
        q, k, v, _ = leaves(5, 6, 2, out=out)
        expected, _ = oracle.attend(q, k, v, oracle.dot(0.7), lambda b, t, s: True)
        assert_close(BACKENDS[backend]()(q, k, v, Pattern(), 0.0, 0.7), expected, atol=1e-10, rtol=0)


@try_each(itertools.product(CLAIM_MASKS, ["valid", "window", "valid bias", "causal window valid bias"], DTYPES))
def test_a_query_without_keys_gets_zeros_and_finite_gradients(backend, words, dtype):
    inputs = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves(6, 3, 2)]
    out = BACKENDS[backend]()(*inputs[:3], pattern_of(words, 3, 0, inputs[3]))
    blind = out[0] if "valid" in words else out[:, :, 5:]
    assert out.dtype == dtype
    assert torch.equal(blind, torch.zeros_like(blind))
    assert out.abs().sum() > 0
    (out * torch.randn_like(out)).sum().backward()
    assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in inputs)


@claims_masks
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_query_without_keys_has_no_nan_on_the_way_back_either(backend):
    q, k, v, table = leaves(6, 3, 2)
    with torch.autograd.detect_anomaly():  # what a user turns on to find a nan must not find ours
        loss(BACKENDS[backend]()(q, k, v, pattern_of("causal window valid bias", 3, 0, table))).backward()


@try_each(itertools.product(BACKENDS, [1.0, -1.0], DTYPES[:3]))
def test_scores_of_ten_thousand_stay_finite_and_right(backend, sign, dtype):
    q = torch.full((1, 1, 4, 4), 100.0, dtype=dtype, requires_grad=True)
    k = (sign * torch.tensor([50.0, 20.0, 50.0, 10.0], dtype=dtype)[:, None].repeat(1, 1, 1, 4)).requires_grad_()
    v = torch.tensor([1.0, 8.0, 2.0, 4.0], dtype=dtype)[:, None].repeat(1, 1, 1, 4)
    out = BACKENDS[backend]()(q, k, v, Pattern())  # scores are +-10000 to +-2000
    out.sum().backward()
    assert_close(out, torch.full_like(out, 1.5 if sign > 0 else 4.0), atol=1e-6, rtol=0)
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


@claims_masks
def test_the_lowest_scores_still_beat_a_mask(backend):
    """A mask of -10000 or -1e9 would let a key of score -1e12 lose to padding."""
    q, k = torch.full((1, 1, 1, 1), 1e6), torch.tensor([-1e6, 5.0]).view(1, 1, 2, 1)
    v, pattern = torch.tensor([1.0, 1e6]).view(1, 1, 2, 1), Pattern(valid=torch.tensor([[True, False]]))
    out = BACKENDS[backend]()(q, k, v, pattern)
    assert out.item() == 1.0


@claims_masks
@pytest.mark.parametrize("words", ["", "causal valid"])
def test_dropout_of_weights_keeps_their_mean(backend, words):
    q, k, v = (leaf.detach()[:1].expand(3000, *leaf.shape[1:]) for leaf in leaves(4, 4, 4)[:3])
    pattern = Pattern(causal=True, valid=torch.tensor([[True, False, True, True]])) if words else Pattern()
    part = BACKENDS[backend]()
    samples, undropped = part(q, k, v, pattern, 0.3), part(q[:1], k[:1], v[:1], pattern)
    error = samples.std(0) / 3000**0.5
    assert ((samples.mean(0) - undropped[0]).abs() <= 5 * error + 1e-12).all()
    assert (samples.std(0)[:, -1] > 0.05).all()  # and it does drop


@claims_masks
def test_dropout_in_the_backward_pass_is_that_of_the_forward_pass(backend):
    part, (q, k, v, table) = BACKENDS[backend](), leaves(5, 5, 2)

    def seeded(q, k, v, table):
        torch.manual_seed(3)
        return part(q, k, v, pattern_of("causal bias", 5, 0, table), 0.4)

    assert torch.autograd.gradcheck(seeded, (q, k, v, table), fast_mode=True)


@backends
def test_inputs_are_left_as_they_were(backend):
    inputs = [leaf.detach() for leaf in leaves(3, 7, 2)[:3]]
    before = [leaf.clone() for leaf in inputs]
    BACKENDS[backend]()(*inputs, Pattern(causal=True, offset=4))
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("backend", ["Flash", "Tiled128"])
def test_memory_grows_with_the_keys_and_not_with_their_square(backend):
    """The bytes kept for the backward pass, from 256 to 1024 tokens: 4 times as many, where Naive keeps 16."""

    def saved_bytes(name, T):
        sizes, inputs = {}, [torch.randn(1, 1, T, 4, requires_grad=True) for _ in range(3)]

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            BACKENDS[name]()(*inputs, Pattern(causal=True))
        return sum(sizes.values())

    assert saved_bytes(backend, 1024) <= 4.1 * saved_bytes(backend, 256)
    assert saved_bytes("Naive", 1024) >= 10 * saved_bytes("Naive", 256)


def test_a_tile_without_rows_is_refused():
    with pytest.raises(UsageError, match="backend Tiled needs tiles of at least 1 row, got tile=0"):
        Tiled(0)


@claims_masks
def test_one_pattern_serves_calls_of_different_sizes(backend):
    part, table = BACKENDS[backend](), torch.randn(4)
    shared = pattern_of("causal window bias", 9, 0, table)
    for T, S, heads in ((5, 5, 4), (3, 5, 4), (3, 7, 4), (3, 7, 2), (5, 5, 4)):
        q, k, v, _ = leaves(T, S, 2, heads=heads)
        fresh = pattern_of("causal window bias", 9, 0, table)
        assert torch.equal(part(q, k, v, shared), part(q, k, v, fresh))


def test_naive_weights_sum_to_one_or_to_zero_without_keys():
    q, k, _, table = leaves(5, 5, 2)
    sums = Naive().weights(q, k, pattern_of("causal valid bias", 5, 0, table)).sum(-1)
    assert_close(sums[1], torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0]).expand(4, 5), atol=1e-12, rtol=0)
    assert torch.equal(sums[0], torch.zeros(4, 5))


def test_a_thinned_pattern_is_one_object_per_rule_and_keeps_what_it_had():
    odd, near = (lambda query, key: (query - key) % 2 == 1), (lambda query, key: query - key < 4)
    pattern = Pattern(causal=True)
    assert pattern.thinned(odd) is pattern.thinned(odd) is not pattern.thinned(near)
    both = pattern.thinned(odd).thinned(near)
    visible = both.mask(torch.arange(8), torch.arange(8))
    assert visible.tolist() == [[q - k in (1, 3) for k in range(8)] for q in range(8)]
    assert both.needs == {"causal", "sparse"}
    assert not Pattern(causal=True, offset=7).thinned(odd).sees_all(1, 8)


@pytest.mark.parametrize("words", ["", "causal", "causal valid", "window valid bias"])
def test_bfloat16_products_are_about_as_near_to_float64_as_the_fused_kernel(words):
    make = torch.Generator().manual_seed(5)
    exact = [torch.randn(shape, generator=make) for shape in ((2, 4, 40, 16), (2, 2, 40, 16), (2, 2, 40, 16), (4,))]
    exact = [x.to(torch.bfloat16).double() for x in exact]

    def grown(call, dtype):
        inputs = [x.to(dtype).requires_grad_() for x in exact]
        pattern = pattern_of(words, 40, 0, inputs[3].double())
        out = call(*inputs[:3], pattern)
        return [out, *torch.autograd.grad(loss(out.double()), inputs[:3])]

    def distances(result):
        return [(x.double() - y).square().mean().sqrt().item() for x, y in zip(result, truth, strict=True)]

    truth = grown(Naive(), torch.float64)
    kernel = SDPA()
    kernel.matrix_products = False
    ours, fused = (distances(grown(call, torch.bfloat16)) for call in (cpu_attention.attention, kernel))
    # near one-hot rows the gradients are up to 2.2 times as far off: the slope of a weight is rounded before the
    # softmax's mean is taken off it, as wherever a product gives this type
    assert all(one <= 2.5 * other for one, other in zip(ours, fused, strict=True)), (ours, fused)
    assert ours[0] <= 1.4 * fused[0]


@pytest.mark.parametrize("kernel", ["fused", "products"])
def test_bfloat16_on_a_processor_is_computed_as_was_measured_unless_the_scores_are_huge(kernel, monkeypatch):
    calls = []
    monkeypatch.setattr(cpu_attention, "fastest_kernel", lambda *call: calls.append(call) or kernel)
    q, pattern = torch.zeros(1, 2, 7, 4, requires_grad=True), Pattern(causal=True)
    products = kernel == "products"
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        expected = products and dtype == torch.bfloat16
        assert cpu_attention.worthwhile(q.to(dtype), q.to(dtype), pattern) == expected
    narrow = q.bfloat16()
    with torch.no_grad():
        assert cpu_attention.worthwhile(narrow, narrow[:, :, :5], Pattern(window=2)) == products
    assert cpu_attention.worthwhile(narrow, narrow, pattern, 0.1) == products
    # queries, keys and width; training, masks beyond causality, dropout
    assert calls == [(8, 8, 4, True, False, False), (8, 8, 4, False, True, False), (8, 8, 4, True, False, True)]
    name = "attention" if products else "scaled_dot_product_attention"
    used = []
    monkeypatch.setattr(cpu_attention if products else torch.nn.functional, name, lambda q, *_, **__: used.append(q))
    SDPA()(narrow, narrow, narrow, pattern)
    assert used[0] is narrow
    assert not cpu_attention.worthwhile(q[:, :, :1].bfloat16(), narrow, pattern)
    monkeypatch.setattr(cpu_attention, "LARGEST", 4 * 2 * 7 * 7 - 1)
    assert not cpu_attention.worthwhile(narrow, narrow, pattern)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_both_kernels_of_bfloat16_attention_are_measured_on_the_same_call(training, masked, monkeypatch):
    results, attention = {}, cpu_attention.attention
    fused = torch.nn.functional.scaled_dot_product_attention
    for module, name, call in (
        (cpu_attention, "attention", attention), (torch.nn.functional, "scaled_dot_product_attention", fused)
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *args, name=name, call=call: results.setdefault(name, call(*args)))
    for kernel in cpu_attention._examples(16, 16, 8, training, masked, 0.0).values():
        kernel()
    assert {out.requires_grad for out in results.values()} == {training}
    assert_close(*results.values(), atol=0.02, rtol=0.02)


CAPPED = ["whole", "step", "chunk", "behind", "kept chunk"]


@pytest.mark.parametrize(("words", "shape", "cap"), covering_params(PATTERNS, CAPPED, [None, 0.5]))
def test_a_cap_and_the_log_sum_exp_are_their_formulas(words, shape, cap):
    T, S, offset, start = SHAPES[shape]
    q, k, v, table = (leaf.detach() for leaf in leaves(T, S, 2))
    pattern = replace(pattern_of(words, S, offset, table, start), score_cap=cap)
    sums, expected = torch.empty(2, 4, T), torch.zeros(2, 4, T, 3)
    for b, h, t in itertools.product(range(2), range(4), range(T)):
        scores = []
        for s in range(S):
            visible = pattern.allowed(torch.tensor(t + offset), torch.tensor(s + start))
            if visible and (pattern.valid is None or pattern.valid[b, s]):
                score = (q[b, h, t] @ k[b, h // 2, s]).item() / math.sqrt(3)
                score = score if cap is None else cap * math.tanh(score / cap)
                bias = table[h].item() * (t + offset - 2 * (s + start)) if "bias" in words else 0.0
                scores.append((score + bias, s))
        total = sum(math.exp(score) for score, _ in scores)
        sums[b, h, t] = math.log(total) if scores else -math.inf
        expected[b, h, t] += sum(math.exp(score) / total * v[b, h // 2, s] for score, s in scores)
    for name, make in LSE.items():
        out, lse = make().with_lse(q, k, v, pattern)
        assert torch.equal(out, make()(q, k, v, pattern)), name
        assert_close(lse, sums, atol=1e-12, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
        assert_close(out, expected, atol=1e-12, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("Naive", "Tiled3") else [pytest.mark.campaign]) for name in LSE]
)
def test_gradients_of_a_cap_and_of_the_log_sum_exp_are_differences(name):
    q, k, v, table = leaves(3, 4, 2)

    def run(q, k, v, table):
        pattern = Pattern(causal=True, valid=padding(4), score_cap=0.5, offset=1,
                          bias=lambda head, query, key: table[head] * (query - 2 * key))  # fmt: skip
        out, lse = LSE[name]().with_lse(q, k, v, pattern)
        return out * (lse - 0.3).sigmoid().unsqueeze(-1)

    assert torch.autograd.gradcheck(run, (q, k, v, table))


def test_kernels_of_torch_refuse_a_cap_and_the_log_sum_exp():
    q, k, v, _ = leaves(3, 3, 4)
    for backend in (SDPA(), Flash()):
        with pytest.raises(UsageError, match="cannot lower score_cap"):
            backend(q, k, v, Pattern(score_cap=2.0))
        with pytest.raises(UsageError, match=r"gives no log-sum-exp \(lse\)"):
            backend.with_lse(q, k, v, Pattern())


def test_a_capped_pattern_is_one_object_per_cap_and_keeps_what_it_had():
    pattern = Pattern(causal=True)
    capped = pattern.capped(2.0)
    assert pattern.capped(2.0) is capped
    assert capped is not pattern.capped(3.0)
    assert (capped.needs, capped.score_cap) == ({"causal", "score_cap"}, 2.0)


@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("words", ["", "causal", "window", "causal window bias", "causal sparse bias", "bias"])
def test_tokens_at_places_are_those_of_a_whole_sequence(words, groups):
    q, k, v, table = (leaf.detach() for leaf in leaves(9, 9, groups))
    rows = [[0, 2, 3, 7], [1, 4, 5, 8]], [[0, 2, 3, 6, 7], [1, 3, 4, 5, 8]]
    real = torch.tensor([[True] * 5, [True, False, True, True, True]])
    whole = torch.zeros(2, 9, dtype=torch.bool).scatter(1, torch.tensor(rows[1]), real)
    pattern = pattern_of(words, 9, 0, table)
    expected = Naive()(q, k, v, replace(pattern, valid=whole))
    queries, keys = (torch.stack([x[b, :, row] for b, row in enumerate(rows[n])]) for n, x in ((0, q), (1, k)))
    values = torch.stack([v[b, :, row] for b, row in enumerate(rows[1])])
    places = torch.tensor(rows[0]), torch.tensor(rows[1])
    for backend in (Naive(), SDPA(), Products()):
        out = backend(queries, keys, values, replace(pattern, valid=real, places=places))
        for b, row in enumerate(rows[0]):
            assert_close(out[b], expected[b, :, row], atol=1e-12, rtol=0)
    for refuses in (Tiled(), Flash()):
        with pytest.raises(UsageError, match="places"):
            refuses(queries, keys, values, replace(pattern, valid=real, places=places))
