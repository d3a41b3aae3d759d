"""How threads wait follows the load, is set before OpenMP is loaded, and never over a user's own settings."""

import os
import re
import subprocess
import sys

import pytest

from zoo.system import threads
from zoo.system.threads import DECIDED, POLICY

PROGRAM = """
import sys
from zoo.system import threads
threads.running_elsewhere = lambda: int(sys.argv[1])
threads.available_cores = lambda: 4
from zoo.cli import main
assert main(["fit", "lm-tiny", "--print-config"]) == 0
import torch
"""


def spin_count(running, **settings):
    """How often a thread of `zoo fit` spins, beside so many running threads and with these settings."""
    env = {name: value for name, value in os.environ.items() if name not in DECIDED}
    env |= {"OMP_DISPLAY_ENV": "verbose", "OMP_NUM_THREADS": "4", **settings}
    words = [sys.executable, "-c", PROGRAM, str(running)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    if "OPENMP DISPLAY ENVIRONMENT BEGIN" not in done.stderr:
        pytest.skip("this OpenMP does not show its settings")
    return int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[1])


def test_threads_sleep_while_they_wait_beside_other_work():
    assert spin_count(1) == 0
    assert spin_count(0) > 0


@pytest.mark.parametrize(
    ("others", "own", "cores", "sleeps"),
    [
        *[(0, "2", 2, False), (1, "2", 2, True), (0, "", 2, False), (1, "", 64, True), (1, "8", 64, False)],
        *[(56, "8", 64, False), (57, "8", 64, True), (1, "8,4", 8, True), (1, "many", 8, True)],
        *[(9, "1", 8, True), (0, "16", 8, False)],
    ],
)  # fmt: skip
def test_threads_sleep_only_where_others_leave_too_few_cores(others, own, cores, sleeps, monkeypatch):
    for one in DECIDED:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setattr(threads, "running_elsewhere", lambda: others)
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", own)
    threads.wait_as_fits_the_load()
    assert (os.environ.pop(POLICY, None) == threads.PASSIVE) is sleeps


@pytest.mark.parametrize(("name", "value", "count"), [("OMP_WAIT_POLICY", "ACTIVE", 30000000000),
                                                     ("GOMP_SPINCOUNT", "1234", 1234)])  # fmt: skip
def test_a_setting_of_the_user_stays(name, value, count):
    assert spin_count(1, **{name: value}) == count


@pytest.mark.parametrize("name", DECIDED)
def test_any_setting_of_the_user_leaves_the_policy_alone(name, monkeypatch):
    for one in DECIDED:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setattr(threads, "running_elsewhere", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv(name, "1")
    threads.wait_as_fits_the_load()
    assert [one for one in DECIDED if one in os.environ] == [name]
    monkeypatch.delenv(name)
    threads.wait_as_fits_the_load()
    assert os.environ.pop(POLICY) == threads.PASSIVE


@pytest.mark.parametrize(("content", "expected"), [("1.90 3.47 6.38 3/189 5170\n", 2), ("0 0 0 1/90 2\n", 0),
                                                   ("nonsense", 0), ("", 0), (None, 0)])  # fmt: skip
def test_running_threads_are_those_of_others(content, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "LOADAVG", tmp_path / "loadavg")
    if content is not None:
        threads.LOADAVG.write_text(content)
    assert threads.running_elsewhere() == expected


@pytest.mark.skipif(not threads.LOADAVG.exists(), reason="the system does not count running threads")
def test_a_busy_process_is_noticed():
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as busy:
        busy.stdout.readline()
        try:
            assert threads.running_elsewhere() >= 1
        finally:
            busy.kill()
