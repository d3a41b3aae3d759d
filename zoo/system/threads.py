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
    """Let threads sleep while they wait, where other processes compute on cores that they need and the environment does
    not say otherwise.

    To be called before torch is imported, since OpenMP reads the environment when it is loaded.
    """
    if any(name in os.environ for name in DECIDED):
        return
    others = running_elsewhere()
    if others >= 1 and others + own_threads() > available_cores():
        os.environ[POLICY] = PASSIVE


def available_cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_threads() -> int:
    """How many threads an operation of this process will have: as the environment says, or one for each core."""
    number = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(number) if number.isdecimal() and int(number) > 0 else available_cores()


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
