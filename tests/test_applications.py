"""Comparisons, contracts and explanations are applications on the core: it works without each of them."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "compare": {"compare", "tensorboard"}, "conformance": {"check", "docs", "matrix", "new"},
    "explain": {"explain"},
}  # fmt: skip
# of the core; all of them are run in the campaign
QUICK = ("parts/test_norm.py", "tasks/test_schedule.py", "config/test_yaml_source.py")
CORE = ("config", "data", "finetuning", "inference", "io", "models", "parts", "system", "tasks", "training")


@pytest.fixture(scope="module", params=COMMANDS)
def without(request, tmp_path_factory, session_cache):
    """A copy of zoo without an application: its name, and a function that runs Python there."""
    home = tmp_path_factory.mktemp(f"without-{request.param}")
    for folder in ("zoo", "recipes", "tests"):
        shutil.copytree(ROOT / folder, home / folder)  # with what Python has compiled
    shutil.copy(ROOT / "pyproject.toml", home)
    shutil.rmtree(home / "zoo" / request.param)
    env = {**os.environ, "PYTHONPATH": str(home), "ZOO_CACHE": str(session_cache), "OMP_NUM_THREADS": "1"}

    def python(*words, code=0):
        done = forks.run([sys.executable, *words], cwd=home, env=env, text=True, timeout=500)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert str(home) in python("-c", "import zoo; print(zoo.__file__)")
    return request.param, python


def test_its_commands_are_gone_and_the_others_are_there(without):
    name, python = without
    lines = python("-m", "zoo", "--help").splitlines()
    there = {line.split()[0] for line in lines if line.startswith("  ") and line.strip()}
    for application, commands in COMMANDS.items():
        assert commands & there == (set() if application == name else commands)
    assert {"fit", "generate", "list", "doctor"} <= there
    for command in COMMANDS[name]:
        assert f"unknown command '{command}'" in python("-m", "zoo", command, "x", code=2)


def test_the_core_trains_generates_and_lists(without):
    _, python = without
    small = ["--model.dim=16", "--model.depth=1", "--model.heads=2", "--trainer.max_steps=2"]
    assert "finished 2 steps" in python("-m", "zoo", "fit", "lm-tiny", "--name", "a", *small)
    assert python("-m", "zoo", "generate", "runs/lm-tiny/a/s1", "--prompt", "the", "--length", "3").strip()
    assert "RMSNorm" in python("-m", "zoo", "list", "norm")


@pytest.mark.parametrize("files", [QUICK, pytest.param(CORE, marks=pytest.mark.campaign)], ids=["some", "all"])
def test_the_tests_of_the_core_pass(without, files):
    _, python = without
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    assert "[100%]" in python(*words, *(f"tests/{file}" for file in files))
