"""How the threads of one operation wait for each other.

torch's threads are OpenMP's. Unless told otherwise they wait by spinning, which is fastest on an idle machine: beside
another busy process a spinning thread takes the processor from the very thread that it waits for.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

POLICY, PASSIVE = "OMP_WAIT_POLICY", "PASSIVE"
DECIDED = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")  # a user's own settings
SAMPLES, PAUSE = 9, 0.01  # of the number of running threads; seconds between two of them
LOADAVG = Path("/proc/loadavg")


def wait_as_fits_the_load() -> None:
    """Let threads sleep while they wait, where other processes compute too and the environment does not say otherwise.

    To be called before torch is imported, since OpenMP reads the environment when it is loaded.
    """
    if not any(name in os.environ for name in DECIDED) and running_elsewhere() >= 1:
        os.environ[POLICY] = PASSIVE


def running_elsewhere() -> float:
    """How many threads of other processes run or want to, the median of some samples; 0 where the system does not say.

    Linux counts all of this machine, this thread among them.
    """
    counts = []
    try:
        for _ in range(SAMPLES):
            counts.append(int(LOADAVG.read_text("ascii").split()[3].partition("/")[0]) - 1)
            time.sleep(PAUSE)
    except (OSError, ValueError, IndexError):
        return 0
    return statistics.median(counts)
