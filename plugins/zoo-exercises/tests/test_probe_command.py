"""`zoo probe` on the command line."""

import json

import pytest
from zoo_exercises import probe_command
from zoo_exercises.probe import GradientNorm, LayerRank, Scorecard

from zoo.cli import main


def zoo(capsys, *words, code=0):
    assert main(["probe", *words]) == code, capsys.readouterr().err
    return capsys.readouterr()


@pytest.fixture
def short(monkeypatch):
    """One small task of each training."""
    from zoo_exercises import probe_recipe

    monkeypatch.setattr(probe_recipe, "EVALUATED", 32)
    monkeypatch.setattr(probe_recipe, "RATES", (1e-2, 3e-3))
    tasks = {name: probe_recipe.TASKS[name] for name in ("induction", "parity")}
    monkeypatch.setattr(probe_recipe, "TASKS", tasks)


def test_the_card_of_a_recipe(recipes, short, capsys):
    result = zoo(capsys, "lm.yaml", "--steps", "2", "--model.norm", "rmsnorm")
    assert [line.partition(":")[0] for line in result.err.splitlines()] == ["induction", "parity"]
    out = result.out
    assert "CausalLM of dim 16, depth 2, heads 2 with the parts of the recipe" in out
    assert "for 2 steps of 32 texts" in out
    for title in ("Right answers", "Heads", "Effective rank", "Gradients"):
        assert title in out
    assert "no induction heads" in out
    value = json.loads(zoo(capsys, "lm.yaml", "--steps", "2", "--json").out)
    assert [one["task"] for one in value["scores"]] == ["induction", "repeated tokens", "parity"]
    assert {one["layer"] for one in value["heads"]} == {f"stack.blocks.{n}.attend.part" for n in (0, 1)}
    assert value["induction_heads"] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no-such-recipe"], "no recipe or file 'no-such-recipe'"),
        (["lm.yaml", "--steps", "0"], "--steps"),
        (["lm.yaml", "--model.norm", "nosuch"], "nosuch"),
    ],
)
def test_mistakes_end_in_a_sentence(recipes, capsys, words, sentence):
    err = zoo(capsys, *words, code=2).err
    assert sentence in err
    assert len(err.splitlines()) <= 5


def test_foreign_names_are_printed_without_control_characters(recipes, monkeypatch, capsys):
    foreign = ["a\x1b[31mred", "b\x9b2J", "c\u202edesrever", "d\r\nline", "e\udc9b"]
    ranks, gradients = [LayerRank(text, 1.0, 2) for text in foreign], [GradientNorm(text, 1.0, 2) for text in foreign]
    card = Scorecard(*foreign[:3], ranks=ranks, gradients=gradients, notes=foreign)
    monkeypatch.setattr(probe_command, "_probe", lambda *_: card)
    for more in ([], ["--json"]):
        out = zoo(capsys, "lm.yaml", *more).out
        assert not set(out) & set("\x1b\x9b\u202e\r\udc9b")
        assert all(text[0] in out for text in foreign)
