"""LSH is softmax over the union of its rounds' buckets, causal, the same in steps, and as cheap as its buckets."""

from functools import partial

import pytest
import torch
from efficient_measures import Largest, exponent, padded, saved_bytes
from torch.testing import assert_close
from zoo_efficient.lsh import LSH, direction, meet

from zoo.errors import UsageError
from zoo.models import LanguageModel
from zoo.models.initialization import initialize
from zoo.models.stack import Stack
from zoo.parts.backend import SDPA, Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition, RoPE

DIM, HEADS = 24, 4
double = pytest.mark.usefixtures("double")
CALLS = {  # T, S, offset, start
    "whole": (7, 7, 0, 0), "one": (1, 1, 0, 0), "step": (1, 9, 8, 0), "prefix": (3, 9, 6, 0), "long": (40, 40, 0, 0),
    "forgotten keys": (3, 5, 12, 10),
}  # fmt: skip
PATTERNS = {
    "plain": {}, "causal": {"causal": True}, "window": {"window": 3}, "valid": {"valid": True},
    "bias": {"bias": lambda h, q, k: 0.1 * (h + 1) * (q - 2 * k)}, "sparse": {"sparse": lambda q, k: (q - k) % 3 != 1},
    "all": {"causal": True, "window": 5, "valid": True, "bias": lambda h, q, k: 0.1 * (h + 1) * (q - 2 * k)},
}  # fmt: skip


def bucket(turns, x):
    """Andoni et al. (2015): the largest of x R and -x R."""
    scores = [float(sum(x[d] * turns[d, n] for d in range(len(x)))) for n in range(turns.size(1))]
    scores += [-score for score in scores]
    return scores.index(max(scores)) if scores else 0


def union(part, q, k, pattern):
    """Weights by the definition: who met in any round and is allowed, oneself only if there is nobody else."""
    (B, H, T, _), S = q.shape, k.size(2)
    weights = torch.zeros(B, H, T, S)
    for b in range(B):
        for h in range(H):
            here, there = ([[bucket(turns, row) for row in x[b, h]] for turns in part.turns[h]] for x in (q, k))
            for t in range(T):
                at, met = pattern.offset + t, []
                for s in range(S):
                    to = pattern.start + s
                    allowed = bool(pattern.allowed(torch.tensor(at), torch.tensor(to)))
                    real = pattern.valid is None or bool(pattern.valid[b, s])
                    if allowed and real and any(ours[t] == theirs[s] for ours, theirs in zip(here, there, strict=True)):
                        met.append(s)
                met = [s for s in met if pattern.start + s != at] or met
                scores = torch.stack([(q[b, h, t] * k[b, h, s]).sum() for s in met]) if met else torch.zeros(0)
                if pattern.bias is not None:
                    scores = scores + torch.tensor([pattern.bias(h, at, pattern.start + s) for s in met])
                weights[b, h, t, met] = scores.softmax(0)
    return weights


@double
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("words", PATTERNS)
@pytest.mark.parametrize(("buckets", "rounds"), [(1, 1), (2, 1), (4, 2), (6, 3)])
def test_it_is_softmax_over_the_union_of_the_rounds(call, words, buckets, rounds):
    T, S, offset, start = CALLS[call]
    part, q = LSH(DIM, HEADS, buckets=buckets, rounds=rounds), torch.randn(2, HEADS, S, 6)
    k, v, q = direction(q), torch.randn(2, HEADS, S, 6), q[:, :, S - T :]
    valid = torch.rand(2, S) < 0.6 if "valid" in PATTERNS[words] else None
    pattern = Pattern(**PATTERNS[words] | {"valid": valid, "offset": offset, "start": start})
    expected = union(part, q, k, pattern)
    assert_close(part.weigh(q, k, pattern), expected, atol=1e-10, rtol=0)
    assert_close(part.attend(q, k, v, pattern), expected @ v, atol=1e-10, rtol=0)


@double
@pytest.mark.parametrize("causal", [True, False])
def test_one_bucket_is_full_attention_with_shared_queries_and_keys(causal):
    part, x = LSH(DIM, HEADS, buckets=1), torch.randn(2, 11, DIM)
    q, v = part.qkv(x).unflatten(-1, (8, 6)).transpose(1, 2).chunk(2, 1)
    score = q @ (q / q.norm(dim=-1, keepdim=True)).mT
    hidden = torch.eye(11, dtype=torch.bool)
    if causal:
        hidden[0, 0] = False  # the first token has nobody else
        hidden |= torch.ones(11, 11, dtype=torch.bool).triu(1)
    expected = part.out((score.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2))
    assert_close(part(x, pattern=Pattern(causal=causal)), expected, atol=1e-10, rtol=0)


@double
def test_no_later_token_changes_an_earlier_one_wherever_buckets_end():
    part, x = LSH(DIM, HEADS, buckets=6), torch.randn(1, 90, DIM)
    whole = part(x, pattern=Pattern(causal=True))
    for t in (1, 2, 7, 30, 45, 89):
        other = torch.cat([x[:, :t], 30 * torch.randn(1, 90 - t, DIM)], 1)
        for later in (other, x[:, :t]):
            assert_close(part(later, pattern=Pattern(causal=True))[:, :t], whole[:, :t], atol=1e-10, rtol=0)


@double
@pytest.mark.parametrize("window", [None, 4])
def test_decoding_is_one_pass_in_steps(window):
    net = Stack(Extent((40,), causal=True), dim=DIM, heads=HEADS, depth=2, attention=LSH, window=window)
    x, caches = torch.randn(2, 40, DIM), net.caches(40)
    steps = torch.cat([net(part, caches=caches) for part in x.split([9, 1, 20, 1, 9], 1)], 1)
    assert_close(steps, net(x), atol=1e-10, rtol=0)


@double
@pytest.mark.parametrize("position", [NoPosition, RoPE])
@pytest.mark.parametrize("on_left", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_on_either_side_changes_nothing(position, on_left, causal):
    net = Stack(
        Extent((16,), causal=causal), dim=DIM, heads=HEADS, depth=2, attention=LSH, position=position, padded=True
    )
    rows = [torch.randn(1, n, DIM) for n in (7, 3, 9)]
    x, valid = padded(rows, on_left, 11)
    out = net(x, valid)
    for b, row in enumerate(rows):
        assert_close(out[b][valid[b]], net(row)[0], atol=1e-10, rtol=0)


@double
@torch.no_grad()
def test_prompts_padded_on_the_left_decode_as_each_alone():
    model = LanguageModel(19, 16, dim=DIM, heads=HEADS, depth=2, attention=LSH).eval()
    rows, valid = [torch.randint(19, (1, n)) for n in (9, 6)], torch.arange(9) >= torch.tensor([[0], [3]])
    batch, caches = torch.cat([rows[0], torch.cat([rows[1][:, :3], rows[1]], 1)]), model.stack.caches(9)
    steps = [model(batch[:, a:b], valid[:, :b], caches) for a, b in ((0, 5), (5, 6), (6, 9))]
    for b, row in enumerate(rows):
        assert_close(torch.cat(steps, 1)[b][valid[b]], model(row)[0], atol=1e-10, rtol=0)


@double
def test_a_memory_is_seen_whole():
    part, x, memory = LSH(DIM, HEADS), torch.randn(2, 3, DIM), torch.randn(2, 9, DIM)
    valid = torch.arange(9) < torch.tensor([[9], [4]])
    q, _ = part.qkv(x).unflatten(-1, (8, 6)).transpose(1, 2).chunk(2, 1)
    k, v = part.qkv(memory).unflatten(-1, (8, 6)).transpose(1, 2).chunk(2, 1)
    score = q @ (k / k.norm(dim=-1, keepdim=True)).mT
    weights = score.masked_fill(~valid[:, None, None], -torch.inf).softmax(-1)
    pattern = Pattern(valid=valid)
    assert_close(part.weights(x, memory, pattern=pattern), weights, atol=1e-10, rtol=0)
    some = part.weights(x, memory, pattern=pattern, rows=[2, 0], heads=[1, 3])
    assert_close(some, weights[:, [1, 3]][:, :, [2, 0]], atol=1e-10, rtol=0)
    expected = part.out((weights @ v).transpose(1, 2).flatten(2))
    assert_close(part(x, memory, pattern=pattern), expected, atol=1e-10, rtol=0)


def test_more_rounds_find_more_of_the_nearest_keys():
    q = torch.randn(1, HEADS, 200, 6)
    k = direction(q)
    near = (direction(q) @ k.mT - 2 * torch.eye(200)).argmax(-1, keepdim=True)
    recalls = [
        (LSH(DIM, HEADS, buckets=8, rounds=rounds).weigh(q, k, Pattern()).gather(-1, near) > 0).float().mean().item()
        for rounds in (1, 2, 4)
    ]
    assert recalls[0] > 2 / 8  # chance is one in eight
    assert recalls[0] + 0.1 < recalls[1] < recalls[2] - 0.1


def test_queries_and_keys_meet_in_chunks_of_one_bucket():
    here, there = torch.randint(6, (2, 3, 50)), torch.randint(7, (2, 3, 40))  # bucket 6 is padding's
    row, key, real, slot = meet(here, there, 6)
    assert key.size(-1) == max(int((there == n).sum(-1).max()) for n in range(6))
    assert row.size(2) * row.size(3) <= 50 + 6 * row.size(3)
    for b in range(2):
        for h in range(3):
            for t in range(50):
                chunk = slot[b, h, t] // row.size(-1)
                assert row[b, h].flatten()[slot[b, h, t]] == t
                met = key[b, h, chunk][real[b, h, chunk]].sort().values
                assert torch.equal(met, (there[b, h] == here[b, h, t]).nonzero()[:, 0])


def test_with_buckets_in_proportion_no_tensor_is_quadratic():
    largest, saved = {}, {}
    for length in (512, 1024, 2048, 4096):
        part, q = LSH(64, 2, buckets=length // 32, rounds=1), torch.randn(1, 2, length, 32, requires_grad=True)
        run = partial(part.attend, q, direction(q), q, Pattern(causal=True))
        saved[length] = saved_bytes(run)
        with Largest() as most:
            run().sum().backward()
        largest[length] = most.numbers
    assert exponent(saved) <= 1.1
    assert exponent(largest) <= 1.2  # the longest of more buckets is a little longer
    assert largest[4096] < 2 * 4096**2 / 20  # of all pairs of both heads


@double
def test_gradients_are_those_of_the_function():
    part, x = LSH(DIM, HEADS, buckets=4), torch.randn(1, 9, DIM, requires_grad=True)
    valid = torch.arange(9)[None] != 4
    assert torch.autograd.gradcheck(lambda x: part(x, pattern=Pattern(causal=True, valid=valid)), x, fast_mode=True)


def test_buckets_are_about_equally_full():
    part, x = LSH(DIM, 2, buckets=64, rounds=2), torch.randn(1, 2, 6400, 12)
    counts = [torch.bincount(numbers, minlength=64) for numbers in part._hash(x).flatten(0, 2)]
    assert max(count.max().item() for count in counts) < 2.5 * 100
    assert min(count.min().item() for count in counts) > 100 / 4


def test_buckets_follow_the_seed_and_are_saved():
    parts = [initialize(LSH(DIM, HEADS, buckets=6, rounds=3), seed) for seed in (1, 1, 2)]
    assert torch.equal(parts[0].turns, parts[1].turns)
    assert not torch.equal(parts[0].turns, parts[2].turns)
    assert parts[0].state_dict()["turns"].shape == (HEADS, 3, 6, 3)


def test_low_precision_stays_low_and_moves_few_tokens_to_another_bucket():
    part, x = LSH(DIM, HEADS), torch.randn(4, 100, DIM)
    for dtype, share in ((torch.bfloat16, 0.6), (torch.float16, 0.9)):
        low, low_x = part.to(dtype), x.to(dtype)
        out = low(low_x, pattern=Pattern(causal=True))
        exact = part.double()(low_x.double(), pattern=Pattern(causal=True))
        assert out.dtype == dtype
        close = (out - exact).abs().amax(-1) <= 16 * torch.finfo(dtype).eps * exact.abs().max()
        assert close.float().mean() > share


def test_under_autocast_buckets_are_those_of_float32():
    part, x = LSH(DIM, HEADS), torch.randn(4, 100, DIM)
    whole = part(x, pattern=Pattern(causal=True))
    with torch.autocast("cpu", torch.bfloat16):
        out = part(x, pattern=Pattern(causal=True))
    assert out.dtype == torch.bfloat16
    assert (out - whole).abs().max() < 0.02


def test_dropout_falls_on_weights():
    part, x = LSH(DIM, HEADS, dropout=0.5, buckets=2), torch.randn(1, 6, DIM)
    samples = torch.stack([part(x, pattern=Pattern()).detach() for _ in range(600)])
    still = part.eval()(x, pattern=Pattern())
    assert ((samples.mean(0) - still).abs() <= 5 * samples.std(0) / 600**0.5 + 1e-6).all()
    assert (samples.std(0) > 1e-3).all()


@pytest.mark.parametrize(("build", "words"), [
    (lambda: LSH(DIM, HEADS, buckets=5), r"LSH needs 1 or an even number of buckets, got 5. Try 4 or 6\."),
    (lambda: LSH(DIM, HEADS, buckets=0), r"LSH needs 1 or an even number of buckets, got 0. Try 1 or 2\."),
    (lambda: LSH(DIM, HEADS, rounds=0), "attention LSH needs rounds of at least 1, got 0"),
    (lambda: LSH(DIM, HEADS, SDPA()), "attention LSH has no dot product, which is all that backend SDPA computes"),
])  # fmt: skip
def test_what_cannot_work_is_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


def test_it_takes_the_one_backend_that_every_attention_takes():
    assert isinstance(LSH(DIM, HEADS, Naive()).backend, Naive)
