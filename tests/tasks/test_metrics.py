"""Metrics against formulas of the papers that define them, on ordinary, empty, short and odd texts, and on images."""

import math
import random
from collections import Counter

import pytest
import torch
from sacrebleu.metrics import TER

from tests.tasks.training import train
from zoo.tasks.classification import Classification
from zoo.tasks.translation import Translation, sacrebleu_score

SIZES = {"max_length": 8, "dim": 8, "depth": 1, "heads": 2}
ODD = [
    "", " ", "\n", "a", "ab", "abc", "é", "é", "ß", "你好", "你好 世界 。", "👍🏽 ok", "\u200b", "\ufeffx", "a  b",
    " a b ", "U.S. 1,000.5 %", "don't", "a-b", "...", "&amp; <b>", "\t", "x" * 300, "the " * 60, "\u00a0",
    "İ", "العربية", "ก็",
]  # fmt: skip
WORDS = "der die das Kunde Kunden ist sind da alle am Freitag um 1,000 Uhr , . ! Straße 你好".split()


def draw_pairs(rng):
    """Decoded texts and references: copies, damaged copies, odd texts, nothing at all."""
    pairs = []
    for _ in range(rng.randint(1, 12)):
        reference = rng.choice([*ODD, *(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(9))])
        words = reference.split(" ")
        hypothesis = rng.choice([
            "", reference, reference[: len(reference) // 2], " ".join(rng.sample(words, len(words))), reference.upper(),
            " ".join(word for word in words if rng.random() < 0.7), rng.choice(ODD), "xyz",
        ])  # fmt: skip
        pairs.append((hypothesis, reference))
    return pairs


def grams(units, n):
    return Counter(tuple(units[i : i + n]) for i in range(len(units) - n + 1))


def bleu(pairs, units):
    """Papineni et al. (2002) over a corpus; the k-th precision without a match counts 1 / 2^k of one match."""
    matches, totals, lengths = [0] * 4, [0] * 4, [0, 0]
    for hypothesis, reference in pairs:
        ours, true = units(hypothesis), units(reference)
        lengths = [lengths[0] + len(ours), lengths[1] + len(true)]
        for n in range(4):
            matches[n] += (grams(ours, n + 1) & grams(true, n + 1)).total()
            totals[n] += max(0, len(ours) - n)
    if not any(matches) or not all(totals):
        return 0.0
    logs, halvings = 0.0, 0
    for match, total in zip(matches, totals, strict=True):
        halvings += not match
        logs += math.log((match or 0.5**halvings) / total) / 4
    brevity = min(0.0, 1 - lengths[1] / lengths[0])
    return 100 * math.exp(logs + brevity)


def chrf(pairs, order=6, beta=2.0):
    """Popović (2015) over a corpus, white space left out; orders that neither side is long enough for do not count."""
    same, ours, true = [0] * order, [0] * order, [0] * order
    for hypothesis, reference in pairs:
        ours_text, true_text = "".join(hypothesis.split()), "".join(reference.split())
        for n in range(order):
            a, b = grams(ours_text, n + 1), grams(true_text, n + 1)
            same[n], true[n] = same[n] + (a & b).total(), true[n] + b.total()
            ours[n] += a.total() if b else 0  # as sacrebleu: a reference too short for an order says nothing about it
    long_enough = [n for n in range(order) if ours[n] and true[n]]
    if not long_enough:
        return 0.0
    precision = sum(same[n] / ours[n] for n in long_enough) / len(long_enough)
    recall = sum(same[n] / true[n] for n in long_enough) / len(long_enough)
    if not precision + recall:
        return 0.0
    return 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def figures(task, pairs, rng):
    """The figures of a task that has seen the pairs in batches of random sizes."""
    waiting = list(pairs)
    while waiting:
        size = rng.randint(1, len(waiting))
        task.update_text_metrics([pair[0] for pair in waiting[:size]], [pair[1] for pair in waiting[:size]])
        waiting = waiting[size:]
    task.metrics["exact"].update(0.0)  # something was decoded
    return task.compute_metrics(0.0)


def characters(text):
    return list("".join(text.split()))


@pytest.mark.parametrize(("tokenize", "units"), [("none", str.split), ("char", characters)])
def test_bleu_and_chrf_of_random_texts(tokenize, units):
    rng = random.Random(tokenize)
    task = Translation(8, 8, bleu_tokenize=tokenize, **SIZES)
    nonzero = 0
    for _ in range(150):
        pairs = draw_pairs(rng)
        measured = figures(task, pairs, rng)
        assert measured["bleu"] == pytest.approx(bleu(pairs, units), abs=1e-6), pairs
        assert measured["chrf"] == pytest.approx(chrf(pairs), abs=1e-6), pairs
        nonzero += 0 < measured["bleu"] < 100
    assert nonzero > 40


def test_every_reference_counts():
    task = Translation(8, 8, **SIZES)
    pairs = [("", "the Kunden sind da")] * 9 + [("das ist ein Satz", "das ist ein Satz")]
    measured = figures(task, pairs, random.Random(0))
    assert measured["chrf"] < 30
    assert measured["bleu"] < 30
    assert "bleu" not in task.compute_metrics(0.0)  # nothing was decoded since


def test_signatures_name_the_choices():
    signatures = Translation(8, 8, bleu_tokenize="zh", **SIZES).metric_signatures
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|version:")
    assert signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_another_metric_of_decoded_texts_is_reported(tmp_path, monkeypatch):
    build_task = Translation.__init__

    def with_edit_rate(self, *args, **options):
        build_task(self, *args, **options)
        self.text_metrics["ter"] = sacrebleu_score(TER())

    monkeypatch.setattr(Translation, "__init__", with_edit_rate)
    words = {1: "nonsense " * 40, 2: "nonsense"}  # by the step of the validation
    monkeypatch.setattr(
        Translation, "translate", lambda self, source, valid: [words[self.trainer.global_step]] * len(source)
    )
    diary = train("translation", 8, tmp_path, max_steps=2, val_check_interval=1)
    many, few = diary.curve("val/ter")
    assert many > 200
    assert few == pytest.approx(100.0)  # every word is wrong, and those of the first validation do not count
    assert all(value < 2 for value in diary.curve("val/bleu"))


@pytest.mark.parametrize("classes", [2, 5, 12])
def test_accuracies_of_images_are_shares_of_ranks(classes):
    torch.manual_seed(classes)
    task = Classification(classes, 8, 1, patch_size=4, dim=8, depth=1, heads=2).eval()
    ranks = []
    for rows in (3, 1, 7):
        batch = task.sample(rows)
        with torch.no_grad():
            task.evaluate(batch)
            scores = task(batch["images"]).tolist()
        for row, label in zip(scores, batch["labels"].tolist(), strict=True):
            ranks.append(sum(score > row[label] for score in row))
    measured = task.compute_metrics(0.0)
    assert measured["top1"] == pytest.approx(sum(rank < 1 for rank in ranks) / len(ranks))
    assert measured["top5"] == pytest.approx(sum(rank < 5 for rank in ranks) / len(ranks))
