"""Language models on texts longer than those they were trained on."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from zoo_designs import length_probe
from zoo_designs.length_probe import (
    LengthLoss,
    differences_legend,
    differences_table,
    length_differences,
    mean_losses,
    parse_factors,
    probe,
    table,
    window_losses,
)

from tests.tasks.training import text_file
from zoo.cli import main
from zoo.compare import run_comparison
from zoo.data.text import TextFiles
from zoo.errors import UsageError
from zoo.logging import run_state

RECIPE = """\
model:
  class_path: CausalLM
  init_args: {dim: 16, depth: 1, heads: 2, lr: 1e-2}
data:
  class_path: TextFiles
  init_args: {path: text.txt, max_length: 8, batch_size: 8}
trainer: {max_steps: 30, val_check_interval: 15, check_val_every_n_epoch: null, accelerator: cpu}
"""


@pytest.mark.parametrize(("text", "expected"), [("length", (1, 2, 4, 8)), ("length=4,1,4", (1, 4)), ("length=3", (3,))])
def test_factors(text, expected):
    assert parse_factors(text) == expected


@pytest.mark.parametrize("text", ["length=0", "length=x", "length=-1", "lengths", "length=1.5", "length=9999"])
def test_no_factors(text):
    with pytest.raises(UsageError, match="probe"):
        parse_factors(text)


class Net(nn.Module):
    """Knows the next token the better, the further right it stands."""

    vocab_size = 20

    def forward(self, tokens):
        place = torch.arange(tokens.size(1)).float()
        logits = F.one_hot((tokens + 1) % 20, 20) * place[:, None] / 4
        return logits.float()


class Model:
    net, device = Net(), torch.device("cpu")


class Rows:
    """The rows of a text as TextData cuts it, with a last one that is padded."""

    def __init__(self, length, count=50):
        stream = np.arange(count) * 3 % 20
        from zoo.data.text import Blocks

        self.datasets = {"val": Blocks(stream, np.ones(20, np.int64), length, None)}


@pytest.mark.parametrize("length", [4, 7, 10, 16])
def test_losses_are_means_over_real_tokens(length, monkeypatch):
    data = Rows(length)
    rows = data.datasets["val"]
    batch = rows.batch(np.arange(len(rows)), 0)
    log_probs = -Net()(batch["inputs"]).log_softmax(-1)
    every, late = [], []
    for row in range(len(rows)):
        for place in range(length):
            target = int(batch["targets"][row, place])
            if target >= 0:
                every.append(float(log_probs[row, place, target]))
                if place >= length - math.ceil(length / 4):
                    late.append(every[-1])
    result = window_losses(Model(), data, length)
    assert result == pytest.approx((np.mean(every), np.mean(late), 49))
    monkeypatch.setattr(length_probe, "NUMBERS", 1)  # a row at a time
    assert window_losses(Model(), data, length) == pytest.approx(result)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two schemes, trained for thirty steps."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("lengths")
        patch.chdir(folder)
        patch.setenv("ZOO_CACHE", str(folder / "cache"))
        text_file(folder)
        (folder / "toy.yaml").write_text(RECIPE)
        for scheme in ("ALiBi", "Learned"):
            assert main(["fit", "toy.yaml", f"--model.position={scheme}", "--trainer.enable_progress_bar=false"]) == 0
        yield folder / "runs" / "toy"


@pytest.fixture
def folders(runs, monkeypatch):
    monkeypatch.chdir(runs.parents[1])
    monkeypatch.setenv("ZOO_CACHE", str(runs.parents[1] / "cache"))
    return {name: {1: runs / f"position={name}" / "s1"} for name in ("alibi", "learned")}


def test_a_scheme_without_more_positions_is_undefined_and_says_why(folders, tmp_path):
    result = probe(folders, (1, 2, 4), tmp_path)
    alibi, learned = result["alibi"][1], result["learned"][1]
    assert [(loss.factor, loss.length) for loss in alibi] == [(1, 8), (2, 16), (4, 32)]
    assert all(loss.overall > 0 and loss.last_quarter > 0 and not loss.undefined for loss in alibi)
    assert len({loss.tokens for loss in alibi}) == 1  # the same text, however it is cut
    assert learned[0].overall is not None
    assert [loss.overall for loss in learned[1:]] == [None, None]
    assert "sequence length 16 exceeds max_length=8 of position Learned" in learned[1].undefined
    assert mean_losses(result)["learned"] == {1.0: learned[0].last_quarter, 2.0: None, 4.0: None}
    rows = table(result)
    assert rows[0][1:] == ["1×", "2×", "4×"]
    assert rows[2][2:] == ["undefined", "undefined"]
    # at the training length it is the loss of the validation of the best checkpoint
    ledger = json.loads((folders["alibi"][1] / "ledger.json").read_text())
    assert alibi[0].overall == pytest.approx(ledger["best"]["loss"], rel=1e-4)


def test_what_was_measured_is_not_measured_again(folders, tmp_path, monkeypatch):
    lines = []
    first = probe(folders, (1, 2), tmp_path, tell=lines.append)
    assert lines == ["alibi s1: lengths 1×, 2×", "learned s1: lengths 1×, 2×"]
    measured, real = [], length_probe.measure

    def measure(folder, lengths, allow):
        measured.append((Path(folder).parent.name, tuple(lengths)))
        return real(folder, lengths, allow)

    monkeypatch.setattr(length_probe, "measure", measure)
    assert probe(folders, (1, 2), tmp_path) == first
    assert measured == []
    more = probe(folders, (1, 2, 4), tmp_path)
    assert measured == [("position=alibi", (4,)), ("position=learned", (4,))]
    assert more["alibi"][1][:2] == first["alibi"][1]
    assert probe(folders, (1,), tmp_path)["alibi"][1] == first["alibi"][1][:1]
    best = folders["alibi"][1] / "checkpoints" / "best.ckpt"
    best.touch()  # another training of the same run
    measured.clear()
    probe(folders, (1, 2), tmp_path)
    assert measured == [("position=alibi", (1, 2))]


def test_a_damaged_file_of_lengths_is_made_anew(folders, tmp_path):
    (tmp_path / "lengths.json").write_text("{")
    probe({"alibi": folders["alibi"]}, (1,), tmp_path)
    assert json.loads((tmp_path / "lengths.json").read_text())["format"] == 1


def test_means_are_over_the_seeds_that_are_defined():
    def loss(factor, late):
        return LengthLoss(factor, 8 * factor, late, late, 10)

    result = {"a": {1: [loss(1, 1.0), loss(2, 2.0)], 2: [loss(1, 3.0), loss(2, 4.0)]}, "b": {1: [loss(1, None)]}}
    assert mean_losses(result) == {"a": {1.0: 2.0, 2.0: 3.0}, "b": {1.0: None}}
    assert table(result)[1] == ["a", "2.000 (2.000)", "3.000 (3.000)"]


def test_only_language_models_on_text_have_lengths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    words = ["--data.size=100", "--trainer.max_steps=1", "--trainer.enable_progress_bar=false", "--name=x"]
    assert main(["fit", "vit-glyphs", *words]) == 0
    with pytest.raises(UsageError, match="--probe length is for language models on text"):
        probe({"x": {1: Path("runs/vit-glyphs/x/s1")}}, (1,), tmp_path)


def test_text_files_are_what_the_probe_reads():
    assert issubclass(TextFiles, length_probe.__dict__.get("TextData", TextFiles.__mro__[1]))


@pytest.mark.parametrize("recipe", ["vit-tiny", "translation-tiny"])
def test_a_recipe_without_lengths_is_refused_before_it_is_trained(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", recipe, "--vary", "model.position=rope,alibi", "--probe", "length=1,2"]) == 2
    assert "--probe length is for language models on text, and this is a " in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# differences from the baseline


def probed(**figures):
    """Losses of seeds from 1 on at lengths 1 and 2, None for a length that a run cannot read."""
    return {
        variant: {seed: [LengthLoss(factor, 8 * factor, value, value, 10)
                         for factor, value in zip((1, 2), pair, strict=True)]
                  for seed, pair in enumerate(zip(*by_length, strict=True), 1)}
        for variant, by_length in figures.items()
    }  # fmt: skip


def test_differences_and_intervals_are_those_of_scipy():
    rng = np.random.default_rng(3)
    figures = {name: rng.normal(2.0, 0.1, (2, 4)).tolist() for name in ("base", "a", "b")}
    differences = {(one.variant, one.factor): one.pair for one in length_differences(probed(**figures), "base")}
    assert list(differences) == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    for (name, factor), pair in differences.items():
        ours, theirs = figures[name][factor - 1], figures["base"][factor - 1]
        expected = stats.ttest_rel(ours, theirs)
        interval = expected.confidence_interval(1 - 0.05 / 2)  # of two variants together
        assert pair.mean == pytest.approx(np.mean(ours) - np.mean(theirs))
        assert (pair.low, pair.high) == pytest.approx((interval.low, interval.high))
        assert pair.p == pytest.approx(expected.pvalue)


def test_a_length_that_a_run_cannot_read_and_failed_runs_have_no_difference():
    losses = probed(base=[[1.0, 1.2], [2.0, 2.2]], a=[[1.1, 1.0], [None, None]], b=[[1.0, 1.0], [1.0, 1.0]])
    del losses["a"][2]  # a seed of one side counts in no difference
    rows = differences_table(length_differences(losses, "base", {"b": "1 of 3 diverged"}))
    assert rows == [
        ["difference, 95 % interval", "1×", "2×"],
        ["a", "+0.100, one seed", "undefined"],
        ["b", "1 of 3 diverged", "1 of 3 diverged"],
    ]
    swapped = length_differences(losses, "a")
    assert [one.reason for one in swapped if one.factor == 2] == ["undefined for the baseline"] * 2
    assert differences_legend("base", [one for one in swapped if one.reason]) == ""
    assert differences_table(length_differences(probed(base=[[1.0], [2.0]]), "base"))[1:] == []


def test_a_comparison_prints_and_saves_differences_by_length(folders, tmp_path, monkeypatch, capsys):
    """On real runs: four seeds of three schemes, of which one knows no more positions."""

    def execute(jobs, options):
        for job in jobs:
            if run_state.read_state(job.folder) != "finished":
                assert main(["fit", *job.words, "--trainer.enable_progress_bar=false"]) == 0
        return []

    monkeypatch.setattr(run_comparison, "execute", execute)
    words = ["compare", "./toy.yaml", "--vary", "model.position=alibi,learned,none", "--baseline=position=alibi"]
    assert main([*words, "--seeds=4", "--probe=length=1,2"]) == 0
    text = capsys.readouterr().out
    home = Path("runs/toy/compare/position")
    saved = json.loads((home / "lengths.json").read_text())
    late = {key.split("/")[-2:][0]: [] for key in saved["runs"]}
    for key, entry in sorted(saved["runs"].items()):
        late[key.split("/")[-2]].append([LengthLoss(*each).last_quarter for each in entry["losses"]])
    figures = {name: np.array(each, dtype=float) for name, each in late.items()}
    for one in saved["differences"]:
        name = {"Learned": "position=learned", "NoPosition": "position=noposition"}[one["variant"]]
        if (one["variant"], one["factor"]) == ("Learned", 2):
            assert one["reason"] == "undefined"
            continue
        column = one["factor"] - 1
        expected = stats.ttest_rel(figures[name][:, column], figures["position=alibi"][:, column])
        interval = expected.confidence_interval(1 - 0.05 / (2 if column == 0 else 1))
        assert (one["low"], one["high"]) == pytest.approx((interval.low, interval.high))
        printed = f"{one['mean']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]".replace("-", "−")
        assert printed in text
    assert "They are no verdicts" in text
    assert "Differences from ALiBi in the last quarter, paired over 4 seeds" in (home / "comparison.html").read_text()
