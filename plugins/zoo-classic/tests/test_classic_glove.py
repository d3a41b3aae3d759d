"""GloVe: counts by hand, the objective against its formula, and what the vectors mean."""

from itertools import product

import numpy as np
import pytest
import torch
from classic_runs import trained
from zoo_classic.glove import Cells, GloVe, GloVeVectors, cooccurrences
from zoo_classic.probe import same_class_auc
from zoo_classic.sentences import pairs_of_classes

from zoo.errors import UsageError


def table(tokens, window, vocab_size=10, separator=0):
    cells = cooccurrences(np.array(tokens), window, vocab_size, separator)
    return {(i, j): pytest.approx(x) for i, j, x in zip(*(one.tolist() for one in cells), strict=True)}


def test_co_occurrences_are_counted_by_distance_within_a_document():
    assert table([1, 2, 3], 2) == {(1, 2): 1, (2, 1): 1, (2, 3): 1, (3, 2): 1, (1, 3): 0.5, (3, 1): 0.5}
    assert table([1, 2, 0, 1, 2, -1, 2], 1) == {(1, 2): 2, (2, 1): 2}
    assert table([1, 1, 1], 2) == {(1, 1): 2 * (1 + 1 + 0.5)}
    assert table([1], 5) == {}


def test_counts_are_a_loop_over_all_pairs():
    tokens = np.random.default_rng(0).integers(0, 6, 200)
    expected = np.zeros((6, 6))
    for i, j in product(range(200), range(200)):
        if i != j and abs(i - j) <= 4 and 0 not in tokens[min(i, j) : max(i, j) + 1]:
            expected[tokens[i], tokens[j]] += 1 / abs(i - j)
    cells = cooccurrences(tokens, 4, 6, 0)
    counts = np.zeros((6, 6))
    counts[cells.row, cells.column] = cells.counts
    assert np.allclose(counts, expected)


@pytest.mark.usefixtures("double")
def test_the_loss_is_the_papers():
    net = GloVeVectors(6, 8, dim=3)
    cells = Cells(torch.tensor([1, 4, 2]), torch.tensor([3, 4, 1]), torch.tensor([0.5, 10.0, 30.0]))
    errors = net.errors(cells, most=20.0, power=0.75)
    for number, (i, j, x) in enumerate(zip(*(one.tolist() for one in cells), strict=True)):
        weight = (x / 20) ** 0.75 if x < 20 else 1.0
        w, u = net.embedding.weight[i], net.context.weight[j]
        error = weight * (w @ u + net.bias.weight[i, 0] + net.context_bias.weight[j, 0] - np.log(x)) ** 2
        assert errors[number].item() == pytest.approx(error.item(), abs=1e-12)
    assert torch.equal(net.vectors, net.embedding.weight + net.context.weight)
    assert torch.allclose(net(torch.tensor([[1]]))[0, 0, 3], net.score(torch.tensor([1]), torch.tensor([3]))[0])


def test_a_validation_measures_entries_of_its_text_by_the_counts_of_training():
    task = GloVe(vocab_size=6, max_length=4, window=1).eval()
    task.table = cooccurrences(np.array([1, 2, 1, 2, 3]), 1, 6, -1)
    batch = {"inputs": torch.tensor([[2, 1], [4, 5]]), "targets": torch.tensor([[1, -100], [5, 4]])}
    cells = task.batch_cells(torch.tensor([[2, 1, -1], [4, 5, 4]]))
    assert list(zip(*(one.tolist() for one in cells), strict=True)) == [(1, 2, 3.0), (2, 1, 3.0)]
    assert task.evaluate(batch).size == 2
    expected = task.net.errors(cells, task.most, task.power).sum()
    assert task.evaluate(batch).total.item() == pytest.approx(expected.item())


def test_options_that_cannot_be_are_refused():
    for options in ({"window": 0}, {"most": 0.0}, {"power": 2.0}, {"cells": 0}):
        with pytest.raises(UsageError, match=next(iter(options))):
            GloVe(vocab_size=6, max_length=4, **options)


def test_the_probe_is_half_by_chance_and_one_for_classes_apart():
    labels = ["a", "a", "b", "b"]
    assert same_class_auc(torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]]), labels) == 1.0
    assert same_class_auc(torch.ones(4, 2), labels) == 0.5


def test_vectors_tell_classes_apart_and_king_minus_man_plus_woman_is_queen(tmp_path):
    words = ["--data", "Sentences", "--data.batch_size", "32", "--model.dim", "32", "--model.cells", "4096"]
    model = trained(tmp_path, "glove", *words, "--trainer.max_steps", "250", "--trainer.val_check_interval", "250")
    cosines = [(model.similarity(one, two), same) for one, two, same in pairs_of_classes()]
    near, far = ([c for c, same in cosines if same is is_same] for is_same in (True, False))
    assert sum(a > b for a, b in product(near, far)) / (len(near) * len(far)) > 0.9
    assert model.analogy("king", "man", "woman")[0].word == "queen"
