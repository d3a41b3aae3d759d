"""How the threads of one operation wait for each other.

torch's threads are OpenMP's. Unless told otherwise they wait by spinning, which is right on an idle machine: beside
another busy process a spinning thread takes the processor from the very thread that it waits for.
"""

from __future__ import annotations

import os

POLICY, PASSIVE = "OMP_WAIT_POLICY", "PASSIVE"
DECIDED = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")  # a user's own settings


def wait_passively() -> None:
    """Let threads sleep while they wait, unless the environment says otherwise; before torch is imported, since
    OpenMP reads the environment when it is loaded.
    """
    if not any(name in os.environ for name in DECIDED):
        os.environ[POLICY] = PASSIVE
