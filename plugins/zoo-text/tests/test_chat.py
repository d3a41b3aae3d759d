"""Chatting with a model that was trained on dialogues: turns are kept, and the answers are those of training."""

import io
import json
import sys

import pytest

import zoo
from zoo.cli import main
from zoo.data.conversation import Conversation, Turn
from zoo.errors import UsageError

FACTS = {"one": "red", "two": "blue", "three": "green"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model of three facts and of what "And before?" means: the answer to the question before the last one."""
    home = tmp_path_factory.mktemp("chat")
    lines = []
    for first in FACTS:
        for second in FACTS:
            says = [first, FACTS[first], second, FACTS[second], "And before?", FACTS[first]]
            roles = ("user", "assistant") * 3
            messages = [{"role": role, "content": text} for role, text in zip(roles, says, strict=True)]
            lines.append(json.dumps({"messages": messages}))
    (home / "turns.jsonl").write_text("\n".join(lines) + "\n")
    words = ["--data", "DialogueFiles", "--data.path", str(home / "turns.jsonl"), "--data.vocab_size", "300"]
    words += ["--data.val_path", str(home / "turns.jsonl"), "--data.max_length", "48", "--data.max_tokens", "480"]
    words += ["--model.dim", "32", "--model.depth", "2", "--model.heads", "2", "--model.lr", "0.01"]
    words += ["--trainer.max_steps", "150", "--trainer.val_check_interval", "150", "--trainer.logger", "false"]
    words += ["--model.schedule.warmup", "10", "--trainer.accelerator", "cpu", "--seed_everything", "1"]
    assert main(["fit", "dialogue-tiny", "--runs", str(home / "runs"), *words]) == 0
    return next((home / "runs").glob("*/*/s1"))


def say(monkeypatch, capsys, text, *words):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code = main(["chat", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_turns_are_kept_until_an_empty_line(run, monkeypatch, capsys):
    code, answers, _ = say(monkeypatch, capsys, "one\nthree\nAnd before?\n\ntwo\none\nAnd before?\n", run)
    assert code == 0
    assert answers == ["red", "green", "red", "blue", "red", "blue"]
    code, answers, _ = say(monkeypatch, capsys, "two\none\n", run, "--json")
    assert [json.loads(line) for line in answers] == [
        {"turn": 1, "user": "two", "assistant": "blue", "ended": True},
        {"turn": 2, "user": "one", "assistant": "red", "ended": True},
    ]
    code, answers, _ = say(monkeypatch, capsys, "one\n", run, "--max-tokens", "1", "--json")
    assert not json.loads(answers[0])["ended"]


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_a_terminal_is_prompted(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"one\n")))
    assert main(["chat", str(run)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "red\n"
    assert captured.err.endswith("> > ")


def test_the_oldest_turns_are_left_out_where_all_do_not_fit(run, monkeypatch):
    model, prompts = zoo.load(run), []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda prompt, **more: prompts.append((prompt, more)) or generate(prompt, **more)
    )
    turns = [Turn("user", "one"), Turn("assistant", "red")] * 9 + [Turn("user", "two")]
    assert model.chat(turns, max_tokens=8).text == "blue"
    ((prompt, more),) = prompts
    assert isinstance(prompt, Conversation)
    assert prompt == tuple(turns[-len(prompt) :])
    assert prompt[0].role == "user"
    tokens = len(model.encode_prompt(prompt))
    assert tokens + 7 <= model.net.max_length < tokens + 7 + len(model.encode_prompt(Conversation(turns[:2])))
    assert more["temperature"] == 0.0
    for wrong in ([], turns[:2]):
        with pytest.raises(UsageError, match="the last turn must be the user's"):
            model.chat(wrong)


def test_wrong_options_and_other_uses_are_refused(run, monkeypatch, capsys):
    assert say(monkeypatch, capsys, "a\n", run, "--temperature", "-1")[0] == 2
    assert "is a CausalLM: it can generate, score, chat, and cannot fill" in refused_fill(run)


def refused_fill(run):
    with pytest.raises(UsageError) as caught:
        zoo.load(run).fill("x")
    return str(caught.value)


def test_an_export_chats_as_its_run_does(run, tmp_path):
    turns = Conversation([Turn("user", "one"), Turn("assistant", "red"), Turn("user", "And before?")])
    assert main(["export", str(run), str(tmp_path / "zoo")]) == 0
    assert zoo.load(tmp_path / "zoo").chat(turns).text == "red"
