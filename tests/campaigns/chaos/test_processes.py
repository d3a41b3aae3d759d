"""Two processes: a signal to one of them, a death, a batch that both share, and a resume to the bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import forks
from tests.campaigns.chaos import moments, toys
from zoo.io import checkpoint_manifest

ROOT = Path(__file__).parents[3]
TWO = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--save-every", "3"]


@pytest.fixture
def work(tmp_path):
    toys.write(tmp_path, steps=400)
    return tmp_path


def start(work, *words):
    """The first of two processes is forked; Lightning starts the second as it does for users."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ZOO_CACHE": str(work / "cache")}
    command = [sys.executable, "-m", "zoo", "fit", "lm.yaml", *TWO, *words]
    with (work / "stderr").open("w") as err:
        return forks.Process(command, cwd=work, env=env, stderr=err)


def trained(run, step):
    """Wait for a checkpoint of at least this step."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        newest = checkpoint_manifest.newest_intact(run).path if run.exists() else None
        if newest is not None and checkpoint_manifest.verify(newest).get("step", 0) >= step:
            return
        time.sleep(0.05)
    raise AssertionError("no checkpoint in two minutes")


def running(number):
    """Whether a process lives; one that ended may wait for somebody to ask how."""
    try:
        return Path("/proc", str(number), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def second(process):
    """The process that the first one has started."""
    return int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()[0])


@pytest.mark.campaign  # tests/campaigns/chaos/test_sequences.py sends a signal to the second process, twice
def test_a_signal_to_the_second_process_saves_and_ends_both(work):
    run = work / "runs/lm/default/s1"
    process = start(work)
    trained(run, 3)
    other = second(process)
    os.kill(other, signal.SIGUSR1)
    process.wait(120)
    err = (work / "stderr").read_text()
    assert process.returncode == 143, err
    assert "is saved. Continue: the same command with --resume" in err
    assert len(err.splitlines()) == 1
    until = time.monotonic() + 20
    while running(other) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(other)
    step = checkpoint_manifest.verify(checkpoint_manifest.newest_intact(run).path)["step"]
    assert f"interrupted by SIGUSR1: step {step} is saved" in err


@pytest.mark.campaign  # tests/campaigns/chaos/test_sequences.py sends a signal to the second process, later
@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_signal_to_a_second_process_that_has_just_been_started_ends_both(work, delay):
    """Before it has imported anything: the signal waits for its handler, and that for the first batch."""
    process = start(work)
    other = moments.further_process(process)
    time.sleep(delay)
    os.kill(other, signal.SIGUSR1)
    code, err = process.wait(300), (work / "stderr").read_text()
    assert code == 143, err
    assert "interrupted by SIGUSR1" in err
    assert "Traceback" not in err


def test_a_death_ends_the_job_with_a_line_and_leaves_a_checkpoint(work):
    run = work / "runs/lm/default/s1"
    process = start(work)
    trained(run, 3)
    os.kill(second(process), signal.SIGKILL)
    start_time = time.monotonic()
    process.wait(120)
    err = (work / "stderr").read_text()
    assert time.monotonic() - start_time < 60
    assert process.returncode == 1
    assert err.strip().splitlines()[-1].startswith("error: process 1 of 2 was ended by SIGKILL")
    assert "Traceback" not in err
    assert checkpoint_manifest.newest_intact(run).path is not None
