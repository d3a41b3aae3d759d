"""`zoo fill` and `zoo tag` print no control character of a text or a model, and send published checkpoints on."""

import json
import types

import pytest
from zoo_text.inference.labelling import TaggedText

from zoo.cli import inference, main
from zoo.inference.classification import Guess

HOSTILE = ["\x1b[31mred", "a\rb", "a\x07", "\u202egnol", "\x9b2J", "tab\there"]
MODEL = types.SimpleNamespace(
    fill=lambda text, **_: [types.SimpleNamespace(text=text, guesses=[[Guess(text, 1.0)]])],
    tag=lambda text: [[TaggedText(text, text, 1.0)]],
)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("command", ["fill", "tag"])
def test_no_control_character_is_printed(command, text, monkeypatch, capsys):
    monkeypatch.setattr(inference, "load_trained", lambda options, bare=False: MODEL)
    for more in ([], ["--json"]):
        assert main([command, "x", "--text", text, *more]) == 0
        out = capsys.readouterr().out
        assert not {"\x1b", "\r", "\x07", "\u202e", "\x9b"} & {*out}
        if more:
            assert json.loads(out)["text"] == text


@pytest.mark.parametrize("command", ["fill", "tag"])
def test_a_published_checkpoint_is_sent_to_the_import(command, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(16))
    assert main([command, str(tmp_path), "--text", "a"]) == 2
    assert f"zoo import {tmp_path}" in capsys.readouterr().err
