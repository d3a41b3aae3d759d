"""Runs of tasks that take the place of CausalLM: filled in between two texts, learned from preferences, exported."""

import pytest
import torch
from text_helpers import CPU, SMALL, STEPS, TEXT
from zoo_text.data.infill_prompt import MIDDLE, PREFIX, SUFFIX

import zoo
from zoo.cli import main
from zoo.data.tokenizer import EOS
from zoo.errors import UsageError
from zoo.inference.trained_model import Gap
from zoo.inference.weight_files import read_tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of FIM and CausalLM, and one of DPO that starts from the second."""
    home = tmp_path_factory.mktemp("infill")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(home / "cache"))
        (home / "text.txt").write_text(TEXT * 40)
        text = {"path": str(home / "text.txt"), "tokenizer": "chars", "max_length": "24"}
        source = ["--data.text=TextFiles", *(f"--data.text.{name}={value}" for name, value in text.items())]
        direct = ["--data=TextFiles", *(f"--data.{name}={value}" for name, value in text.items())]
        more = ["--runs", str(home / "runs"), *SMALL, *STEPS, *CPU, "--trainer.precision", "32-true"]
        assert main(["fit", "fim-tiny", "--name", "fim", *source, *more]) == 0
        assert main(["fit", "lm-tiny", "--name", "start", *direct, *more]) == 0
        start = ["--tune.start", str(home / "runs" / "lm-tiny" / "start" / "s1"), "--model.lr", "0.01"]
        swap = ["--model", "DPO", "--data", "Preferences", *source]  # of a recipe of another task
        assert main(["fit", "lm-tiny", "--name", "dpo", *swap, *start, *more]) == 0
    return home / "runs"


def test_a_gap_is_filled_by_the_likeliest_tokens_after_its_prompt(folder):
    trained = zoo.load(folder / "fim-tiny" / "fim" / "s1")
    encode, special = trained.tokenizer.encode, trained.tokenizer.special
    ids = [special(PREFIX), *encode("the quick"), special(SUFFIX), *encode(" fox"), special(MIDDLE)]
    first = len(ids)
    for _ in range(6):
        ids.append(int(trained.net(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == special(EOS):
            break
    gap = Gap("the quick", " fox")
    for prompts in (gap, [gap], [gap, Gap("", "s on."), "the"]):
        answer = trained.generate(prompts, length=6, temperature=0.0)[0]
        assert answer.text == trained.tokenizer.decode(ids[first:])
    assert trained.generate("the", length=3, temperature=0.0)[0].text  # it goes on with a text, too


def test_the_command_line_fills_in_and_an_export_does_the_same(folder, tmp_path, capsys):
    words = ["--prompt", "the quick", "--suffix", " fox", "--length", "4", "--temperature", "0"]
    run = str(folder / "fim-tiny" / "fim" / "s1")
    assert main(["generate", run, *words]) == 0
    line = capsys.readouterr().out
    assert line.startswith("the quick")
    assert line.endswith(" fox\n")
    assert main(["export", run, str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "out"), *words, "--json"]) == 0
    assert '"suffix": " fox"' in capsys.readouterr().out


def test_a_model_that_was_not_trained_to_refuses_a_suffix(folder):
    with pytest.raises(UsageError, match="is a DPO, which continues a text: it was not trained to fill in"):
        zoo.load(folder / "lm-tiny" / "dpo" / "s1").generate(Gap("the", "fox"))


def test_the_reference_of_preferences_is_the_start_and_is_saved(folder):
    start = read_tensors(folder / "lm-tiny" / "start" / "s1" / "checkpoints" / "best.ckpt")
    after = read_tensors(folder / "lm-tiny" / "dpo" / "s1" / "checkpoints" / "last.ckpt")
    names = [name for name in start if name.startswith("net.")]
    assert all(torch.equal(start[name], after[name.replace("net.", "reference.", 1)]) for name in names)
    assert any(not torch.equal(start[name], after[name]) for name in names)
    trained = zoo.load(folder / "lm-tiny" / "dpo" / "s1")
    assert trained.generate("the", length=4, temperature=0.0)[0].text
    assert trained.score("the dog").tokens > 0
