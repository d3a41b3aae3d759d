"""How threads wait is set before OpenMP is loaded, and never over a user's own settings."""

import os
import re
import subprocess
import sys

import pytest

from zoo.system.threads import DECIDED

PROGRAM = (
    "import sys; sys.argv = ['zoo', 'version']; from zoo.cli import main; code = main(); import torch; sys.exit(code)"
)


def policy(**settings):
    """What OpenMP says that its threads do, in a process of zoo's command line with these settings."""
    env = {name: value for name, value in os.environ.items() if name not in DECIDED}
    env |= {"OMP_DISPLAY_ENV": "verbose", **settings}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    if "OPENMP DISPLAY ENVIRONMENT BEGIN" not in done.stderr:
        pytest.skip("this OpenMP does not show its settings")
    return {name: re.search(rf"{name} = '(\w+)'", done.stderr)[1] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}


def test_threads_of_the_command_line_sleep_while_they_wait():
    assert policy()["GOMP_SPINCOUNT"] == "0"


@pytest.mark.parametrize(("name", "value", "spins"), [("OMP_WAIT_POLICY", "ACTIVE", "30000000000"),
                                                     ("GOMP_SPINCOUNT", "1234", "1234")])  # fmt: skip
def test_a_setting_of_the_user_stays(name, value, spins):
    assert policy(**{name: value})["GOMP_SPINCOUNT"] == spins


@pytest.mark.parametrize("name", DECIDED)
def test_any_setting_of_the_user_leaves_the_policy_alone(name, monkeypatch):
    from zoo.system import threads

    for one in DECIDED:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, "1")
    threads.wait_passively()
    assert [one for one in DECIDED if one in os.environ] == [name]
    monkeypatch.delenv(name)
    threads.wait_passively()
    assert os.environ.pop(threads.POLICY) == threads.PASSIVE
