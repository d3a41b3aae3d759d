"""Spans behind sentinels give the text back; each of the five noises does what its paper says, and no more."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from text_helpers import documents as text
from zoo_text.data.corruption import (
    Corrupted,
    corrupt_spans,
    delete_tokens,
    infill,
    mask_tokens,
    permute_sentences,
    restore_spans,
    rotate,
    sentences,
    spans,
)  # fmt: skip
from zoo_text.data.denoising import Denoising, SpanCorruption

from zoo.errors import UsageError

MASK = 999


def draws(count=200):
    return [np.random.default_rng(seed) for seed in range(count)]


def test_the_example_of_the_paper():
    words = "Thank you for inviting me to your party last week".split()
    sentinels = np.array([100, 101, 102])
    result = corrupt_spans(np.arange(10), [(2, 4), (8, 9)], sentinels)
    names = {**dict(enumerate(words)), 100: "<X>", 101: "<Y>", 102: "<Z>"}
    assert " ".join(names[token] for token in result.source) == "Thank you <X> me to your party <Y> week"
    assert " ".join(names[token] for token in result.target) == "<X> for inviting <Y> last <Z>"


def test_spans_have_the_rate_and_the_mean_and_stand_apart():
    lengths = []
    for draw in draws():
        length = int(draw.integers(2, 200))
        result = spans(length, 0.15, 3.0, draw)
        noise = [end - start for start, end in result]
        assert sum(noise) == min(max(round(length * 0.15), 1), length - 1)
        assert len(noise) == min(max(round(sum(noise) / 3), 1), sum(noise), length - sum(noise))
        assert min(noise) >= 1
        assert all(before[1] < after[0] for before, after in itertools.pairwise(result))
        assert result[-1][1] <= length
        lengths += noise if length > 100 else []
    assert np.mean(lengths) == pytest.approx(3.0, abs=0.2)


def test_spans_come_from_everywhere():
    counts = Counter(
        place for draw in draws(400) for start, end in spans(20, 0.15, 3.0, draw) for place in range(start, end)
    )
    assert set(counts) == set(range(20))


def test_source_and_target_give_the_text_back_exactly():
    sentinels = np.arange(1000, 1100)
    for draw in draws():
        tokens = draw.integers(0, 50, int(draw.integers(2, 120)))
        result = corrupt_spans(tokens, spans(len(tokens), float(draw.uniform(0.05, 0.6)), 3.0, draw), sentinels)
        assert np.array_equal(restore_spans(result, sentinels), tokens)
        assert not np.array_equal(result.source, tokens)


def test_what_does_not_belong_together_is_refused():
    sentinels = np.array([100, 101, 102])
    with pytest.raises(ValueError, match="lacks sentinel 1"):
        restore_spans(Corrupted(np.array([1, 100, 2, 101]), np.array([100, 5])), sentinels)
    with pytest.raises(ValueError, match="does not begin"):
        restore_spans(Corrupted(np.array([1, 100]), np.array([5, 100])), sentinels)


def test_token_masking_and_deletion():
    masked = deleted = 0
    for draw in draws():
        tokens = draw.integers(0, 50, 100)
        corrupted = mask_tokens(tokens, 0.3, MASK, draw)
        assert ((corrupted == tokens) | (corrupted == MASK)).all()
        masked += (corrupted == MASK).sum()
        shorter = delete_tokens(tokens, 0.3, draw)
        original = iter(tokens.tolist())
        assert all(token in original for token in shorter.tolist())  # a subsequence: the order stays
        deleted += 100 - len(shorter)
    assert masked / 20000 == pytest.approx(0.3, abs=0.01)
    assert deleted / 20000 == pytest.approx(0.3, abs=0.01)
    assert len(delete_tokens(np.array([1, 2]), 0.999999, np.random.default_rng(0))) == 1


def matches(corrupted, tokens):
    """Whether each mask can stand for a (perhaps empty) span so that the text comes out, and no other token changed."""
    reach = {0}
    for token in corrupted:
        if token == MASK:
            reach = set(range(min(reach), len(tokens) + 1))
        else:
            reach = {at + 1 for at in reach if at < len(tokens) and tokens[at] == token}
        if not reach:
            return False
    return len(tokens) in reach


@pytest.mark.parametrize("mean", [0.1, 0.3, 1.0, 8.0])
def test_infilling_hides_its_share_whatever_the_length_of_spans(mean):
    hidden = []
    for draw in draws():
        corrupted = infill(np.arange(100), 0.3, mean, MASK, draw)
        assert len(corrupted) <= 100
        hidden.append(100 - (corrupted != MASK).sum())
    assert np.mean(hidden) == pytest.approx(30, abs=2.0)


def test_infilling_hides_whole_spans_behind_one_mask_each():
    hidden, counts, grown = [], [], 0
    for draw in draws():
        tokens = np.arange(100)
        corrupted = infill(tokens, 0.3, 3.0, MASK, draw)
        assert matches(corrupted, tokens)
        assert len(corrupted) <= len(tokens)
        hidden.append(100 - (corrupted != MASK).sum())
        counts.append((corrupted == MASK).sum())
        edges = [-1, *corrupted[corrupted != MASK].tolist(), 100]
        gaps = sum(after - before > 1 for before, after in itertools.pairwise(edges))
        grown += counts[-1] > gaps  # spans of length 0
    assert np.mean(hidden) == pytest.approx(30, abs=1.0)
    assert np.mean(counts) == pytest.approx(10, abs=1.5)  # 30 hidden tokens in spans of 3
    assert grown > 20


def test_sentence_permutation_moves_whole_sentences():
    ends = np.zeros(60, bool)
    ends[0] = True
    orders = set()
    for draw in draws():
        tokens = np.array([5, 6, 0, 7, 8, 9, 0, 10, 0, 11, 12])
        corrupted = permute_sentences(tokens, ends, draw)
        assert sorted(map(tuple, sentences(tokens, ends))) == [(5, 6, 0), (7, 8, 9, 0), (10, 0), (11, 12)]
        pieces = [(5, 6, 0), (7, 8, 9, 0), (10, 0), (11, 12)]
        remainder, order = tuple(corrupted.tolist()), []
        while remainder:
            piece = next(p for p in pieces if remainder[: len(p)] == p)
            order.append(piece)
            remainder = remainder[len(piece) :]
        assert sorted(order) == sorted(pieces)
        orders.add(tuple(order))
    assert len(orders) == 24


def test_rotation_is_undone_by_its_start():
    starts = set()
    for draw in draws():
        tokens = np.arange(30)
        corrupted = rotate(tokens, draw)
        start = int(corrupted[0])
        assert np.array_equal(np.roll(corrupted, start), tokens)
        starts.add(start)
    assert len(starts) == 30


@pytest.mark.parametrize("kind", [SpanCorruption, Denoising])
def test_batches_are_those_of_translation(folder, kind):
    module = kind(text(folder), seed=1)
    module.setup()
    rows = module.datasets["train"]
    batch = rows.batch(np.arange(5), 0)
    for row in range(5):
        source, target = (batch[side][row][batch[f"{side}_valid"][row]].tolist() for side in ("source", "target"))
        pair = rows.pair(row, 0)
        assert source == [*pair.source.tolist(), module.number("<eos>")]
        assert target == [module.number("<bos>"), *pair.target.tolist(), module.number("<eos>")]
    assert batch["source"].size(1) <= module.max_length
    assert batch["target"].size(1) - 1 <= module.max_length
    assert not torch.equal(batch["source"], rows.batch(np.arange(5), 1)["source"][:, : batch["source"].size(1)])
    val = module.datasets["val"]
    one, two = val.batch(np.arange(len(val)), 0), val.batch(np.arange(len(val)), 3)
    assert torch.equal(one["source"], two["source"])
    assert one["decode"].sum() == min(32, len(val))
    assert one["text"][0] == module.detokenize(val.pair(0, 0).target)


def test_span_corruption_of_the_data_gives_the_text_back(folder):
    module = SpanCorruption(text(folder), seed=1)
    module.setup()
    rows = module.datasets["val"]
    sentinels = np.array([module.number(name) for name in module.added[3:]])
    whole = [restore_spans(rows.pair(index, 0), sentinels) if len(rows.pair(index, 0).source) > 1 else
             rows.pair(index, 0).source for index in range(len(rows))]  # fmt: skip
    assert np.array_equal(np.concatenate(whole), module.text.datasets["val"].tokens)


@pytest.mark.parametrize("noise", ["masking", "deletion", "infilling", "permutation", "rotation"])
def test_one_noise_alone_is_that_noise(folder, noise):
    module = Denoising(text(folder), noises=[noise], seed=1)
    module.setup()
    rows, mask = module.datasets["train"], module.number("<mask>")
    different = 0
    for index in range(len(rows)):
        corrupted, expected = rows.pair(index, 0)
        different += not np.array_equal(corrupted, expected)
        assert (mask in corrupted) <= (noise in ("masking", "infilling"))
        if noise in ("permutation", "rotation"):
            assert sorted(corrupted.tolist()) == sorted(expected.tolist())
        if noise == "masking":
            assert ((corrupted == expected) | (corrupted == mask)).all()
    assert different > len(rows) / 2


def test_an_unknown_noise_is_refused(folder):
    with pytest.raises(UsageError, match="unknown noise 'shouting'"):
        Denoising(text(folder), noises=["shouting"])
