"""A short version of the campaign of sequences: runs that are stopped several times, one of them of two processes."""

import os
import sys
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[3]
SHORT = """
import sys
from pathlib import Path
from tests.campaigns.chaos.sequences import Event, Sequence, Site, campaign

site = Site(Path(sys.argv[1]) / "home", ("lm", "vit"), ("accumulated",))
count = int(sys.argv[2])
found = campaign(site, count, seed=7)
assert found["equal"] == found["sequences"] == count, found
assert found["events"] >= 2 * count, found
twice = (Event("validation", 2, "SIGUSR1", processes=2), Event("validation", 2, "SIGUSR1", rank=1, processes=2))
ends, wrong = site.walk(Sequence("lm", "accumulated", twice, 2), site.home / "twice.log")
assert [end[-3:] for end in ends] == ["143", "143"], ends
assert not wrong, wrong
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, and looked for in /proc")
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.campaign)])
def test_runs_that_are_stopped_again_and_again_end_like_undisturbed_ones(tmp_path, count):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SHORT, str(tmp_path), str(count)]
    done = forks.run(command, env=env, text=True, timeout=300, cwd=tmp_path)
    message = [line for line in done.stderr.splitlines() if "leaked" not in line]  # what libraries say after a failure
    assert done.returncode == 0, "\n".join(message)[-3000:]
