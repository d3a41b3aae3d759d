"""RNNSeq2Seq as a task: the figures of Translation, whatever its cell and score, and a cost without computing."""

import pytest
import torch
from torch.nn.functional import pad

from tests.tasks import training
from tests.tasks.training import Diary
from zoo.config import fit_options, run_config
from zoo.data.phrasebook import Phrasebook
from zoo.errors import UsageError
from zoo.tasks.recurrent import RNNSeq2Seq
from zoo.training.model_cost import cost

PHRASES = {"size": 600, "kinds": ["date", "unit"], "vocab_size": 400, "max_length": 64, "eval_limit": 7}


def build(**options):
    torch.manual_seed(3)
    data = Phrasebook(**PHRASES, max_tokens=512)
    return RNNSeq2Seq(**data.sizes(), max_length=64, **{"dim": 16} | options), data


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Train RNNSeq2Seq as tests/tasks/training.py trains the other tasks."""

    def run(**options) -> Diary:
        monkeypatch.setattr(training, "build", lambda *_, **kwargs: build(**kwargs))
        return training.train("translation-rnn", 8, tmp_path, options)

    return run


@pytest.mark.parametrize(
    ("cell", "score"),
    [
        pytest.param("gru", "additive", marks=pytest.mark.campaign),
        ("lstm", "concat"),
        pytest.param("rnn", "additive", marks=pytest.mark.campaign),
        ("gru", "none"),
    ],
)
def test_it_reports_what_translation_reports_and_alignment_where_there_is_attention(cell, score, fit):
    diary = fit(cell=cell, score=score, depth=2, dropout=0.1)
    names = {name for _, name, _ in diary.lines}
    assert {"val/loss", "val/bleu", "val/chrf", "val/exact", "val/exact_date", "train/loss"} <= names
    assert ("val/alignment" in names) == (score != "none")
    losses = diary.curve("train/loss")
    assert losses[-1] < losses[0]


def test_training_repeats_exactly(fit):
    assert fit(dropout=0.2).curve("train/loss") == fit(dropout=0.2).curve("train/loss")


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
