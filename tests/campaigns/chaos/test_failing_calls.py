"""A sample of the campaign in which each call fails in turn."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="a library in C is preloaded")
def test_calls_that_fail_leave_a_sentence_and_a_run_that_ends_as_the_undisturbed_one(tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.campaigns.chaos.faults", "--home", str(tmp_path), "--commands", "fit-lm"]
    done = subprocess.run([*command, "--every", "61"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    result = json.loads(done.stdout)["fit-lm"]
    assert result["calls"] > 150
    assert set(result["kinds"]) >= {"open", "write", "fsync", "rename", "link", "mkdir", "unlink", "mmap"}
    assert result["rounds"] == result["equal"] >= 3
