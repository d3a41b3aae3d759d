"""One round of the campaigns that break processes, writes and disks."""

import os
import sys
from pathlib import Path

import pytest

from tests import forks

ROOT = Path(__file__).parents[3]
BEGIN = """
import sys
from pathlib import Path
from tests.campaigns.chaos import deaths, disks, points

home = Path(sys.argv[1])
"""
WRITES = """
found = points.campaign(home / "points", 2, only="rename to last")
assert (found["runs"], found["identical"], found["left"]) == (1, 1, 0), found
assert found["points"]["rename to last.ckpt"] == {"kills": 1, "power cuts": 1}, found
found = disks.faults(home / "disks", 1)
assert (found["identical"], found["few lines"], found["damaged"], found["drafts"]) == (1, 1, 0, 0), found
"""
# test_processes.py has a death, too
DEATHS = """
found = deaths.campaign(home / "deaths", 1, ("segfault",))
assert (found["hung"], found["orphans"], found["identical"], found["at most 5 lines"]) == (0, 0, 1, 1), found
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("rounds", [WRITES, pytest.param(DEATHS, marks=pytest.mark.campaign)], ids=["writes", "deaths"])
def test_a_round_of_each(tmp_path, rounds):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ZOO_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", BEGIN + rounds, str(tmp_path)]
    done = forks.run(command, env=env, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
