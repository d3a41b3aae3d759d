"""Short versions of the campaigns: a few kills, a few signals, one long run that is not long."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[3]


def run(name, home, *words, within=300):
    """A campaign in a process of its own, which may fork; its output."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ZOO_CACHE": str(home / "cache")}
    command = [sys.executable, "-m", f"tests.campaigns.chaos.{name}", "--home", str(home / "runs"), *words]
    done = forks.run(command, env=env, text=True, timeout=within, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.campaign  # test_tools.py kills runs while they save, and test_sequences.py at counted moments
@pytest.mark.parametrize("kills", [2, 4])
def test_killed_runs_end_like_undisturbed_ones(tmp_path, kills):
    out = run("kills", tmp_path, "--kills", str(kills), "--tasks", "lm")
    assert '"problems": []' in out


@pytest.mark.campaign
@pytest.mark.timeout(1600)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_killed_runs_of_a_stream_end_like_undisturbed_ones(tmp_path):
    """Two processes with two loading ones each."""
    out = run("kills", tmp_path, "--kills", "6", "--tasks", "stream", "--workers", "2", "--processes", "2", within=1500)
    assert '"problems": []' in out


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_two_gigabytes_train_in_flat_memory_and_resume_to_the_bit(tmp_path):
    words = ("--megabytes", "2000", "--steps", "300", "--kills", "2", "--workers", "2")
    report = json.loads(run("large_stream", tmp_path, *words, within=3500))
    assert report["differences"] == []
    assert report["growth MB"] < 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.campaign  # test_sequences.py sends signals to a few runs, and training/test_resume.py looks at the step
def test_signalled_runs_are_saved_at_the_step_and_end_like_undisturbed_ones(tmp_path):
    out = run("signals", tmp_path, "--rounds", "4")
    assert '"problems": []' in out
    assert '"stopped": 4' in out
    assert '"at the step": 4' in out
