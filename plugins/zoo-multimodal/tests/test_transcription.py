"""Audio to text: the error rate is counted by hand, and a sound says what its text is scored with."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from zoo_multimodal.speech import SpokenLetters
from zoo_multimodal.transcription import Transcription

from zoo.logging.attention_maps import pictures

TINY = {"dim": 16, "depth": 1, "heads": 2, "mels": 20, "window_ms": 32.0, "hop_ms": 16.0}


@pytest.fixture(scope="module")
def data():
    result = SpokenLetters("ab12", length=6, size=20)
    result.ready()
    return result


@pytest.fixture
def task(data):
    torch.manual_seed(1)
    task = Transcription(**data.sizes(), **TINY).eval()
    task._trainer = SimpleNamespace(datamodule=data, world_size=1, global_rank=0)
    return task


def distance(one, other):
    """The fewest insertions, deletions and substitutions from one text to another, row by row."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row, before = [i], row
        for j, b in enumerate(other, 1):
            row.append(min(row[-1] + 1, before[j] + 1, before[j - 1] + (a != b)))
    return row[-1]


def test_loss_and_error_rate_over_several_batches(task, data, monkeypatch):
    texts = iter(["ab", "1", "", "b21a", "aab1", "2"])
    monkeypatch.setattr(Transcription, "translate", lambda self, source, valid: [next(texts) for _ in source])
    total, size, wrong, characters, exact = 0.0, 0, 0, 0, []
    guesses = ["ab", "1", "", "b21a", "aab1", "2"]
    for rows in ([0, 1, 2], [3, 4, 5]):
        batch = data.datasets["test"].batch(np.array(rows), 0)
        with torch.no_grad():
            loss = task.evaluate(batch)
            logits = task(batch["source"], batch["target"][:, :-1], batch["source_valid"]).double().log_softmax(-1)
        for row, text in enumerate(batch["text"]):
            ids = [*data.target_tokenizer.encode(text), data.target_tokenizer.eos]
            total -= sum(float(logits[row, place, token]) for place, token in enumerate(ids))
            size += len(ids)
            guess = guesses[rows[row]]
            wrong, characters = wrong + distance(guess, text), characters + len(text)
            exact.append(guess == text)
        assert math.isfinite(float(loss.total))
    figures = task.compute_metrics(0.0)
    assert figures["cer"] == pytest.approx(100 * wrong / characters, abs=1e-3)
    assert figures["exact"] == pytest.approx(np.mean(exact))
    assert set(figures) >= {"perplexity", "accuracy", "exact", "cer"}
    assert "bleu" not in figures
    with torch.no_grad():
        losses = [task.loss(data.datasets["test"].batch(np.array(rows), 0)) for rows in ([0, 1, 2], [3, 4, 5])]
    assert sum(float(one.total) for one in losses) == pytest.approx(total, rel=1e-5)
    assert sum(int(one.size) for one in losses) == size


def test_error_rate_of_random_texts_in_batches_of_any_size():
    draw = random.Random(3)
    letters = "ab c\u00e9\u4f60\U0001f44d.\n"
    task = Transcription(8, sample_rate=8000, max_samples=4000, max_length=8, **TINY)
    for _ in range(60):
        pairs = [tuple("".join(draw.choices(letters, k=draw.randint(0, 30))) for _ in "xy") for _ in range(9)]
        texts, references = zip(*pairs, strict=True)
        edge = draw.randint(0, 9)
        for part in (slice(0, edge), slice(edge, 9)):
            task.update_text_metrics(list(texts[part]), list(references[part]))
        task.metrics["exact"].update(0.0)  # something was decoded
        wrong = sum(distance(*pair) for pair in pairs)
        expected = 100 * wrong / sum(map(len, references))
        assert task.compute_metrics(0.0)["cer"] == pytest.approx(expected, rel=1e-6), pairs


def test_a_prediction_is_a_text_beside_the_true_one(task, data):
    batch = data.datasets["test"].batch(np.arange(3), 0)
    records = task.predict_step(batch, 0)
    assert [record["reference"] for record in records] == batch["text"]
    assert all(set(record["text"]) <= set("ab12") for record in records)


def test_its_picture_has_a_column_for_each_token_of_the_encoder(task, data):
    images = pictures(task, data)
    assert list(images) == ["sound 1", "sound 2", "sound 3"]
    assert all(image.width > 100 for image in images.values())
