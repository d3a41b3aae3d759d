"""Trained classifiers of texts and tokens, asked from Python and from the command line."""

import json

import numpy as np
import pytest
import torch
from zoo_text.data.taggedfiles import TaggedFiles

import zoo
from zoo.cli import main
from zoo.console import printable
from zoo.errors import NonFiniteError, UsageError

SMALL = ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--trainer.accelerator", "cpu"]
SMALL += ["--trainer.logger", "false", "--trainer.max_steps", "30", "--trainer.val_check_interval", "30"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, session_cache):
    """A classifier of texts that has learned two words, and a tagger of source code."""
    home = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(session_cache))
        lines = [f"{'ab'[i % 2]}\tthe {('purr', 'bark')[i % 2]} of {i}" for i in range(60)]
        (home / "train.tsv").write_text("\n".join(lines) + "\n")
        data = [
            "--data",
            "LabelledFiles",
            "--data.path",
            str(home),
            "--data.max_length",
            "16",
            "--data.vocab_size",
            "300",
        ]
        words = ["fit", "topics-tiny", "--runs", str(home), "--name", "t", *data, *SMALL, "--model.lr", "0.01"]
        assert main(words) == 0
        tags = ["--data.pieces", "40", "--data.vocab_size", "300", "--data.max_length", "24"]
        assert main(["fit", "roles-tiny", "--runs", str(home), "--name", "r", *tags, *SMALL]) == 0
    return home


def test_texts_are_classified(runs, capsys):
    model = zoo.load(runs / "topics-tiny/t/s1")
    answer = model.classify(["the purr of 99", "the bark of 3"], top=2)
    assert [guesses[0].label for guesses in answer] == ["a", "b"]
    ids = torch.tensor([[model.cls, *model.tokenizer.encode("the purr of 99")]])
    with torch.no_grad():
        chances = model.net(ids)[0].double().softmax(-1)
    assert [guess.probability for guess in answer[0]] == pytest.approx(sorted(chances.tolist(), reverse=True))
    capsys.readouterr()
    assert main(["classify", str(runs / "topics-tiny/t/s1"), "--text", "the purr of 99", "--top", "1", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["text"] == "the purr of 99"
    assert output["classes"] == [pytest.approx(answer[0][0]._asdict())]
    assert main(["classify", str(runs / "topics-tiny/t/s1"), "picture.png"]) == 2
    with pytest.raises(UsageError, match="it can classify, and cannot fill"):
        model.fill("x")


def test_a_text_that_is_cut_off_is_named(runs, caplog):
    text = "the purr of 99 " * 20
    run = runs / "topics-tiny/t/s1"
    count, room = len(zoo.load(run).tokenizer.encode(text)), zoo.load(run).room
    assert main(["classify", str(run), "--text", text, "--text", "the bark of 3"]) == 0
    error = caplog.text
    assert f"has {count} tokens, more than the {room} that the model reads: its end is cut off" in error
    assert "bark" not in error


def test_tokens_are_tagged_in_pieces_as_long_as_the_model(runs, capsys):
    model = zoo.load(runs / "roles-tiny/r/s1")
    text = "def f(x):\n    return g(x) + 1  # a comment of some length, so that one piece is not enough\n"
    answer = model.tag(text)[0]
    assert "".join(one.text for one in answer) == text
    ids = model.tokenizer.encode(text)
    assert len(answer) == len(ids) > 24
    with torch.no_grad():
        second = model.net(torch.tensor([[model.cls, *ids[23:46]]]))[0, 1:].argmax(-1).tolist()
    assert [one.label for one in answer[23:46]] == [model.names[one] for one in second]
    capsys.readouterr()
    assert main(["tag", str(runs / "roles-tiny/r/s1"), "--text", text]) == 0
    assert capsys.readouterr().out.rstrip("\n") == "\n".join(f"{printable(one.text)}\t{one.label}" for one in answer)


def test_predictions_are_written_down(runs):
    for recipe, name, key in (("topics-tiny", "t", "class"), ("roles-tiny", "r", "classes")):
        run = runs / recipe / name / "s1"
        assert main(["predict", str(run), "--runs", str(runs), "--trainer.accelerator", "cpu"]) == 0
        lines = (run / "predictions.jsonl").read_text().splitlines()
        assert all(key in json.loads(line) for line in lines)


def test_exports_carry_their_classes(runs, tmp_path):
    model = zoo.load(runs / "topics-tiny/t/s1")
    model.export(tmp_path / "out")
    assert (tmp_path / "out" / "labels.json").is_file()
    assert zoo.load(tmp_path / "out").classify("the bark of 3") == model.classify("the bark of 3")


def test_a_classifier_that_computes_nan_says_so(runs):
    for name, call in (("topics-tiny/t/s1", "classify"), ("roles-tiny/r/s1", "tag")):
        model = zoo.load(runs / name)
        for parameter in model.net.parameters():
            parameter.fill_(float("nan"))
        with pytest.raises(NonFiniteError, match="not a number"):
            getattr(model, call)("the purr of 99")


def test_words_are_tagged_by_their_first_tokens_as_they_were_trained(tmp_path, session_cache, monkeypatch, capsys):
    """Each word has the class that the network gives at the place where the data would have its tag."""
    monkeypatch.setenv("ZOO_CACHE", str(session_cache))
    people, places = ("Ada", "Lovelace", "Grace"), ("Paris", "London", "Rom")
    rows = [([one, "lives", "in", two], ["PER", "O", "O", "LOC"]) for one in people for two in places]
    (tmp_path / "train.jsonl").write_text(
        "\n".join(json.dumps({"tokens": row, "tags": tags}) for row, tags in rows * 3)
    )
    data = ["--data", "TaggedFiles", "--data.path", str(tmp_path / "train.jsonl"), "--data.vocab_size", "270"]
    words = ["--runs", str(tmp_path / "runs"), "--name", "w", "--data.max_length", "64", *data]
    assert main(["fit", "roles-tiny", *words, *SMALL]) == 0
    run = tmp_path / "runs" / "roles-tiny" / "w" / "s1"
    model = zoo.load(run)
    source = TaggedFiles(str(tmp_path / "train.jsonl"), tokenizer=str(run), max_length=64, seed=0)
    source.ready()
    batch = source.datasets["train"].batch(np.arange(9), 0)
    for tokens, valid, labels in zip(batch["tokens"], batch["valid"], batch["labels"], strict=True):
        text = model.tokenizer.decode(tokens[valid].tolist())
        with torch.no_grad():
            classes = model.net(tokens[valid][None])[0].argmax(-1)[labels[valid] >= 0]
        answer = model.tag(text)[0]
        assert [one.text for one in answer] == text.split()
        assert [one.label for one in answer] == [model.names[one] for one in classes.tolist()]
        assert [one.text for one in model.tag(f"  {text}\n")[0]] == text.split()
    model.export(tmp_path / "out")
    assert zoo.load(tmp_path / "out").tag(text) == model.tag(text)
