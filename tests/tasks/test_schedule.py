"""What the tasks report, how they optimise, and what they refuse."""

import math

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF

from tests.tasks.training import build, train
from zoo.errors import UsageError
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.schedule import WSD, Constant, Cosine, InverseSqrt, Linear
from zoo.tasks.translation import Translation


def test_bits_per_byte_are_those_of_the_text_whatever_the_tokenizer(tmp_path):
    module, data = build("lm", 5, tmp_path)
    data.setup()
    total = size = 0.0
    with torch.no_grad():
        for batch in data.val_dataloader():
            total += float(module.loss(batch).total)
            size += int(batch["bytes"].sum())
    diary = train("lm", 5, tmp_path, max_steps=1, val_check_interval=1, options={"lr": 1e-12})
    assert diary.curve("val/bits_per_byte")[0] == pytest.approx(total / math.log(2) / size, rel=1e-4)
    assert diary.curve("val/perplexity")[0] == pytest.approx(math.exp(diary.curve("val/loss")[0]), rel=1e-5)


def test_validation_counts_each_prediction_once(tmp_path):
    module, data = build("lm", 5, tmp_path)
    data.setup()
    total = sum(int(module.loss(batch).size) for batch in data.val_dataloader())
    assert total == len(data.datasets["val"].tokens) - 1


@pytest.mark.parametrize("option", [{"floor": -1.0}, {"floor": -1e-9}, {"warmup": -1}])
@pytest.mark.parametrize("schedule", [Linear, Cosine, WSD])
def test_a_task_refuses_values_of_its_schedule_when_it_is_built(schedule, option):
    with pytest.raises(UsageError, match=f"schedule.{next(iter(option))} must be at least 0"):
        CausalLM(10, 8, dim=8, depth=1, heads=1, schedule=lambda total: schedule(total, **option))


@pytest.mark.parametrize("tie", [True, False])
def test_loss_at_the_start_is_that_of_a_guess(tie):
    module = CausalLM(1000, 32, dim=64, depth=3, heads=4, tie=tie)
    tokens = torch.randint(1000, (16, 33))
    with torch.no_grad():
        loss = module.loss({"inputs": tokens[:, :-1], "targets": tokens[:, 1:]})
    assert float(loss.total / loss.size) == pytest.approx(math.log(1000), rel=0.05)


def test_translation_scores_what_it_says(tmp_path, monkeypatch):
    """A model that repeats the reference, but for every third sentence, scores what these pairs score."""
    hypotheses, references = [], []

    def parrot(self, batch):
        rows = batch["decode"].nonzero()[:, 0].tolist()
        texts = [batch["text"][row] for row in rows]
        answers = ["nonsense" if (len(references) + i) % 3 == 0 else text for i, text in enumerate(texts)]
        hypotheses.extend(answers)
        references.extend(texts)
        monkeypatch.setattr(Translation, "translate", lambda *_: answers)
        original(self, batch)

    original = Translation._score
    monkeypatch.setattr(Translation, "_score", parrot)
    diary = train("translation", 8, tmp_path, max_steps=1, val_check_interval=1)
    pairs = hypotheses, [references]
    assert len(hypotheses) == 7  # eval_limit bounds what is decoded during fit
    assert diary.curve("val/bleu") == [pytest.approx(BLEU().corpus_score(*pairs).score)]
    assert diary.curve("val/chrf") == [pytest.approx(CHRF().corpus_score(*pairs).score)]
    assert diary.curve("val/exact") == [
        pytest.approx(sum(a == b for a, b in zip(hypotheses, references, strict=True)) / 7)
    ]


def test_alignment_counts_strongest_weights_inside_the_slot(tmp_path):
    module, _ = build("translation", 8, tmp_path)
    weights = torch.zeros(1, 4, 5)
    weights[0, 0, 2] = weights[0, 1, 3] = weights[0, 2, 0] = weights[0, 3, 4] = 1.0
    module._align(weights, torch.tensor([[0, 2, 4, 0, 3]]))  # target tokens 0..2 translate source tokens 2..3
    assert float(module.metrics["alignment"].compute()) == pytest.approx(2 / 3)


def test_training_loss_falls_and_is_logged_by_optimiser_step(tmp_path):
    diary = train("classification", 16, tmp_path, max_steps=60, val_check_interval=30, options={"lr": 1e-2})
    losses = [(step, value) for step, name, value in diary.lines if name == "train/loss"]
    assert [step for step, _ in losses] == list(range(1, 61))
    assert sum(value for _, value in losses[-5:]) < 0.8 * sum(value for _, value in losses[:5])
    assert [step for step, name, _ in diary.lines if name == "val/top1"] == [30, 60]
    tokens = [step for step, name, _ in diary.lines if name == "val_by_tokens/top1"]
    assert tokens == [30 * 16, 60 * 16 - 8]  # 600 images: the last batch of an epoch holds 8
    best = diary.curve("best/top1")
    assert best[1] == max(diary.curve("val/top1"))


@pytest.mark.parametrize("mix", ["mixup", "cutmix", "both"])
def test_mixed_images_train(mix, tmp_path):
    diary = train("classification", 16, tmp_path, options={"mix": mix, "label_smoothing": 0.1})
    assert all(math.isfinite(value) for value in diary.curve("train/loss"))


def test_variants_see_the_same_dropout_whatever_their_construction_drew(tmp_path):
    reference = train("lm", 8, tmp_path, options={"dropout": 0.5})
    torch.rand(7)
    again = train("lm", 8, tmp_path, options={"dropout": 0.5})
    assert reference.curve("train/loss") == again.curve("train/loss")


def test_matrices_decay_and_vectors_do_not(tmp_path):
    module, _ = build("lm", 8, tmp_path)

    class FakeTrainer:
        estimated_stepping_batches = 10

    module._trainer = FakeTrainer()
    decay, free = module.configure_optimizers()["optimizer"].param_groups
    module._trainer = None
    assert decay["weight_decay"] > 0
    assert free["weight_decay"] == 0
    assert all(p.dim() > 1 for p in decay["params"])
    assert all(p.dim() <= 1 for p in free["params"])
    assert len(decay["params"]) + len(free["params"]) == len(list(module.parameters()))


def test_schedules_follow_their_formulas():
    cosine = Cosine(110, warmup=10, floor=0.1)
    assert [cosine(0), cosine(9)] == pytest.approx([0.1, 1.0])
    assert [cosine(10), cosine(60), cosine(110), cosine(500)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    linear = Linear(110, warmup=10)
    assert [linear(10), linear(60), linear(110)] == pytest.approx([1.0, 0.5, 0.0])
    for warmup in (1, 7, 100):  # Vaswani et al. (2017), equation 3, over its peak; steps from 1 on
        root = InverseSqrt(1000, warmup=warmup)
        paper = [min(n**-0.5, n * warmup**-1.5) / warmup**-0.5 for n in range(1, 500)]
        assert [root(step) for step in range(499)] == pytest.approx(paper)
    assert Constant(10)(7) == 1.0
    with pytest.raises(UsageError, match="warmup"):
        Cosine(10, warmup=-1)


@pytest.mark.parametrize("schedule", [Linear, Cosine, InverseSqrt])
@pytest.mark.parametrize("batches", [1, 2])  # accumulated
def test_the_rate_that_is_logged_is_that_of_the_step(schedule, batches, tmp_path, monkeypatch):
    rates, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step",
        lambda self, *words, **more: (rates.append(self.param_groups[0]["lr"]), step(self, *words, **more))[1],
    )  # fmt: skip
    diary = train(
        "lm", 8, tmp_path, max_steps=6, log_every_n_steps=1, accumulate_grad_batches=batches,
        options={"lr": 0.01, "schedule": lambda total: schedule(total, warmup=2)},
    )  # fmt: skip
    assert len(rates) == 6
    assert diary.curve("train/lr") == pytest.approx(rates)
    assert len(set(rates)) > 3


def test_a_run_without_an_end_is_refused(tmp_path):
    with pytest.raises(UsageError, match="max_steps"):
        train("lm", 8, tmp_path, max_steps=-1, max_epochs=-1)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: CausalLM(max_length=8), "vocab_size"),
        (lambda: CausalLM(vocab_size=8), "max_length"),
        (lambda: Translation(source_vocab_size=8, max_length=8), "target_vocab_size"),
        (lambda: Classification(num_classes=3, image_size=8), "channels"),
        (lambda: CausalLM(8, 8, lr=0.0), "lr"),
    ],
)
def test_what_is_missing_is_named(make, word):
    with pytest.raises(UsageError, match=word):
        make()


@pytest.mark.parametrize(("curve", "middle"), [("sqrt", 1 - 0.5**0.5), ("linear", 0.5)])
def test_wsd_warms_up_stays_and_decays(curve, middle):
    schedule = WSD(100, warmup=10, decay=0.2, curve=curve)
    assert [schedule(step) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert {schedule(step) for step in range(10, 81)} == {1.0}
    assert schedule(90) == pytest.approx(middle)
    assert schedule(100) == 0.0
    assert [schedule(step) for step in range(80)] == [WSD(1000, warmup=10)(step) for step in range(80)]


@pytest.mark.parametrize("decay", [-0.1, 1.1])
def test_wsd_refuses_a_decay_that_is_no_share(decay):
    with pytest.raises(UsageError, match=r"schedule\.decay must be from 0 to 1"):
        WSD(10, decay=decay)


def test_linear_falls_in_a_straight_line_to_its_floor():
    linear = Linear(110, warmup=10, floor=0.2)
    assert [linear(step) for step in (10, 60, 110)] == pytest.approx([1.0, 0.6, 0.2])
