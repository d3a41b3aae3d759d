"""n-grams against counting by hand, one at a time."""

import json
import math
from collections import Counter, defaultdict

import pytest
import torch
from classic_runs import trained
from zoo_classic.counts import Counts
from zoo_classic.ngram import NGram

from zoo.errors import UsageError

CAT, SITS, RUNS, EATS, DOG = range(5)


def counts_model(rows, vocab_size, order, smoothing="laplace", add=1.0):
    net = Counts(vocab_size, 64, order, smoothing, add)
    for row in rows:
        net.count(torch.tensor([row]))
    return net


def p(net, history, word):
    return net(torch.tensor([history])).exp()[0, -1, word].item()


def cats(order=2, **options):
    """``cat`` ten times, four times before ``sits``."""
    return counts_model([[CAT, SITS]] * 4 + [[CAT, RUNS]] * 3 + [[CAT, EATS]] * 3, 5, order, **options)


def test_four_cats_of_ten_sit():
    assert p(cats(add=0.0), [CAT], SITS) == pytest.approx(0.4)  # the notes' 4 / 10
    assert p(cats(), [CAT], SITS) == pytest.approx(5 / 15)  # (4 + 1) / (10 + |V|)


def test_laplace_gives_something_to_what_was_never_seen_and_sums_to_one():
    net = cats()
    assert p(net, [CAT], DOG) == pytest.approx(1 / 15)
    assert p(net, [DOG], CAT) == pytest.approx(1 / 5)  # a context that was never seen
    for word in range(5):
        assert net(torch.tensor([[word]])).exp().sum().item() == pytest.approx(1)
    assert p(cats(add=0.0), [CAT], DOG) == 0


def text(seed=0, size=400, vocab_size=6):
    """Tokens of which each depends on the two before."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(vocab_size, vocab_size, vocab_size, generator=generator) ** 4
    tokens = [0, 1]
    for _ in range(size):
        tokens.append(torch.multinomial(table[tokens[-2], tokens[-1]], 1, generator=generator).item())
    return tokens


def kneser_ney(rows, vocab_size, order):
    """p(word | history) of modified interpolated Kneser-Ney, by dictionaries of tuples."""
    grams = [Counter() for _ in range(order + 1)]
    for row in rows:
        for n in range(1, order + 1):
            for i in range(len(row) - n + 1):
                if i + n - 1 >= 1:  # the first token of a row is never predicted
                    grams[n][tuple(row[i : i + n])] += 1
    tables = {order: grams[order]}
    for n in range(1, order):
        fronts = defaultdict(set)
        for gram in grams[n + 1]:
            fronts[gram[1:]].add(gram[0])
        tables[n] = Counter({gram: len(front) for gram, front in fronts.items()})

    def discount(n, count):
        many = Counter(tables[n].values())
        if not all(many[c] for c in (1, 2, 3, 4)):
            return 0.5
        y = many[1] / (many[1] + 2 * many[2])
        at = min(count, 3)
        return min(max(at - (at + 1) * y * many[at + 1] / many[at], 0), at)

    def prob(word, history):
        history = tuple(history)
        lower = prob(word, history[1:]) if history else 1 / vocab_size
        following = {gram[-1]: c for gram, c in tables[len(history) + 1].items() if gram[:-1] == history}
        if not following:
            return lower
        total, n = sum(following.values()), len(history) + 1
        own = max(following[word] - discount(n, following[word]), 0) if word in following else 0
        return (own + sum(discount(n, c) for c in following.values()) * lower) / total

    return prob


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_kneser_ney_is_that_of_dictionaries(order):
    rows = [text(seed, size) for seed, size in ((0, 300), (1, 90), (2, 1))]
    net, slow = counts_model(rows, 6, order, "kneser_ney"), kneser_ney(rows, 6, order)
    tokens = torch.tensor([text(5, 12), text(6, 12)])
    fast = net.double()(tokens).exp()
    for row in range(2):
        for at in range(tokens.size(1)):
            history = tokens[row, max(0, at - order + 2) : at + 1].tolist() if order > 1 else []
            expected = [slow(word, history) for word in range(6)]
            assert fast[row, at].tolist() == pytest.approx(expected, abs=1e-6)
            assert sum(expected) == pytest.approx(1)


@pytest.mark.parametrize("smoothing", ["laplace", "kneser_ney"])
def test_a_distribution_over_all_strings_of_two_words_sums_to_one(smoothing):
    net = counts_model([text()], 6, 3, smoothing)
    first = net(torch.tensor([[0]])).exp()[0, -1]
    second = net(torch.tensor([[0, a] for a in range(6)])).exp()[:, -1]
    assert (first[:, None] * second).sum().item() == pytest.approx(1, abs=1e-6)
    assert (second > 0).all()


@pytest.mark.parametrize("smoothing", ["laplace", "kneser_ney"])
def test_counting_in_parts_and_asking_between_changes_nothing(smoothing):
    whole, parts = text(), Counts(6, 64, 3, smoothing, 1.0)
    for start in range(0, 400, 50):
        parts.count(torch.tensor([whole[start : start + 51]]))
        parts(torch.tensor([[1, 2, 3]]))
    once = Counts(6, 64, 3, smoothing, 1.0)
    for start in range(0, 400, 50):
        once.count(torch.tensor([whole[start : start + 51]]))
    query = torch.tensor([text(9, 20)])
    assert torch.equal(parts(query), once(query))
    again = Counts(6, 64, 3, smoothing, 1.0)
    again.load_state_dict(parts.state_dict())
    assert torch.equal(again(query), once(query))


def test_only_the_last_tokens_matter_and_writing_stepwise_is_the_same():
    net = counts_model([text()], 6, 3, "kneser_ney")
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 0, 3, 4]])
    assert torch.equal(net(a)[:, -1], net(b)[:, -1])
    assert not torch.equal(net(a)[:, -1], net(torch.tensor([[1, 2, 0, 4]]))[:, -1])
    state, tokens = net.begin(9), torch.tensor([text(4, 6)])
    stepwise = [state.step(tokens[:, at : at + 1]) for at in range(tokens.size(1))]
    assert torch.equal(torch.stack(stepwise, 1), net(tokens))


def test_what_stands_behind_the_end_of_a_text_is_not_counted():
    task = NGram(vocab_size=5, max_length=8, order=2, smoothing="laplace")
    batch = {"inputs": torch.tensor([[0, 1, 2, 2]]), "targets": torch.tensor([[1, 2, -100, -100]])}
    task.training_step(batch, 0)
    task.net.merge()
    assert task.net.keys_2.tolist() == [0 * 5 + 1, 1 * 5 + 2]
    assert task.net.counts_1.tolist() == [1, 1]
    assert int(task.tokens_seen) == 2


@pytest.mark.parametrize("length", [5, 16, 64])
def test_an_epoch_counts_every_ngram_of_the_text_and_steps_those_of_their_rows(tmp_path, length):
    words = "".join(chr(97 + token) for token in text(3, 3000))
    (tmp_path / "text.txt").write_text(words)
    options = ["--data", "TextFiles", "--data.path", str(tmp_path / "text.txt"), "--data.tokenizer", "chars",
               "--data.max_length", str(length), "--data.batch_size", "7", "--model.order", "3"]  # fmt: skip
    net = trained(tmp_path / "whole", "history-2-ngram", *options).net
    trained_on = words[: int(net.counts_1.sum()) + 1]
    assert len(trained_on) > 0.85 * len(words)  # the rest of it validates
    assert int(net.counts_3.sum()) == len(trained_on) - 2
    expected = Counter(trained_on[i : i + 3] for i in range(len(trained_on) - 2))
    assert sorted(net.counts_3.tolist()) == sorted(expected.values())
    few = trained(tmp_path / "few", "history-2-ngram", *options, "--trainer.max_steps", "2").net
    assert int(few.counts_1.sum()) == 2 * 7 * length


def held_out(model):
    """Bits per byte of the validation text."""
    return json.loads((model.place.folder / "finished.json").read_text())["val/bits_per_byte"]


def test_longer_contexts_help_on_real_text_and_what_was_counted_can_be_asked(tmp_path):
    text, loss, held_out_loss = ["--data.tokenizer", "chars", "--data.max_length", "512"], {}, {}
    for order in (1, 2, 3):
        options = ["--model.order", str(order), "--model.smoothing", "laplace", *text]
        model = trained(tmp_path / str(order), "history-2-ngram", *options)
        loss[order] = model.score("Return the value of the argument, or None if there is none.").bits_per_byte
        held_out_loss[order] = held_out(model)
    assert loss[3] < loss[2] < loss[1]
    assert held_out_loss[3] < held_out_loss[2] < held_out_loss[1]
    assert model.generate("Return the ", length=20, seed=3)[0].text
    folder = model.export(tmp_path / "out")
    import zoo

    assert zoo.load(folder).score("Return") == model.score("Return")
    perceptron = trained(tmp_path, "history-3-nnlm", *text, "--model.window", "4", "--trainer.max_steps", "60")
    assert held_out(perceptron) < held_out_loss[1] - 0.3  # the window of four tells more than how often each one occurs


def test_eating_apples_is_more_probable_than_eating_tables(tmp_path):
    model = trained(tmp_path, "history-2-ngram", "--data", "Sentences", "--data.size", "3000")
    apples, tables = model.score([" 我喜欢吃苹果", " 我喜欢吃桌子"])
    assert apples.log_probability > tables.log_probability + 1


def test_an_order_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match="order is 7: with 1000 tokens it must lie between 1 and 6"):
        Counts(1000, 8, 7, "laplace", 1.0)
    assert math.prod([1000] * 6) < 2**63
    with pytest.raises(UsageError, match="order is 0"):
        NGram(vocab_size=5, max_length=8, order=0)
