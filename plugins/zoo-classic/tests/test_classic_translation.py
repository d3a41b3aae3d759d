"""RNNSeq2Seq as a task: the figures of Translation, whatever its cell and score, and a trained one as it is used."""

import json
from dataclasses import dataclass, field

import pytest
import torch
from classic_runs import trained
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers.logger import Logger
from torch.nn.functional import pad
from zoo_classic.reversal import Reversal
from zoo_classic.seq2seq import RecurrentSeq2Seq
from zoo_classic.translation import RNNSeq2Seq

import zoo
from zoo.cli import main
from zoo.config import fit_options, run_config
from zoo.config.task_data_match import check_batch, check_missing_sizes
from zoo.data.glyphs import Glyphs
from zoo.data.phrasebook import Phrasebook
from zoo.errors import UsageError
from zoo.logging.attention_maps import translation_alignment
from zoo.training.memory_estimate import estimate, full_batch
from zoo.training.model_cost import cost
from zoo.value_checks import MOST_SAMPLES

PHRASES = {"size": 600, "kinds": ["date", "unit"], "vocab_size": 400, "max_length": 64, "eval_limit": 7}
WORDS = {"length": 6, "letters": 8, "size": 300, "max_tokens": 64, "eval_limit": 7}
LINES = ["March 3, 2021", "", "5 hours", "  ", "2 days", "12:30 PM", "7 weeks", "January 1, 1999 and more"]


@dataclass
class Diary(Logger):
    """Keeps every figure as (name, value)."""

    lines: list = field(default_factory=list)
    name, version = "diary", 0

    def log_metrics(self, metrics, step=None):
        self.lines += metrics.items()

    def log_hyperparams(self, *args, **kwargs):
        pass

    def curve(self, name):
        return [value for metric, value in self.lines if metric == name]


def build(**options):
    torch.manual_seed(3)
    data = Phrasebook(**PHRASES, max_tokens=512)
    return RNNSeq2Seq(**data.sizes(), max_length=64, **{"dim": 16} | options), data


def fit(folder, **options):
    """Six steps and a validation."""
    seed_everything(3, verbose=False)
    diary, (module, data) = Diary(), build(**options)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    Trainer(
        accelerator="cpu", logger=diary, max_steps=6, val_check_interval=6, check_val_every_n_epoch=None,
        log_every_n_steps=1, num_sanity_val_steps=0, use_distributed_sampler=False, default_root_dir=folder, **quiet,
    ).fit(module, data)  # fmt: skip
    return diary


@pytest.mark.parametrize(
    ("cell", "score"),
    [
        pytest.param("gru", "additive", marks=pytest.mark.campaign),
        ("lstm", "concat"),
        pytest.param("rnn", "additive", marks=pytest.mark.campaign),
        ("gru", "none"),
    ],
)
def test_it_reports_what_translation_reports_and_alignment_where_there_is_attention(cell, score, tmp_path):
    diary = fit(tmp_path, cell=cell, score=score, depth=2, dropout=0.1)
    names = {name for name, _ in diary.lines}
    assert {"val/loss", "val/bleu", "val/chrf", "val/exact", "val/exact_date", "train/loss"} <= names
    assert ("val/alignment" in names) == (score != "none")
    losses = diary.curve("train/loss")
    assert losses[-1] < losses[0]


def test_training_repeats_exactly(tmp_path):
    curves = [fit(tmp_path, dropout=0.2).curve("train/loss") for _ in range(2)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize("score", ["none", "additive", "concat"])
def test_padding_does_not_change_the_loss(score):
    module, data = build(score=score)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    wider = dict(batch)
    for side in ("source", "target"):
        wider[side] = pad(batch[side], (0, 8))
        wider[f"{side}_valid"] = pad(batch[f"{side}_valid"], (0, 8))
    torch.testing.assert_close(module.loss(wider).total, module.loss(batch).total, atol=1e-3, rtol=1e-6)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_cost_counts_the_multiplications_of_one_token(cell):
    module = RNNSeq2Seq(50, 60, 32, dim=16, cell=cell, tie="none")
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    encoder = 2 * gates * 8 * (16 + 8)  # two directions
    decoder = gates * 16 * (32 + 16)
    attention = 2 * 16 * 16 + 32 * 16 + 32 * 16  # query and key; v and the mean over 32 states
    result = cost(module)
    assert result.parameters == sum(p.numel() for p in module.parameters())
    assert result.flops == 2 * (encoder + decoder + attention + 32 * 16 + 16 * 60)


def test_cost_of_a_fixed_context_is_that_of_no_attention():
    assert cost(RNNSeq2Seq(50, 60, 32, dim=16, score="none")).flops < cost(RNNSeq2Seq(50, 60, 32, dim=16)).flops


@pytest.mark.parametrize("recipe", ["translation-rnn", "translation-rnn-fixed"])
def test_recipes_take_every_cell_and_score(recipe):
    parsed = fit_options.parse("fit", [recipe, "--model.cell", "lstm", "--model.score", "concat"])
    options = run_config.make_plan(parsed, run_config.read_draft(parsed)).config["model"]["init_args"]
    assert (options["cell"], options["score"]) == ("lstm", "concat")


def test_what_is_missing_is_named():
    with pytest.raises(UsageError, match="source_vocab_size"):
        RNNSeq2Seq(target_vocab_size=8, max_length=8)


def test_data_of_pairs_are_what_it_learns_from_and_others_are_refused():
    for data in (Reversal(**WORDS), Phrasebook(**PHRASES, max_tokens=64)):
        data.ready()
        check_missing_sizes(RNNSeq2Seq, data, data.sizes(), RNNSeq2Seq.data_sizes)
        check_batch(RNNSeq2Seq(**data.sizes(), max_length=64, dim=8), data)
    glyphs = Glyphs(size=60)
    with pytest.raises(UsageError, match=r"Glyphs gives images, and RNNSeq2Seq learns from .*\n.*--data Phrasebook"):
        check_missing_sizes(RNNSeq2Seq, glyphs, glyphs.sizes(), RNNSeq2Seq.data_sizes)


def test_words_that_would_be_drawn_for_hours_are_refused_at_once():
    with pytest.raises(UsageError, match=f"size must be at most {MOST_SAMPLES}, got {MOST_SAMPLES + 1}"):
        Reversal(length=40, size=MOST_SAMPLES + 1)


def test_a_step_can_be_estimated_and_padding_that_is_removed_takes_no_memory():
    task = RNNSeq2Seq(source_vocab_size=64, target_vocab_size=64, max_length=8, dim=32)  # traced at each position
    few, whole = full_batch(task, 1), full_batch(task, 16)
    assert estimate(task, few).gradients <= estimate(task, few).batch < estimate(task, whole).batch
    padded = {**whole, "source_valid": whole["source_valid"].clone()}
    padded["source_valid"][1:, 4:] = False
    assert estimate(task, padded).batch < 0.9 * estimate(task, whole).batch


def test_what_a_loss_keeps_and_frees_counts():
    """This network has all logits, their log-softmax and its gradient at once."""
    rows, words = 64, 4096
    task = RNNSeq2Seq(source_vocab_size=64, target_vocab_size=words, dim=16, max_length=8)
    logits = 4 * rows * 7 * words
    assert 2 * logits < estimate(task, full_batch(task, rows)).batch < 4 * logits


def test_alignment_is_that_of_its_attention():
    source, target = torch.randint(19, (2, 6)), torch.randint(19, (2, 4))
    for score, expected in (("additive", (2, 4, 6)), ("none", None)):
        weights = translation_alignment(RecurrentSeq2Seq(19, 19, 16, score=score, dim=16), source, None, target)
        assert (None if weights is None else weights.shape) == expected


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A translator of few steps, of sentences of the phrasebook."""
    small = ["--data.size", "600", "--data.kinds", "[date, unit]", "--model.dim", "16", "--trainer.max_steps", "3"]
    small += ["--data.max_length", "64", "--trainer.limit_val_batches", "1", "--trainer.precision", "32-true"]
    return trained(tmp_path_factory.mktemp("runs"), "translation-rnn", *small)


def test_an_export_translates_and_scores_as_its_run(translator, tmp_path, monkeypatch, capsys):
    folder = translator.export(tmp_path / "out")
    export = zoo.load(folder)
    assert type(export.task) is RNNSeq2Seq
    together = export.translate(LINES, beams=2, max_length=12)
    for line, translation in zip(LINES, together, strict=True):
        assert export.translate(line, beams=2, max_length=12)[0].text == translation.text
    assert [one.text for one in translator.translate(LINES, beams=2, max_length=12)] == [one.text for one in together]
    source = torch.tensor([[*export.source_tokenizer.encode(LINES[0]), export.source_end]])
    target = torch.tensor([[export.start, *export.target_tokenizer.encode("3. März 2021"), export.end]])
    batch = {"source": source, "target": target, "source_valid": source >= 0, "target_valid": target >= 0}
    nothing = {"slots": torch.zeros(0, 5, dtype=torch.long), "decode": torch.tensor([False])}
    total, _ = export.task.evaluate(batch | nothing)
    assert export.score(LINES[0], "3. März 2021").log_probability == pytest.approx(-float(total), rel=1e-4)


def test_runs_and_exports_that_name_the_class_where_it_was_in_zoo_are_used(translator, tmp_path):
    folder = translator.export(tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    config["model"]["class_path"] = "zoo.tasks.recurrent.RNNSeq2Seq"
    (folder / "config.json").write_text(json.dumps(config))
    earlier = zoo.load(folder)
    assert earlier.place.config["model"]["class_path"] == "zoo_classic.translation.RNNSeq2Seq"
    assert earlier.translate("5 hours")[0].text == translator.translate("5 hours")[0].text
    recipe = tmp_path / "earlier.yaml"
    recipe.write_text(
        "model: {class_path: zoo.tasks.recurrent.RNNSeq2Seq, init_args: {dim: 8}}\n"
        "data: {class_path: zoo.data.reversal.Reversal, init_args: {length: 6, letters: 8, size: 300}}\n"
    )
    parsed = fit_options.parse("fit", [str(recipe)])
    plan = run_config.make_plan(parsed, run_config.read_draft(parsed))
    assert plan.config["model"]["class_path"] == "zoo_classic.translation.RNNSeq2Seq"
    assert plan.config["data"]["class_path"] == "zoo_classic.reversal.Reversal"


def test_words_are_reversed_by_a_recipe_whose_header_ends_with_the_memory_of_a_step(tmp_path, capsys):
    words = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "0", "--runs", str(tmp_path)]
    assert main(["fit", "reverse-rnn", *words]) == 0
    assert "RNNSeq2Seq on Reversal, 1 step" in capsys.readouterr().out
