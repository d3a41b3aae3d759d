"""What a model may not see has no influence: the future, padding, other rows. What it computes in steps is the same."""

from functools import partial

import pytest
import torch
from small import (
    SIZES,
    WORDS,
    build_model,
    combinations,
    covering_cases,
    language,
    names,
    part_options,
    seq2seq,
    spread,
    stack,
    tokens,
)
from torch.testing import assert_close

from tests.covering import covering_params
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Flash
from zoo.parts.block import Memory
from zoo.parts.position import ALiBi, Extent, Sinusoidal

pytestmark = pytest.mark.usefixtures("double")
same = partial(assert_close, atol=1e-10, rtol=0)
LENGTH = 7


def label(parts):
    return "-".join(str(name) for name in parts.values() if name)


def rows(model):
    """Parametrise over parts in which all pairs occur that do not refuse each other: see test_compatibility.py."""
    cases = covering_cases(model, "position", "backend", "attention", window=[None, 2])
    return pytest.mark.parametrize("parts", cases, ids=label)


def model_of(build, parts, **options):
    parts = dict(parts)
    return build_model(build, parts, window=parts.pop("window"), **options)


accepted, padding_accepted = rows("LanguageModel"), rows("Seq2Seq")  # a translation always pads


@accepted
def test_no_gradient_reaches_the_future_and_some_reaches_all_the_past(parts):
    model, window = model_of(language, parts), parts["window"]
    x = torch.randn(1, LENGTH, SIZES["dim"], requires_grad=True)
    out = model.stack(x)
    reach = LENGTH if window is None else 1 + SIZES["depth"] * (window - 1)
    for t in range(LENGTH):
        (grad,) = torch.autograd.grad(out[0, t].sum(), x, retain_graph=True)
        reached = (grad[0].abs().sum(-1) > 0).tolist()
        assert not any(reached[t + 1 :])
        if parts["attention"] in ("MultiHead", "Gaussian", "Additive"):  # a plugin may leave keys out
            assert reached == [t - reach < s <= t for s in range(LENGTH)]


@accepted
def test_a_changed_future_changes_nothing_before_it(parts):
    model, x = model_of(language, parts), tokens(2, LENGTH)
    before = model(x)
    for t in range(1, LENGTH):
        other = x.clone()
        other[:, t:] = (other[:, t:] + 1 + torch.arange(LENGTH - t)) % WORDS
        after = model(other)
        same(after[:, :t], before[:, :t])
        assert (after[:, t] - before[:, t]).abs().max() > 1e-6


@padding_accepted
def test_a_changed_target_future_changes_nothing_before_it(parts):
    model, source, target = model_of(seq2seq, parts), tokens(2, 5), tokens(2, LENGTH)
    before = model(source, target)
    other = target.clone()
    other[:, 4:] = (other[:, 4:] + 1) % WORDS
    after = model(source, other)
    same(after[:, :4], before[:, :4])
    assert (after[:, 4] - before[:, 4]).abs().max() > 1e-6
    assert (model((source + 1) % WORDS, target) - before).abs().amax(2).min() > 1e-6  # and all of it sees the source


def padded(rows, side, length):
    """Rows of unequal length in one batch, padding on one side filled with rubbish, and where the real tokens are."""
    batch, valid = tokens(len(rows), length), torch.zeros(len(rows), length, dtype=torch.bool)
    for b, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        batch[b, place], valid[b, place] = row, True
    return batch, valid


@padding_accepted
def test_padding_changes_nothing_in_a_language_model(parts):
    model, rows = model_of(language, parts), [tokens(n) for n in (4, 2, LENGTH)]
    alone = [model(row[None])[0] for row in rows]
    for side in ("left", "right"):
        batch, valid = padded(rows, side, LENGTH + 2)
        out = model(batch, valid)
        for b, logits in enumerate(alone):
            same(out[b][valid[b]], logits)


@padding_accepted
def test_padding_of_the_source_changes_nothing_in_a_translation(parts):
    model, target = model_of(seq2seq, parts), tokens(3, 4)
    rows = [tokens(n) for n in (4, 2, LENGTH)]
    alone = [(model.encode(row[None]).states[0], model(row[None], target[b : b + 1])[0]) for b, row in enumerate(rows)]
    for side in ("left", "right"):
        batch, valid = padded(rows, side, LENGTH + 2)
        out, memory = model(batch, target, valid), model.encode(batch, valid)
        for b, (states, logits) in enumerate(alone):
            same(memory.states[b][valid[b]], states)
            same(out[b], logits)


@pytest.mark.parametrize("parts", combinations("norm", "ffn"), ids=label)
@pytest.mark.parametrize("side", ["left", "right"])
def test_no_norm_or_feed_forward_is_changed_by_padding_or_by_other_rows(parts, side):
    model, rows = build_model(language, parts), [tokens(n) for n in (4, 2, LENGTH)]
    batch, valid = padded(rows, side, LENGTH)
    out = model(batch, valid)
    for b, row in enumerate(rows):
        same(out[b][valid[b]], model(row[None])[0])
    assert (model(batch)[:2] - out[:2]).abs().max() > 1e-6  # the mask was needed


@accepted
def test_a_row_alone_is_the_row_in_a_batch(parts):
    model, target = model_of(language, parts), tokens(3, LENGTH)
    same(torch.cat([model(row[None]) for row in target]), model(target))


@padding_accepted
def test_a_pair_alone_is_the_pair_in_a_batch(parts):
    model, source, target = model_of(seq2seq, parts), tokens(3, 5), tokens(3, LENGTH)
    alone = [model(a[None], b[None]) for a, b in zip(source, target, strict=True)]
    same(torch.cat(alone), model(source, target))


CHUNKS = ([1] * LENGTH, [4, 3], [2, 4, 1])


@accepted
@torch.no_grad()
def test_decoding_with_a_cache_is_the_whole_at_once(parts):
    model, x = model_of(language, parts), tokens(2, LENGTH)
    whole = model(x)
    for sizes in CHUNKS:
        caches = model.stack.caches(LENGTH)
        same(torch.cat([model(part, caches=caches) for part in x.split(sizes, 1)], 1), whole)
        assert [cache.own.length for cache in caches] == [LENGTH] * SIZES["depth"]


@padding_accepted
@torch.no_grad()
def test_decoding_a_target_with_a_cache_is_the_whole_at_once(parts):
    model, source, target = model_of(seq2seq, parts), tokens(2, 5), tokens(2, LENGTH)
    memory = model.encode(source, torch.arange(5) < torch.tensor([[5], [3]]))
    whole = model.decode(target, memory)
    for sizes in CHUNKS:
        caches = model.decoder.caches(LENGTH)
        same(torch.cat([model.decode(part, memory, caches) for part in target.split(sizes, 1)], 1), whole)


@pytest.mark.parametrize(("position", "ffn", "window"), covering_params(names("position"), names("ffn"), [None, 2, 3]))
@torch.no_grad()
def test_decoding_a_left_padded_batch_with_a_cache_is_each_row_alone(position, ffn, window):
    parts = {"position": position, "ffn": ffn}
    model, rows = build_model(language, parts, window=window), [tokens(n) for n in (4, 2, LENGTH)]
    batch, valid = padded(rows, "left", LENGTH)
    caches = model.stack.caches(LENGTH)
    ends = [LENGTH - 2, LENGTH - 1, LENGTH]
    steps = [model(batch[:, a:b], valid[:, :b], caches) for a, b in zip([0, *ends], ends, strict=False)]
    for b, row in enumerate(rows):
        same(torch.cat(steps, 1)[b][valid[b]], model(row[None])[0])


@torch.no_grad()
def test_rows_of_all_caches_can_be_reordered_between_steps():
    model, source, target = spread(seq2seq()).eval(), tokens(3, 5), tokens(3, LENGTH)
    memory, order = model.encode(source), torch.tensor([2, 0, 2])
    caches = model.decoder.caches(LENGTH)
    model.decode(target[:, :4], memory, caches)
    for cache in caches:
        cache.own.select(order)
        cache.memory.select(order)
    remaining_logits = model.decode(target[:, 4:], Memory(memory.states[order]), caches)
    # a reordered prefix goes on with tokens of its own row
    mixed = torch.cat([target[order, :4], target[:, 4:]], 1)
    same(remaining_logits, model.decode(mixed, Memory(memory.states[order]))[:, 4:])


@pytest.mark.parametrize("extent", [Extent((8,)), Extent((2, 4))], ids=str)
@pytest.mark.parametrize("position", names("position"))
def test_only_without_position_is_a_set_of_tokens_all_there_is(position, extent):
    encoder = build_model(partial(stack, extent, depth=1), {"position": position})
    x, order = torch.randn(1, 8, SIZES["dim"]), torch.tensor([3, 0, 7, 1, 6, 2, 5, 4])
    change = (encoder(x[:, order]) - encoder(x)[:, order]).abs().max()
    assert (change < 1e-10) == (position == "NoPosition")


def test_a_causal_mask_is_a_position_of_its_own():
    decoder, x = stack(Extent((8,), causal=True)), torch.randn(1, 8, SIZES["dim"])
    assert (decoder(x.flip(1)) - decoder(x).flip(1)).abs().max() > 1e-6


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("position", ["RoPE", "ALiBi", "T5"])
@torch.no_grad()
def test_grouped_heads_decode_with_small_caches(kv_heads, position):
    model = language(heads=4, attention=partial(MultiHead, kv_heads=kv_heads), **part_options({"position": position}))
    model = spread(model).eval()
    x, caches = tokens(2, LENGTH), model.stack.caches(LENGTH)
    same(torch.cat([model(part, caches=caches) for part in x.split(1, 1)], 1), model(x))
    none = torch.empty(2, kv_heads, 0, SIZES["dim"] // 4)
    assert caches[0].own.extend(none, none)[0].shape == (2, kv_heads, LENGTH, SIZES["dim"] // 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no GPU, and is the same there")
def test_a_padded_batch_is_refused_by_flash_and_not_seen_unmasked():
    model = language(backend=Flash, position=Sinusoidal)
    with pytest.raises(ValueError, match="backend Flash cannot lower valid"):
        model(tokens(2, 5), torch.ones(2, 5, dtype=torch.bool))


def test_a_sequence_longer_than_a_learned_table_is_refused_with_the_way_out():
    model = build_model(language, {"position": "Learned"})
    with pytest.raises(ValueError, match="sequence length 17 exceeds max_length=16 of position Learned"):
        model(tokens(1, 17))
    caches = model.stack.caches(20)
    model(tokens(1, 16), caches=caches)
    with pytest.raises(ValueError, match="sequence length 17 exceeds max_length=16"):
        model(tokens(1, 1), caches=caches)


@pytest.mark.parametrize("position", ["NoPosition", "Sinusoidal", "RoPE", "ALiBi", "T5"])
def test_other_positions_run_beyond_the_length_they_were_made_for(position):
    assert build_model(language, {"position": position})(tokens(1, 40)).isfinite().all()


def test_each_layer_shares_one_bias_computed_once():
    calls = []

    class CountingALiBi(ALiBi):
        def bias(self, head, query, key):
            calls.append(1)
            return super().bias(head, query, key)

    language(position=CountingALiBi, depth=3)(tokens(2, 5))
    assert len(calls) == 1
