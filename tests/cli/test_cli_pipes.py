"""A reader that has seen enough is no error; any other pipe that breaks is."""

import os
import subprocess
import sys
from pathlib import Path

import zoo.cli

ROOT = Path(__file__).parents[2]


def test_a_reader_that_leaves_is_no_error():
    line = f"set -o pipefail; {sys.executable} -m zoo list | head -1"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_that_breaks_between_processes_is_an_error(monkeypatch, capfd):
    def dispatch(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(zoo.cli, "_dispatch", dispatch)
    assert zoo.cli.main(["fit", "lm-tiny"]) == 1
    assert "BrokenPipeError" in capfd.readouterr().err
