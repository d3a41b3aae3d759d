"""Texts of synthetic tasks hold the answers that a plain loop finds, and evaluation's are none of training's."""

import json

import numpy as np
import pytest
import torch
from zoo_exercises.synthetic import Copying, Induction, ModularAddition, ModularArithmetic, MultiQueryRecall, Parity

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError

KINDS = {
    "recall": lambda **o: MultiQueryRecall(pairs=4, vocab_size=16, **o),
    "copying": lambda **o: Copying(length=6, letters=5, **o),
    "induction": lambda **o: Induction(length=12, letters=6, repeats=2, **o),
    "parity": lambda **o: Parity(length=12, **o),
    "arithmetic": lambda **o: ModularArithmetic(operands=6, **o),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def rows(kind, split="train", epoch=0, **options):
    """The texts of a split as (inputs, targets, longer), lists of numbers."""
    data = KINDS[kind](size=40, eval_size=40, **{"seed": 1} | options)
    data.ready()
    batch = data.datasets[split].batch(np.arange(len(data.datasets[split])), epoch)
    return list(zip(*(batch[name].tolist() for name in ("inputs", "targets", "longer")), strict=True))


def recalled(inputs, targets):
    table, expected = {}, []
    for place, token in enumerate(inputs):
        expected.append(table.get(token, -100))
        if place and inputs[place - 1] < 8 <= token:
            table[inputs[place - 1]] = token
    return expected


def copied(inputs, targets):
    at = inputs.index(5)
    expected = [-100] * len(inputs)
    expected[at : 2 * at] = inputs[:at]
    return expected


def induced(inputs, targets):
    triggers = [place for place, token in enumerate(inputs) if token == 6]
    return [inputs[triggers[0] + 1] if place in triggers[1:] else -100 for place in range(len(inputs))]


def odd_ones(inputs, targets):
    expected = [sum(inputs[: place + 1]) % 2 for place in range(len(inputs))]
    return expected if len(inputs) == 12 else [-100] * 12 + expected[12:]


def computed(inputs, targets):
    at = inputs.index(8)
    value = eval("".join("01234+-*"[token] for token in inputs[:at])) % 5  # Python's own arithmetic
    return [value if place == at else -100 for place in range(len(inputs))]


@pytest.mark.parametrize(("kind", "answers"), [
    ("recall", recalled), ("copying", copied), ("induction", induced), ("parity", odd_ones), ("arithmetic", computed),
])  # fmt: skip
def test_answers_are_those_of_a_loop(kind, answers):
    widths = {
        "recall": (15, 31), "copying": (12, 24), "induction": (11, 23), "parity": (12, 24), "arithmetic": (12, 24),
    }[kind]  # fmt: skip
    for split in ("train", "val"):
        for inputs, targets, longer in rows(kind, split):
            width = widths[longer]
            assert targets[width:] == [-100] * (len(targets) - width)
            assert targets[:width] == answers(inputs[:width], targets[:width])
            assert max(targets) >= 0


def test_half_of_all_pairs_train_in_modular_addition():
    data = ModularAddition(modulus=37, size=20000, eval_size=5000, seed=1)
    data.ready()
    pairs = {}
    for split in ("train", "val"):
        batch = data.datasets[split].batch(np.arange(len(data.datasets[split])), 0)
        tokens, answers = batch["inputs"].numpy(), batch["targets"].numpy()
        assert (tokens[:, 2] == 37).all()
        assert (answers[:, :2] == -100).all()
        assert (answers[:, 2] == (tokens[:, 0] + tokens[:, 1]) % 37).all()
        pairs[split] = {tuple(row) for row in tokens[:, :2].tolist()}
    assert not pairs["train"] & pairs["val"]
    assert 0.95 * 37**2 < len(pairs["train"] | pairs["val"]) <= 37**2
    assert 0.45 < len(pairs["train"]) / 37**2 < 0.55


def test_texts_have_the_form_that_the_options_say():
    for inputs, targets, _ in rows("recall"):
        assert len(set(inputs[:8:2])) == 4
        assert all(token < 8 for token in inputs[::2])
        assert sum(target >= 8 for target in targets) == 4
    assert {inputs.index(8) for inputs, _, _ in rows("arithmetic")} == {3, 5, 7, 9, 11}
    assert {inputs.index(8) for inputs, _, longer in rows("arithmetic", "val") if longer} == {13, 15, 17, 19, 21, 23}
    lengths = [inputs.index(5) for inputs, _, _ in rows("copying")]
    assert set(lengths) == {3, 4, 5, 6}
    assert {inputs.index(5) for inputs, _, longer in rows("copying", "val") if longer} == {12}
    assert all(inputs.count(6) == 3 for inputs, _, _ in rows("induction"))


@kinds
def test_every_epoch_has_other_texts_and_evaluation_the_same_ones(kind):
    first, second = rows(kind), rows(kind, epoch=1)
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 4
    assert rows(kind, seed=2) != first
    assert rows(kind) == first
    assert rows(kind, "val", seed=2) == rows(kind, "val", epoch=1) == rows(kind, "val")


@kinds
def test_a_row_is_the_same_in_any_batch(kind):
    data = KINDS[kind](size=40, seed=1)
    data.ready()
    together = data.datasets["train"].batch(np.array([3, 17]), 2)
    alone = data.datasets["train"].batch(np.array([17]), 2)
    assert torch.equal(together["inputs"][1], alone["inputs"][0])
    assert torch.equal(together["targets"][1], alone["targets"][0])


def test_no_text_of_evaluation_is_one_of_training_even_where_there_are_few():
    data = Parity(length=10, size=5000, eval_size=200, seed=1)
    data.ready()

    def texts(split, epoch):
        batch = data.datasets[split].batch(np.arange(len(data.datasets[split])), epoch)
        return {tuple(row) for row, longer in zip(batch["inputs"].tolist(), batch["longer"], strict=True) if not longer}

    training = texts("train", 0) | texts("train", 1)
    assert len(training) > 300  # of 1024
    assert not training & (texts("val", 0) | texts("test", 0))


@kinds
def test_longer_texts_follow_in_validation_alone(kind):
    longer = [one for _, _, one in rows(kind, "val")]
    assert longer == [False] * 40 + [True] * 40
    assert not any(one for _, _, one in rows(kind))
    assert len(rows(kind, "val", longer=1)) == 40


@kinds
def test_a_batch_of_both_lengths_is_padded_behind_the_text(kind):
    data = KINDS[kind](eval_size=3, seed=1)
    data.ready()
    batch = data.datasets["val"].batch(np.array([2, 3]), 0)
    alone = data.datasets["val"].batch(np.array([2]), 0)
    width = alone["inputs"].shape[1]
    assert torch.equal(batch["inputs"][:1, :width], alone["inputs"])
    assert batch["targets"][0, width:].eq(-100).all()
    assert batch["inputs"].shape[1] == data.sizes()["max_length"] > width


@kinds
def test_a_tokenizer_names_each_token(kind, tmp_path):
    data = KINDS[kind]()
    data.save(tmp_path)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.vocab_size == data.sizes()["vocab_size"]
    assert tokenizer.encode(tokenizer.decode(range(data.vocab_size))) == list(range(data.vocab_size))


def test_a_vocabulary_larger_than_the_letters_goes_on_with_ideographs(tmp_path):
    MultiQueryRecall(vocab_size=100).save(tmp_path)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.decode([0, 61, 62, 99]) == "0z" + chr(0x4E00) + chr(0x4E00 + 37)
    assert json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))["model"]["type"] == "WordLevel"


@pytest.mark.parametrize(("build", "words"), [
    (lambda: MultiQueryRecall(pairs=20, vocab_size=64), "40 different keys"),
    (lambda: MultiQueryRecall(pairs=0), "pairs must be at least 1"),
    (lambda: Induction(length=7, repeats=3), "an even number of at least 8"),
    (lambda: Copying(letters=1), "letters must be at least 2"),
    (lambda: Copying(letters=30000), "vocab_size must be at most"),
    (lambda: Parity(length=9).ready(), "fewer than 1000 different texts"),
    (lambda: Parity(length=2**15, longer=3).ready(), "98304 tokens: at most 65536"),
    (lambda: Parity(longer=0), "longer must be at least 1"),
    (lambda: ModularArithmetic(operands=1), "operands must be at least 2"),
    (lambda: ModularAddition(modulus=31).ready(), "fewer than 1000 different texts"),
])  # fmt: skip
def test_impossible_difficulties_are_refused(build, words):
    with pytest.raises(UsageError, match=words):
        build()


@kinds
def test_chance_is_what_a_guess_of_the_form_reaches(kind):
    """The most frequent answer, or for recall a random value of the text, in many texts."""
    data = KINDS[kind](size=3000, seed=1)
    data.ready()
    batch = data.datasets["train"].batch(np.arange(3000), 0)
    answers = batch["targets"][batch["targets"] >= 0]
    if kind == "recall":
        guesses = batch["inputs"][:, 1:8:2]
        right = (batch["targets"][:, 8::2, None] == guesses[:, None, :]).float().mean()
        # values repeat by chance: a guess is a little better than 1/N
        assert data.chance - 0.01 < right < data.chance + 1 / 8
    else:
        assert float(answers.bincount().max() / len(answers)) == pytest.approx(data.chance, abs=0.03)
