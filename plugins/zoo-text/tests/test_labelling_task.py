"""Masked language modelling and classification of texts and tokens: figures counted by hand."""

import math

import pytest
import torch
from zoo_text.tasks.labelling import SequenceClassification, TokenClassification
from zoo_text.tasks.masked import MaskedLM

from zoo.errors import UsageError

TINY = {"dim": 16, "depth": 1, "heads": 2}


def accuracy_and_f1(guesses, labels, classes):
    """Accuracy, and F1 as a mean over the classes that occur, in plain counts."""
    pairs = list(zip(guesses, labels, strict=True))
    scores = []
    for one in range(classes):
        hit = sum(a == b == one for a, b in pairs)
        wrong = sum((a == one) != (b == one) for a, b in pairs)
        if hit + wrong:
            scores.append(2 * hit / (2 * hit + wrong))
    return sum(a == b for a, b in pairs) / len(pairs), sum(scores) / len(scores)


@pytest.mark.parametrize("kind", [SequenceClassification, TokenClassification])
def test_accuracy_and_f1_over_several_batches(kind):
    task = kind(60, 5, 16, **TINY).eval()
    guesses, labels, total, size = [], [], 0.0, 0
    for _ in range(4):
        batch = task.sample(6)
        with torch.no_grad():
            loss = task.evaluate(batch)
            logits = task(batch["tokens"], batch["valid"])
        has_label = batch["labels"] != -100
        guesses += logits.argmax(-1)[has_label].tolist()
        labels += batch["labels"][has_label].tolist()
        for row, label in zip(logits[has_label], batch["labels"][has_label], strict=True):
            total -= float(row.log_softmax(-1)[label])
            size += 1
        assert float(loss.size) == int(has_label.sum())
    accuracy, f1 = accuracy_and_f1(guesses, labels, 5)
    figures = task.compute_metrics(0.0)
    assert figures["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert figures["f1"] == pytest.approx(f1, abs=1e-6)
    task.evaluate(batch)
    assert size > 20


def test_masked_loss_and_accuracy_count_hidden_tokens_alone():
    task = MaskedLM(60, 16, 1, **TINY).eval()
    batch = task.sample(5)
    with torch.no_grad():
        loss = task.evaluate(batch)
        logits = task(batch["inputs"], batch["valid"])
    hidden = (batch["targets"] >= 0).nonzero().tolist()
    log_probs = [float(logits[r, c].log_softmax(-1)[batch["targets"][r, c]]) for r, c in hidden]
    hits = [int(logits[r, c].argmax()) == int(batch["targets"][r, c]) for r, c in hidden]
    assert float(loss.total) == pytest.approx(-sum(log_probs), rel=1e-5)
    assert int(loss.size) == len(hidden)
    assert task.compute_metrics(0.0)["accuracy"] == pytest.approx(sum(hits) / len(hits))


def test_pseudo_perplexity_is_of_tokens_hidden_alone():
    task = MaskedLM(60, 16, 1, **TINY).eval()
    batch = task.sample(5)
    scored = batch["valid"].clone()
    scored[2:] = False
    log_probs = []
    with torch.no_grad():
        task.evaluate({**batch, "scored": scored})
        for row, column in scored.nonzero().tolist():
            hidden = batch["whole"][row : row + 1].clone()
            hidden[0, column] = 1
            logits = task(hidden, batch["valid"][row : row + 1])[0, column]
            log_probs.append(float(logits.log_softmax(-1)[batch["whole"][row, column]]))
    assert task.compute_metrics(0.0)["pseudo_perplexity"] == pytest.approx(
        math.exp(-sum(log_probs) / len(log_probs)), rel=1e-4
    )


def test_next_sentences_weigh_as_many_tokens_as_asked_for():
    task = MaskedLM(60, 16, 1, next_sentence=7.0, segments=2, **TINY).eval()
    batch_ = task.sample(5)
    batch = {**batch_, "follows": torch.tensor([0, 1, 1, 0, 1]), "segments": torch.zeros_like(batch_["inputs"])}
    with torch.no_grad():
        loss, alone = task.loss(batch), task.evaluate(batch)
        states = task.net.states(batch["inputs"], batch["valid"], batch["segments"])
        pair = task.net.follow(states).log_softmax(-1)[torch.arange(5), batch["follows"]]
        hits = (task.net.follow(states).argmax(-1) == batch["follows"]).float().mean()
    assert float(loss.total) == pytest.approx(float(alone.total - 7.0 * pair.sum()), rel=1e-5)
    assert task.compute_metrics(0.0)["follow_accuracy"] == pytest.approx(float(hits))
    with pytest.raises(UsageError, match=r"--data\.next_sentence true"):
        task.loss(batch_)
    with pytest.raises(UsageError, match=r"--model\.segments 2"):
        MaskedLM(60, 16, 1, next_sentence=7.0, **TINY)
