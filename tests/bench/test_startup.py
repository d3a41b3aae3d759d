"""The study of start-up: one token of an export against imports, judged by the goals; times are made up."""

from types import SimpleNamespace

import pytest

from bench.studies import startup
from bench.study import Options


def run_without_processes(monkeypatch, seconds, code=0):
    """Let commands take so many seconds, by a word of theirs. The commands that were run first, once each."""
    commands = []
    monkeypatch.setattr(
        startup.subprocess, "run",
        lambda command, **_: commands.append(command) or SimpleNamespace(returncode=code, stderr="no room"),
    )  # fmt: skip
    monkeypatch.setattr(
        startup, "command_seconds", lambda command, *_: next(time for word, time in seconds.items() if word in command)
    )
    monkeypatch.setattr(startup, "_lines", lambda *_: dict.fromkeys(startup.LINES, seconds["fit"]))
    return commands


TIMES = {"import torch, lightning": 2.0, "import torch": 1.0, "generate": 2.4, "fit": 2.3, "-m": 0.1}


@pytest.mark.parametrize(("generate", "judgement"), [(2.4, "reached (2.5 s)"), (2.6, "missed (2.5 s)")])
def test_a_first_token_is_judged_beside_the_imports(generate, judgement, monkeypatch, tmp_path):
    commands = run_without_processes(monkeypatch, {**TIMES, "generate": generate})
    table = startup.first_token(str(tmp_path), Options(turns=1))
    assert table.rows == [
        ["import torch", 1.0, ""], ["import torch, lightning", 2.0, ""], ["zoo generate", generate, judgement],
    ]  # fmt: skip
    assert [command[3] for command in commands] == ["fit", "export", "generate"]


@pytest.mark.parametrize(("fit", "judgement"), [(2.3, "reached (1.2 times)"), (2.5, "missed (1.2 times)")])
def test_a_fit_is_judged_by_its_ratio_to_the_import(fit, judgement, monkeypatch):
    run_without_processes(monkeypatch, {**TIMES, "fit": fit})
    heavy = startup.study(Options(turns=1))[1]
    assert heavy.rows[0] == ["import torch, lightning", 2.0, 0.0, "", "", ""]
    assert [row[0] for row in heavy.rows[1:]] == ["first line", "device line", "first step finished and saved"]
    assert all(row[4:] == [fit / 2.0, judgement] for row in heavy.rows[1:])


def test_a_real_fit_writes_every_line_that_is_timed(tmp_path, forked_children):
    seconds = startup._lines(str(tmp_path), "wall")
    assert list(seconds) == list(startup.LINES)
    assert 0 < seconds["first line"] <= seconds["device line"] < seconds["first step finished and saved"]


def test_an_export_that_fails_is_no_figure(monkeypatch, tmp_path):
    run_without_processes(monkeypatch, TIMES, code=1)
    with pytest.raises(RuntimeError, match=r"zoo fit lm-tiny .*: no room"):
        startup.first_token(str(tmp_path), Options(turns=1))
