"""The recurrent encoder-decoder against torch's layers, the formulas as loops, and the claims made about it."""

import math

import pytest
import torch
import torch.nn.functional as F
from zoo_classic.seq2seq import CELLS, LAYERS, SCORES, RecurrentSeq2Seq

from zoo.errors import UsageError
from zoo.models.attention_weights import record_weights
from zoo.models.generation import GenerationConfig, generate
from zoo.parts.attention import Additive
from zoo.parts.block import Memory
from zoo.parts.pattern import Pattern

WORDS = 11
EVERY = [(cell, score) for cell in CELLS for score in ("none", *SCORES)]


def small(**options):
    return RecurrentSeq2Seq(WORDS, WORDS, 32, **{"dim": 8, "depth": 2} | options).eval()


def tokens(*shape):
    return torch.randint(WORDS, shape)


def right_padded(*lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def close(got, want, atol=1e-10):
    torch.testing.assert_close(got, want, atol=atol, rtol=0)


# the formulas


def rnn_loop(x, h, W, U, b, c):
    return torch.tanh(W @ x + b + U @ h + c)


def gru_loop(x, h, W, U, b, c):
    (ri, zi, ni), (rh, zh, nh) = (W @ x + b).chunk(3), (U @ h + c).chunk(3)
    r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
    return (1 - z) * torch.tanh(ni + r * nh) + z * h


def lstm_loop(x, h, W, U, b, c):
    hidden, memory = h.chunk(2)
    i, f, g, o = (W @ x + b + U @ hidden + c).chunk(4)
    memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
    return torch.cat([torch.sigmoid(o) * torch.tanh(memory), memory])


LOOPS = {"rnn": rnn_loop, "gru": gru_loop, "lstm": lstm_loop}


@pytest.mark.parametrize("cell", CELLS)
def test_encoder_follows_the_formula_of_its_cell(cell, double):
    encoder = small(cell=cell, depth=1, bidirectional=False).encoder
    x, h = torch.randn(1, 6, 8), torch.zeros(16 if cell == "lstm" else 8)
    weights = [p.detach() for p in encoder.layers.parameters()]
    for t, state in enumerate(encoder(x)[0]):
        h = LOOPS[cell](x[0, t], h, *weights)
        close(state.detach(), h[:8])


@pytest.mark.parametrize("cell", CELLS)
def test_decoder_without_attention_is_torchs_layer_over_context_and_tokens(cell):
    decoder = small(cell=cell, score="none").decoder
    layer = LAYERS[cell](16, 8, 2, batch_first=True)
    for number, part in enumerate(decoder.cells):
        for name, weight in part.named_parameters():
            getattr(layer, f"{name}_l{number}").data.copy_(weight)
    c, y = torch.randn(3, 1, 8), torch.randn(3, 5, 8)
    c5 = c.expand(-1, 5, -1)
    got, carried = decoder(y, decoder.begin(Memory(c)))
    want, last = layer(torch.cat([c5, y], -1))
    close(got, decoder.out(torch.cat([want, c5], -1)), 1e-6)
    for part, right in zip(zip(*carried.hidden, strict=True), last if cell == "lstm" else (last,), strict=True):
        close(torch.stack(part), right, 1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_context_is_the_last_state_of_each_direction(cell):
    encoder = small(cell=cell).encoder
    x, valid = torch.randn(2, 6, 8), right_padded(6, 3)
    c = encoder.summary(encoder(x, valid), valid)
    for row, length in enumerate((6, 3)):
        _, last = encoder.layers(x[row : row + 1, :length])
        last = last[0] if cell == "lstm" else last
        close(c[row], last[-2:, 0].flatten(), 1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_score_follows_its_formula(score, double):
    attend = small(score=score).requires_grad_(False).decoder.attend
    s, h, valid = torch.randn(3, 8), torch.randn(3, 5, 8), right_padded(5, 2, 4)
    got = attend(s, attend.key(h), valid)
    W, U = attend.query.weight, attend.key.weight
    for b in range(3):
        e = []
        for i in range(int(valid[b].sum())):
            if score == "additive":
                e.append(attend.v.weight[0] @ torch.tanh(W @ s[b] + U @ h[b, i]))
            else:
                e.append(torch.cat([W, U], 1)[0] @ torch.cat([s[b], h[b, i]]))
        total = sum(math.exp(value) for value in e)
        close(got[b], torch.tensor([math.exp(value) / total for value in e] + [0.0] * (5 - len(e))))


def test_additive_score_is_the_additive_attention_of_the_transformer(double):
    attend, part = small().decoder.attend, Additive(8, 1, bias=False)
    with torch.no_grad():
        part.qkv.weight[:8], part.qkv.weight[8:16] = attend.query.weight, attend.key.weight
        part.score.copy_(attend.v.weight)
    s, h, valid = torch.randn(3, 8), torch.randn(3, 5, 8), right_padded(5, 2, 4)
    close(attend(s, attend.key(h), valid), part.weights(s[:, None], h, pattern=Pattern(valid=valid))[:, 0, 0])


def test_context_is_the_weighted_mean_of_the_states(double):
    net = small(depth=1)
    memory = net.encode(tokens(2, 5), valid := right_padded(5, 3))
    y = torch.randn(2, 1, 8)
    with record_weights(net.decoder) as weights:
        got, carried = net.decoder(y, net.decoder.begin(memory))
    a = weights["alignment"][:, 0, 0]
    close(a.sum(1), torch.ones(2))
    assert (a[valid] > 0).all()
    assert (a[~valid] == 0).all()
    c = torch.stack([sum(a[b, i] * memory.states[b, i] for i in range(5)) for b in range(2)])
    s = net.decoder.cells[0](torch.cat([c, y[:, 0]], -1), torch.zeros(2, 8))
    close(carried.hidden[0][0], s)
    close(got[:, 0], net.decoder.out(torch.cat([s, c], -1)))


# what a decoder can know


@pytest.mark.parametrize("cell", CELLS)
def test_fixed_context_is_all_that_the_decoder_knows_of_the_source(cell):
    net = small(cell=cell, score="none")
    memory, target = net.encode(tokens(4, 7)), tokens(1, 5).expand(4, -1)
    assert memory.states.shape == (4, 1, 8)
    expected, _ = net.decode(target, net.decoder.begin(memory))
    untold, _ = net.decode(target, net.decoder.begin(Memory(torch.zeros_like(memory.states))))
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    assert torch.equal(untold, untold[:1].expand_as(untold))


@pytest.mark.parametrize(("cell", "score"), EVERY)
def test_a_step_sees_no_later_target(cell, score):
    net, source, target = small(cell=cell, score=score), tokens(2, 6), tokens(2, 7)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % WORDS
    before, after = net(source, target), net(source, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4], after[:, 4])


@pytest.mark.parametrize(("cell", "score"), EVERY)
def test_padding_and_neighbours_change_nothing(cell, score):
    net, source, target, valid = small(cell=cell, score=score), tokens(3, 7), tokens(3, 5), right_padded(7, 4, 1)
    together = net(source, target, valid)
    for row, length in enumerate((7, 4, 1)):
        close(together[row], net(source[row : row + 1, :length], target[row : row + 1])[0], 1e-6)
    other = source.masked_scatter(~valid, tokens(3, 7))
    wider = net(F.pad(other, (0, 3)), target, F.pad(valid, (0, 3)))
    close(wider, together, 1e-6)


@pytest.mark.parametrize("score", ["none", *SCORES])
def test_concat_looks_at_the_same_place_at_every_step_and_additive_does_not(score, double):
    net = small(score=score)
    with record_weights(net.decoder) as recorded:
        net(tokens(2, 6), tokens(2, 5))
    if score == "none":
        assert not recorded
        return
    weights = recorded["alignment"]
    assert weights.shape == (2, 1, 5, 6)
    moved = (weights - weights[:, :, :1]).abs().max()
    assert moved > 1e-6 if score == "additive" else moved < 1e-12


@pytest.mark.parametrize("tie", ["none", "output", "all"])
@pytest.mark.parametrize(("cell", "score"), EVERY)
def test_gradient_reaches_every_parameter(cell, score, tie, double):
    net = small(cell=cell, score=score, tie=tie).train()
    F.cross_entropy(net(tokens(4, 6), tokens(4, 5)).flatten(0, 1), tokens(20)).backward()
    for name, parameter in net.named_parameters():
        size = float(parameter.grad.abs().max())
        # the softmax over a source loses what concat says of the decoder's state
        assert size < 1e-15 if score == "concat" and name == "decoder.attend.query.weight" else size > 1e-9, name
    tied = {net.source_embedding.weight.data_ptr(), net.target_embedding.weight.data_ptr()}
    assert len(tied) == (1 if tie == "all" else 2)
    assert (net.head is None) == (tie != "none")


# writing


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("cell", "score"), EVERY)
def test_steps_of_a_state_equal_teacher_forcing(cell, score, bidirectional):
    net = small(cell=cell, score=score, bidirectional=bidirectional)
    source, target, valid = tokens(3, 6), tokens(3, 7), right_padded(6, 3, 5)
    rows = torch.tensor([2, 0, 0, 1])
    state = net.begin(source, valid, 7)
    want = net(source, target, valid)
    close(state.step(target[:, :3]), want[:, 2], 1e-6)
    close(state.step(target[:, 3:4]), want[:, 3], 1e-6)
    state.select(rows)
    for t in range(4, 7):
        close(state.step(target[rows, t : t + 1]), want[rows, t], 1e-6)


@pytest.mark.parametrize(("cell", "score"), EVERY)
def test_beams_score_what_they_wrote(cell, score):
    net, source, valid = small(cell=cell, score=score), tokens(2, 6), right_padded(6, 4)
    first = torch.zeros(2, 1, dtype=torch.long)
    with torch.no_grad():
        for row, result in enumerate(
            generate(net.begin(source, valid, 8), first, 2, GenerationConfig(max_length=8, beams=3, n_best=3))
        ):
            assert len({tuple(best.tokens) for best in result}) == 3
            for best in result:
                message = torch.tensor([best.tokens + [2] * best.ended])
                logits = net(source[row : row + 1], F.pad(message, (1, 0))[:, :-1], valid[row : row + 1])
                score_again = logits.double().log_softmax(-1).gather(2, message[..., None]).sum()
                assert best.score == pytest.approx(float(score_again), abs=1e-4)


# learning


def reverse(score, length, steps):
    """Train to reverse tokens: the accuracy under teacher forcing, and the weights of 256 new rows where there are."""
    generator = torch.Generator().manual_seed(0)
    net = RecurrentSeq2Seq(17, 17, 32, score=score, dim=32)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30) * (1 - step / steps))

    def batch(rows):
        source = torch.randint(1, 17, (rows, length), generator=generator)
        return source, F.pad(source.flip(1), (1, 0))

    for _ in range(steps):
        source, target = batch(64)
        loss = F.cross_entropy(net(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        decay.step()
    source, target = batch(256)
    with torch.no_grad(), record_weights(net.eval().decoder) as weights:
        right = net(source, target[:, :-1]).argmax(-1) == target[:, 1:]
    return float(right.float().mean()), weights.get("alignment")


def test_a_fixed_context_is_a_bottleneck_that_attention_removes():
    fixed, _ = reverse("none", 12, 150)
    attended, _ = reverse("additive", 12, 150)
    assert attended > fixed + 0.2


@pytest.mark.campaign
def test_attention_learns_to_look_along_the_anti_diagonal():
    accuracy, weights = reverse("additive", 8, 400)
    assert accuracy > 0.98
    assert weights[:, 0].mean(0).argmax(-1).tolist() == list(range(7, -1, -1))


# refusals


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"dim": 7}, "dim=7"),
        ({"depth": 0}, "depth"),
        ({"cell": "tanh"}, "cell"),
        ({"score": "dot"}, "score"),
    ],
)
def test_what_cannot_work_is_named(options, word):
    with pytest.raises(UsageError, match=word):
        small(**options)


def test_one_matrix_needs_one_vocabulary():
    with pytest.raises(UsageError, match="tie=all"):
        RecurrentSeq2Seq(5, 6, tie="all")


def test_same_seed_same_model_and_torchs_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    one, two = small(seed=3), small(seed=3, score="none")
    assert torch.equal(before, torch.random.get_rng_state())
    for name, weight in two.named_parameters():
        assert torch.equal(weight, one.get_parameter(name)), name
