"""Texts of synthetic tasks hold the answers that a plain loop finds, and evaluation's are none of training's."""

import json
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch
from zoo_exercises.algebra import Addition, WordProblem
from zoo_exercises.mechanisms import FuzzyRecall, InContextRecall, Memorization, SelectiveCopying
from zoo_exercises.synthetic import Copying, Induction, ModularAddition, ModularArithmetic, MultiQueryRecall, Parity

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError

KINDS = {
    "recall": lambda **o: MultiQueryRecall(pairs=4, vocab_size=16, **o),
    "copying": lambda **o: Copying(length=6, letters=5, **o),
    "induction": lambda **o: Induction(length=12, letters=6, repeats=2, **o),
    "parity": lambda **o: Parity(length=12, **o),
    "arithmetic": lambda **o: ModularArithmetic(operands=6, **o),
    "gaps": lambda **o: MultiQueryRecall(pairs=4, vocab_size=16, length=24, **o),
    "word problem": lambda **o: WordProblem(length=6, elements=4, **o),
    "in context": lambda **o: InContextRecall(**{"length": 12, "vocab_size": 12, "longer": 2} | o),
    "noise": lambda **o: InContextRecall(
        **{"length": 24, "vocab_size": 16, "noise": 0.4, "noise_tokens": 4, "longer": 2} | o
    ),
    "fuzzy": lambda **o: FuzzyRecall(**{"length": 40, "longer": 2} | o),
    "memory": lambda **o: Memorization(**{"length": 8, "vocab_size": 41, "longer": 2} | o),
    "selection": lambda **o: SelectiveCopying(**{"length": 20, "letters": 6, "copied": 4, "longer": 2} | o),
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


def multiplied(inputs, targets):
    group = list(permutations(range(4)))
    things, expected = (0, 1, 2, 3), []
    for token in inputs:
        things = tuple(group[token][thing] for thing in things)  # where each thing goes
        expected.append(group.index(things))
    return expected if len(inputs) == 6 else [-100] * 6 + expected[6:]


def recalled_in_pairs(keys):
    def answers(inputs, targets):
        table, expected = {}, [-100] * len(inputs)
        for place in range(0, len(inputs), 2):
            key, value = inputs[place], [*inputs, targets[-1]][place + 1]
            if key < keys:
                if key in table:
                    assert value == table[key]
                    expected[place] = value
                table[key] = value
        return expected

    return answers


def recalled_in_gaps(inputs, targets):
    pairs = len(inputs) // 6
    table = dict(zip(inputs[: 2 * pairs : 2], inputs[1 : 2 * pairs : 2], strict=True))
    assert sorted(target for target in targets if target >= 0) == sorted(table.values())
    return [table[token] if target >= 0 else -100 for token, target in zip(inputs, targets, strict=True)]


def recalled_words(inputs, targets):
    """Keys are the runs of tokens below 8, values those of others."""
    text, expected = [*inputs, targets[-1]], [-100] * (len(inputs) + 1)
    table, place = {}, 0
    while place < len(inputs):
        key = []
        while place < len(text) and 0 <= text[place] < 8:
            key, place = [*key, text[place]], place + 1
        start = place
        while place < len(text) and text[place] >= 8:
            place += 1
        value = text[start:place]
        if tuple(key) in table:
            assert value == table[tuple(key)][: len(value)]
            expected[start:place] = value
        table.setdefault(tuple(key), value)
        place += place < len(text) and text[place] < 0  # nothing is known of the token behind the text
    return expected[1:]


def memorised(inputs, targets):
    table = MEMORY
    for key, target in zip(inputs[::2], targets[1::2], strict=True):
        assert 20 <= table.setdefault(key, target) < 40
    return [table[inputs[place - 1]] if token == 40 else -100 for place, token in enumerate(inputs)]


def selected(inputs, targets):
    letters, mark = [token for token in inputs if token < 6], inputs.index(7)
    assert inputs[mark + 1 :] == [6] * 4
    return [-100] * (mark + 1) + letters


MEMORY = {}


@pytest.mark.parametrize(("kind", "answers", "widths"), [
    ("recall", recalled, (15, 31)), ("copying", copied, (12, 24)), ("induction", induced, (11, 23)),
    ("parity", odd_ones, (12, 24)), ("arithmetic", computed, (12, 24)), ("gaps", recalled_in_gaps, (24, 48)),
    ("word problem", multiplied, (6, 12)), ("in context", recalled_in_pairs(6), (11, 23)),
    ("noise", recalled_in_pairs(6), (23, 47)), ("fuzzy", recalled_words, (40, 80)), ("memory", memorised, (8, 16)),
    ("selection", selected, (20, 40)),
])  # fmt: skip
def test_answers_are_those_of_a_loop(kind, answers, widths):
    for split in ("train", "val"):
        for inputs, targets, longer in rows(kind, split):
            width = widths[longer]
            assert targets[width:] == [-100] * (len(targets) - width)
            assert targets[:width] == answers(inputs[:width], targets[:width])
            assert max(targets) >= 0 or kind == "fuzzy"  # a short text may say no key twice


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


@pytest.mark.parametrize("kind", [
    MultiQueryRecall, Copying, Induction, Parity, ModularArithmetic, ModularAddition, Addition, WordProblem,
    InContextRecall, FuzzyRecall, Memorization, SelectiveCopying, partial(Addition, short=0.0, carry=0.0),
])  # fmt: skip
def test_no_constant_answer_is_right_more_often_than_by_chance(kind):
    data = kind()
    exercise = data.exercise(1)
    targets = exercise.make(np.random.default_rng(5).random((4000, exercise.numbers))).targets
    answers = targets[targets >= 0]
    assert np.bincount(answers).max() / len(answers) <= 1.15 * data.chance + 0.005


def test_sums_are_those_of_python_and_a_share_carries_far():
    data = Addition(digits=6, size=2000, seed=1)
    data.ready()
    batch = data.datasets["train"].batch(np.arange(2000), 0)
    carried, lengths = 0, set()
    for inputs, targets in zip(batch["inputs"].tolist(), batch["targets"].tolist(), strict=True):
        a, b = (int("".join(map(str, digits[::-1]))) for digits in (inputs[:6], inputs[7:13]))
        assert [inputs[6], inputs[13]] == [10, 11]
        assert targets[:13] == [-100] * 13
        assert int("".join(map(str, targets[:12:-1]))) == a + b
        assert inputs[14:] == targets[13:-1]
        carried += sum(x + y == 9 for x, y in zip(inputs[:6], inputs[7:13], strict=True)) >= 4
        lengths.add(max(len(str(a)), len(str(b))))
    assert lengths == {1, 2, 3, 4, 5, 6}
    assert 100 < carried < 400  # chance alone gives 3


def test_keys_return_sooner_rather_than_later_among_random_tokens():
    data = MultiQueryRecall(pairs=2, vocab_size=1000, length=64, longer=1, size=2000, seed=1)
    data.ready()
    targets = data.datasets["train"].batch(np.arange(2000), 0)["targets"].numpy()
    places = np.flatnonzero((targets >= 0).any(0))
    assert set(places) == set(range(4, 64, 2))
    counts = (targets >= 0).sum(0)[4::2]
    weights = np.arange(1, 31) ** -0.99
    first = weights / weights.sum()  # of the first key drawn; the second takes what is left
    both = first + sum(first[n] * np.where(np.arange(30) == n, 0, first / (1 - first[n])) for n in range(30))
    assert counts / 2000 == pytest.approx(both, abs=0.04)


def test_without_fill_nothing_stands_behind_the_pairs_but_their_keys():
    data = MultiQueryRecall(pairs=2, vocab_size=12, length=16, longer=2, size=500, seed=1, fill=False)
    data.ready()
    batch = data.datasets["train"].batch(np.arange(500), 0)
    for inputs, targets in zip(batch["inputs"].tolist(), batch["targets"].tolist(), strict=True):
        table = dict(zip(inputs[:4:2], inputs[1:4:2], strict=True))
        assert 0 not in table
        again = [place for place in range(4, 16) if inputs[place]]
        assert sorted(inputs[place] for place in again) == sorted(table)
        assert targets == [table[inputs[place]] if place in again else -100 for place in range(16)]


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
    (lambda: MultiQueryRecall(pairs=4, length=14), "an even number of at least 16"),
    (lambda: MultiQueryRecall(fill=False), "what a length puts behind the pairs"),
    (lambda: MultiQueryRecall(pairs=2, vocab_size=8, length=16, fill=False), "token 0 is no key then"),
    (lambda: Addition(short=0.8, carry=0.3), "shares, of at most 1 together"),
    (lambda: WordProblem(elements=7), "2 to 6 work"),
    (lambda: InContextRecall(length=7), "an even number of at least 4"),
    (lambda: InContextRecall(noise=0.2), "tokens of its own"),
    (lambda: InContextRecall(vocab_size=8, noise=0.2, noise_tokens=6), "leaves 1 keys"),
    (lambda: FuzzyRecall(pairs=9), "need as many first tokens"),
    (lambda: Memorization(length=5), "an even number of at least 2"),
    (lambda: SelectiveCopying(length=32), "length must be at least 34"),
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
    if kind in ("recall", "gaps"):
        assert data.chance == 1 / 4
    if kind == "recall":
        guesses = batch["inputs"][:, 1:8:2]
        right = (batch["targets"][:, 8::2, None] == guesses[:, None, :]).float().mean()
        # values repeat by chance: a guess is a little better than 1/N
        assert data.chance - 0.01 < right < data.chance + 1 / 8
    elif kind != "gaps":
        assert float(answers.bincount().max() / len(answers)) == pytest.approx(data.chance, abs=0.03)
