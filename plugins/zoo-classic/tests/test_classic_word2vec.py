"""Word2Vec: pairs by hand, gradients against the formula, and what the vectors mean."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from classic_runs import trained
from PIL import Image
from zoo_classic.pictures import main, plane
from zoo_classic.sentences import pairs_of_classes
from zoo_classic.word2vec import Pairs, Vectors, Word2Vec

from zoo.errors import UsageError


def as_lists(pairs):
    """A pair at a time: what is given, and what is wanted."""
    rows = zip(pairs.context, pairs.real, pairs.target, strict=True)
    return [(context[real].tolist(), int(target)) for context, real, target in rows]


def test_the_pairs_of_a_sentence_of_five_words():
    sentence = torch.arange(10, 15)[None]
    skipgram = Word2Vec(vocab_size=20, max_length=8, objective="skipgram", window=2).pairs(sentence)
    assert as_lists(skipgram) == [
        ([10], 11), ([10], 12), ([11], 10), ([11], 12), ([11], 13), ([12], 10), ([12], 11), ([12], 13), ([12], 14),
        ([13], 11), ([13], 12), ([13], 14), ([14], 12), ([14], 13),
    ]  # fmt: skip
    cbow = Word2Vec(vocab_size=20, max_length=8, objective="cbow", window=2).pairs(sentence)
    assert as_lists(cbow) == [
        ([11, 12], 10), ([10, 12, 13], 11), ([10, 11, 13, 14], 12), ([11, 12, 14], 13), ([12, 13], 14),
    ]  # fmt: skip


def test_pairs_stay_within_a_document_and_within_the_text():
    task = Word2Vec(vocab_size=20, max_length=8, window=3)
    task.separator.fill_(0)
    assert as_lists(task.pairs(torch.tensor([[5, 6, 0, 7, -1]]))) == [([5], 6), ([6], 5)]


@pytest.mark.usefixtures("double")
def test_the_gradient_of_negative_sampling_is_that_of_the_formula():
    net = Vectors(11, 8, dim=4)
    pairs = Pairs(torch.tensor([[2], [5]]), torch.ones(2, 1, dtype=torch.bool), torch.tensor([3, 2]))
    noise = torch.tensor([[7, 1, 7], [0, 2, 9]])
    net.negative(pairs, noise).backward()
    u, v = net.output.weight.detach(), net.embedding.weight.detach()
    du, dv = torch.zeros_like(u), torch.zeros_like(v)
    for centre, target, negatives in ((2, 3, (7, 1, 7)), (5, 2, (0, 2, 9))):
        for word, label in ((target, 1), *((n, 0) for n in negatives)):
            error = torch.sigmoid(u[word] @ v[centre]) - label
            du[word] += error * v[centre]
            dv[centre] += error * u[word]
    assert torch.allclose(net.output.weight.grad, du, atol=1e-12)
    assert torch.allclose(net.embedding.weight.grad, dv, atol=1e-12)


@pytest.mark.usefixtures("double")
def test_the_expected_loss_is_the_mean_over_draws_and_softmax_is_cross_entropy():
    net = Vectors(6, 8, dim=4)
    net.frequency.copy_(torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05]))
    pairs = Pairs(torch.tensor([[2, 5], [1, 0]]), torch.tensor([[True, True], [True, False]]), torch.tensor([3, 2]))
    noise = net.noise()
    assert noise.tolist() == pytest.approx([f**0.75 / sum(g**0.75 for g in net.frequency.tolist())
                                            for f in net.frequency.tolist()])  # fmt: skip
    mean = 0.0
    for one, two in product(range(6), repeat=2):
        mean += noise[one] * noise[two] * net.negative(pairs, torch.tensor([[one, two], [two, one]]))
    assert net.expected(pairs, 2).item() == pytest.approx(mean.item(), abs=1e-10)
    context = torch.stack([(net.embedding.weight[2] + net.embedding.weight[5]) / 2, net.embedding.weight[1]])
    scores = (context @ net.output.weight.T).log_softmax(1)
    assert net.softmax(pairs).item() == pytest.approx(-(scores[0, 3] + scores[1, 2]).item(), abs=1e-12)


def test_frequent_words_are_left_out_as_often_as_the_formula_says():
    task = Word2Vec(vocab_size=3, max_length=8, window=1, subsample=0.05).train()
    task.net.frequency.copy_(torch.tensor([0.8, 0.15, 0.05]))
    tokens = torch.tensor([[0, 2]]).repeat(20000, 1)
    pairs = task.pairs(tokens)
    assert len(pairs.target) / 40000 == pytest.approx((0.05 / 0.8) ** 0.5, abs=0.01)
    assert len(task.eval().pairs(tokens).target) == 40000


@pytest.mark.parametrize("options", [[], ["--model.objective", "cbow", "--model.output", "softmax"]])
def test_vectors_tell_classes_apart_and_king_minus_man_plus_woman_is_queen(tmp_path, options):
    model = trained(tmp_path, "word2vec", "--trainer.max_steps", "250", *options)
    cosines = [(model.similarity(one, two), same) for one, two, same in pairs_of_classes()]
    near, far = ([c for c, same in cosines if same is is_same] for is_same in (True, False))
    auc = sum(a > b for a, b in product(near, far)) / (len(near) * len(far))
    assert auc > 0.9
    assert model.analogy("king", "man", "woman")[0].word == "queen"
    assert model.nearest("paris", 1)[0].word in ("london", "berlin", "madrid", "rome", "vienna")
    fruit, firm = (
        model.tokenizer.encode(text) for text in (" she eats a ripe apple", " the company apple sells phones")
    )
    (apple,) = set(fruit) & set(firm)  # one row of the table in both senses
    assert torch.equal(model.vector("apple"), model.net.embedding.weight[apple])
    picture = tmp_path / "plane.png"
    main([str(model.place.folder), str(picture)])
    with Image.open(picture) as image:
        assert image.size[0] >= 720
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20


def test_the_plane_is_that_of_the_largest_variance():
    sources, mixed = torch.randn(200, 4) * torch.tensor([5.0, 2.0, 0.1, 0.1]), torch.linalg.qr(torch.randn(4, 4))[0]
    points, shares = plane(sources @ mixed.T + 7)
    centred = sources - sources.mean(0)
    for axis in (0, 1):
        agreement = F.cosine_similarity(points[:, axis].float(), centred[:, axis], dim=0)
        assert abs(agreement) > 0.99
    assert shares[0] > shares[1] > 0.05
    assert sum(shares) > 0.99


def test_what_it_cannot_do_is_refused():
    with pytest.raises(UsageError, match="objective is 'glove'"):
        Word2Vec(vocab_size=5, max_length=8, objective="glove")
    with pytest.raises(UsageError, match="window must be at least 1"):
        Word2Vec(vocab_size=5, max_length=8, window=0)


def test_frozen_vectors_stay_as_they_are_and_tuned_ones_move(tmp_path):
    word2vec = trained(tmp_path, "word2vec", "--trainer.max_steps", "20", "--data.size", "1000")
    more = ["--model.vectors", str(word2vec.place.folder), "--model.dim", "32", "--data", "Sentences",
            "--data.size", "1000", "--trainer.max_steps", "5"]  # fmt: skip
    tables = {}
    for tune in ("false", "true"):
        model = trained(tmp_path / tune, "history-3-nnlm", "--model.tune", tune, *more)
        tables[tune] = model.net.embedding.weight
    start = torch.nn.functional.normalize(word2vec.net.embedding.weight, dim=1) * 3**-0.5
    assert torch.equal(tables["false"], start)
    assert not torch.equal(tables["true"], start)
    from zoo.cli import main

    assert main(["fit", "history-3-nnlm", "--runs", str(tmp_path / "no"), *more[:2], "--trainer.max_steps", "1"]) == 2
