"""NNLM, recurrent models and ELMo against loops, and what the notes say of them."""

import pytest
import torch
import torch.nn.functional as F
from classic_runs import trained
from zoo_classic.elmo import BiLM, ELMo, Mix, turned
from zoo_classic.nnlm import WindowNet
from zoo_classic.recurrent import RecurrentNet
from zoo_classic.spelling import spell

from zoo.errors import UsageError
from zoo.finetuning.weight_transfer import token_tensors
from zoo.models.parameter_roles import parameter_roles


def test_one_hot_times_q_is_a_row_of_q():
    q = torch.tensor([[0.2, 0.5], [0.7, -0.1], [-0.3, 0.8]])
    hot = F.one_hot(torch.arange(3), 3).float()
    assert (hot[1] @ q).tolist() == q[1].tolist()  # the notes' [0.7, -0.1]
    assert torch.equal(hot @ q, F.embedding(torch.arange(3), q))
    between = torch.cdist(hot, hot)
    assert torch.allclose(between[between > 0], torch.tensor(2.0).sqrt())


def test_the_words_of_a_sentence_are_rows_of_the_embedding():
    """The notes' table of four words, of which the sentence "cat eats fish" is rows 0, 3 and 2."""
    net = WindowNet(4, 16, window=1, dim=4, hidden=2)
    table = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 1.0, 1.1, 1.2], [1.3, 1.4, 1.5, 1.6]])
    net.embedding.weight.data = table
    vectors = net.embedding(torch.tensor([0, 3, 2]))
    assert torch.equal(vectors, torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.3, 1.4, 1.5, 1.6], [0.9, 1.0, 1.1, 1.2]]))
    net.embedding.weight.requires_grad_()
    net.embedding(torch.tensor([0, 3, 2])).sum().backward()
    assert net.embedding.weight.grad.sum(1).tolist() == [4, 0, 4, 4]  # a word that is not there does not learn


@pytest.mark.usefixtures("double")
def test_nnlm_is_w2_tanh_of_w1_c_plus_b1_plus_b2():
    """One of the notes' two formulas puts b2 inside W2's bracket; the other one, which this is, is right."""
    net = WindowNet(7, 16, window=4, dim=3, hidden=5).eval()
    torch.nn.init.normal_(net.inner.bias)
    torch.nn.init.normal_(net.outer.bias)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 2]])
    for at in range(6):
        c = []
        for i in range(at - 3, at + 1):
            c.append((net.embedding.weight[tokens[0, i]] if i >= 0 else net.start.weight[0]) * 3**0.5)
        hidden = torch.tanh(net.inner.weight @ torch.cat(c) + net.inner.bias)
        expected = net.outer.weight @ hidden + net.outer.bias
        assert torch.allclose(net(tokens)[0, at], expected, atol=1e-12)
        inside = net.outer.weight @ torch.tanh(hidden)
        assert not torch.allclose(net(tokens)[0, at], inside)


def test_a_word_outside_of_the_window_changes_nothing():
    net = WindowNet(9, 16, window=4, dim=4, hidden=8).eval()
    tokens = torch.arange(8)[None] % 9
    for back in range(8):
        changed = tokens.clone()
        changed[0, 7 - back] = 8
        assert torch.equal(net(changed)[0, -1], net(tokens)[0, -1]) == (back >= 4), back


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_recurrent_model_sees_the_past_alone_and_writes_as_it_reads(cell):
    net = RecurrentNet(9, 16, cell, dim=8, depth=2).eval()
    tokens = torch.randint(9, (2, 7))
    whole, changed = net(tokens), tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 9
    assert torch.equal(net(changed)[:, :4], whole[:, :4])
    assert not torch.allclose(net(changed)[:, 4:], whole[:, 4:])
    state = net.begin(9)
    first = state.step(tokens[:, :3])
    assert torch.allclose(first, whole[:, 2], atol=1e-6)
    state.select(torch.tensor([1, 0]))
    assert torch.allclose(state.step(tokens[[1, 0], 3:5]), whole[[1, 0], 4], atol=1e-6)


@pytest.mark.usefixtures("double")
def test_an_rnn_is_tanh_of_w_x_plus_u_h():
    net = RecurrentNet(9, 16, "rnn", dim=6, depth=1).eval()
    tokens, h = torch.randint(9, (1, 5)), torch.zeros(6)
    for at, token in enumerate(tokens[0]):
        x = net.embedding.weight[token] * 6**0.5
        layer = net.layers
        h = torch.tanh(layer.weight_ih_l0 @ x + layer.bias_ih_l0 + layer.weight_hh_l0 @ h + layer.bias_hh_l0)
        assert torch.allclose(net(tokens)[0, at], net.embedding.weight @ h, atol=1e-12)


def test_elmos_mix_begins_as_the_mean_and_learns_a_layer():
    mix, layers = Mix(3), torch.randn(3, 5, 8)
    assert torch.allclose(mix(layers), layers.mean(0), atol=1e-6)
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([1.0, -2.0, 0.5]))
        mix.gamma.fill_(2.0)
    e = torch.tensor([1.0, -2.0, 0.5]).exp()
    assert torch.allclose(mix(layers), 2 * sum(e[j] / e.sum() * layers[j] for j in range(3)), atol=1e-6)
    optimizer = torch.optim.Adam(mix.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        F.mse_loss(mix(layers), layers[2]).backward()
        optimizer.step()
    assert mix.shares[2] > 0.9
    assert mix.shares.sum().item() == pytest.approx(1)


def test_each_direction_sees_its_side_alone():
    net = BiLM(9, 16, dim=8, depth=2).eval()
    tokens, lengths = torch.randint(9, (1, 7)), torch.tensor([7])
    changed = tokens.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 9
    assert torch.equal(net(changed)[0, :3], net(tokens)[0, :3])
    assert not torch.allclose(net(changed)[0, 3:], net(tokens)[0, 3:])
    back, other = net.backward_logits(tokens, lengths), net.backward_logits(changed, lengths)
    assert torch.equal(back[0, 4:], other[0, 4:])
    assert not torch.allclose(back[0, :4], other[0, :4])


def test_padding_does_not_reach_the_backward_direction():
    task = ELMo(vocab_size=9, max_length=16, dim=8, depth=2).eval()
    inputs = torch.tensor([[1, 2, 3, 4, 4, 4]])
    batch = {"inputs": inputs, "targets": torch.tensor([[2, 3, 4, -100, -100, -100]]), "bytes": torch.tensor([3])}
    short = {"inputs": inputs[:, :3], "targets": batch["targets"][:, :3], "bytes": torch.tensor([3])}
    padded, unpadded = task.loss(batch), task.loss(short)
    assert padded.total.item() == pytest.approx(unpadded.total.item(), abs=1e-5)
    assert int(padded.size) == int(unpadded.size) == 6
    assert turned(torch.tensor([[1, 2, 3, 9]]), torch.tensor([3])).tolist() == [[3, 2, 1, 9]]


def test_layers_are_the_input_twice_and_the_states_of_both_directions():
    net = BiLM(9, 16, dim=8, depth=2).eval()
    tokens, lengths = torch.randint(9, (1, 5)), torch.tensor([5])
    x = net.read(tokens)
    layers = net.layers(x, lengths)
    assert layers.shape == (3, 1, 5, 16)
    assert torch.equal(layers[0], torch.cat([x, x], -1))
    assert torch.allclose(net.head(layers[2][..., :8]), net(tokens), atol=1e-6)
    assert torch.allclose(net.head(layers[2][..., 8:]), net.backward_logits(tokens, lengths), atol=1e-6)


def test_letters_are_read_from_the_left_and_any_word_has_a_vector():
    table = spell([b"ab", b"x" * 40])
    assert table[0, :3].tolist() == [98, 99, 0]
    assert table[1].tolist() == [121] * 16
    net = BiLM(9, 16, input="letters", dim=8).eval()
    words = net.letters(spell([b" apple", b" apples", b" zyzzyva", b"a"]))
    assert words.isfinite().all()
    assert len(torch.unique(words, dim=0)) == 4


def cosine(a, b):
    return F.cosine_similarity(a, b, dim=0).item()


SHORT = ["--data.size", "2000", "--data.batch_size", "8", "--model.dim", "32"]


def test_elmos_apple_depends_on_its_sentence_and_its_first_layer_does_not(tmp_path):
    model = trained(tmp_path, "elmo", *SHORT, "--trainer.max_steps", "200", "--model.lr", "1e-2")
    fruit, firm = "she eats a ripe apple", "the company apple sells phones"
    assert cosine(model.vector("apple", fruit, 0), model.vector("apple", firm, 0)) == pytest.approx(1, abs=1e-6)
    apart = cosine(model.vector("apple", fruit), model.vector("apple", firm))
    assert apart < 0.9
    assert apart < cosine(model.vector("apple", firm), model.vector("nokia", "the company nokia sells phones"))
    right, wrong = (
        model.score(f" the {words}").log_probability for words in ("king sits on the throne", "king the on")
    )
    assert right > wrong
    with pytest.raises(UsageError, match="'pear' is no word of"):
        model.vector("pear", fruit)


def test_a_model_of_letters_reads_a_word_that_it_has_never_seen(tmp_path):
    model = trained(tmp_path, "elmo", *SHORT, "--trainer.max_steps", "3", "--model.input", "letters")
    king = model.tokenizer.encode(" king")
    assert len(king) == 1
    assert torch.equal(model.net.spelling[king[0]], spell([b" king"])[0])
    words, layers = model.embed("the zyzzyva sleeps")
    assert words == ["the", "zyzzyva", "sleeps"]
    assert layers.shape == (3, 3, 64)
    assert not torch.allclose(layers[0, 1], model.embed("the zyzzyvas sleeps")[1][0, 1])


@pytest.mark.parametrize(
    "build",
    [
        lambda words: WindowNet(words, 16, dim=4, hidden=6, direct=True),
        lambda words: RecurrentNet(words, 16, "gru", 4, 1),
        lambda words: BiLM(words, 16, dim=4),
    ],
    ids=["nnlm", "recurrent", "elmo"],
)
def test_what_has_a_row_for_each_token_is_a_table_or_a_head_and_grows_with_new_tokens(build):
    nets = build(41), build(43)
    shapes = [{name: tensor.shape for name, tensor in net.state_dict().items()} for net in nets]
    grown = {name for name, shape in shapes[0].items() if shapes[1][name] != shape}
    roles = parameter_roles(nets[0])
    assert {roles[name] for name in grown if len(shapes[0][name]) > 1} <= {"embedding", "head"}
    assert grown == {name for name in token_tensors(nets[0]) if shapes[0][name][0] == 41}
