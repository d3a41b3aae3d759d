"""How the threads of one operation wait for each other.

torch's threads are those of GNU's OpenMP library, libgomp. They wait by spinning, which is fastest where each of them
has a core of its own. Beside other busy processes a spinning thread takes the processor from the very thread that it
waits for, and a step takes three to five times as long.

libgomp lets threads sleep almost at once where its process has more of them than cores. A second team of threads, which
never computes anything, is therefore enough to switch from spinning to sleeping, and its end to switch back, at any
time in a run. Operations keep their number of threads, so that their results keep every digit.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLICY, PASSIVE = "OMP_WAIT_POLICY", "PASSIVE"
SETTINGS = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")  # a user's own, which are left alone
PERIOD = 1.0  # seconds between two looks at the load
# how long threads waited for a processor, as a share of the time: from which on they sleep, and below which they spin
# again; measured: 0.01 alone, 0.67 (spinning) and 0.45 (sleeping) beside one busy process
BUSY, QUIET = 0.12, 0.06
SPARE = 8  # threads that the system must allow besides a team: libgomp ends the process where it allows too few
SETTLING = 0.05  # seconds until threads that have ended no longer count
LARGEST_TEAM = 64  # threads; where more would be needed, most cores are free and spinning is right
PROCESS = Path("/proc/self")


@contextmanager
def follow_load() -> Iterator[None]:
    """Within, threads sleep while they wait as long as others need the same processors, and spin otherwise.

    Nothing happens with one thread, without libgomp or Linux's statistics of its scheduler, or where the environment
    says how threads wait. To be called when torch is imported.
    """
    import torch

    library = openmp_library()
    following = (
        torch.get_num_threads() > 1
        and library is not None
        and (PROCESS / "schedstat").exists()
        and not any(name in os.environ for name in SETTINGS)
    )
    if not following:
        yield
        return
    assert library is not None
    switch, stop = SpinSwitch(library, torch.get_num_threads()), threading.Event()
    follower = threading.Thread(target=_follow, args=(switch, stop), name="zoo-load", daemon=True)
    follower.start()
    try:
        yield
    finally:
        stop.set()
        follower.join()


def _follow(switch: SpinSwitch, stop: threading.Event) -> None:
    """Look at the load every PERIOD until ``stop`` is set, and let threads sleep or spin as it demands."""
    moment, delay = time.monotonic(), scheduling_delay()
    while not stop.wait(PERIOD):
        now, total = time.monotonic(), scheduling_delay()
        share = max(0.0, total - delay) / (now - moment)
        switch.set_sleeping(share > (QUIET if switch.sleeping else BUSY))
        moment, delay = now, total
    switch.set_sleeping(False)


class SpinSwitch:
    """Whether the threads of operations sleep while they wait, or spin, by a second team of sleeping threads.

    ``library`` is libgomp, ``threads`` the number that an operation has.
    """

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.library = library
        self.size = library.omp_get_num_procs() - threads + 2  # one thread of the team is the one that begins it
        self._end: threading.Event | None = None
        self._owner: threading.Thread | None = None

    @property
    def sleeping(self) -> bool:
        """Whether threads sleep while they wait."""
        return self._end is not None

    def set_sleeping(self, sleeping: bool) -> None:
        """Begin the second team, or end it.

        Nothing changes where the state is this one, a team would be too large, or the system allows no more threads:
        libgomp would end the process.
        """
        if sleeping == self.sleeping or not 2 <= self.size <= LARGEST_TEAM:
            return
        if sleeping:
            if not can_start_threads(self.size + SPARE):
                return
            time.sleep(SETTLING)
            ready, end = threading.Event(), threading.Event()
            owner = threading.Thread(target=self._hold_team, args=(ready, end), name="zoo-team", daemon=True)
            try:
                owner.start()
            except RuntimeError:  # there were threads a moment ago, or Python ends
                return
            ready.wait()
            self._end, self._owner = end, owner
            return
        assert self._end is not None
        assert self._owner is not None
        self._end.set()
        self._owner.join()  # a team ends with the thread that began it
        self._end = self._owner = None

    def _hold_team(self, ready: threading.Event, end: threading.Event) -> None:
        nothing = ctypes.cast(self.library.omp_get_thread_num, ctypes.c_void_p)  # a function without effects
        self.library.GOMP_parallel(nothing, None, ctypes.c_uint(self.size), ctypes.c_uint(0))
        ready.set()
        end.wait()


def can_start_threads(number: int) -> bool:
    """Whether the system lets this process start so many threads more; each of them ends at once."""
    end, members = threading.Event(), []
    try:
        for _ in range(number):
            member = threading.Thread(target=end.wait, daemon=True)
            member.start()
            members.append(member)
        return True
    except (RuntimeError, MemoryError):
        return False
    finally:
        end.set()
        for member in members:
            member.join()


def openmp_library() -> ctypes.CDLL | None:
    """The libgomp that this process has loaded, or None."""
    try:
        lines = (PROCESS / "maps").read_text("utf-8", "replace").splitlines()
        path = next(words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6 and "libgomp" in words[5])
        library = ctypes.CDLL(path)
        return library if all(hasattr(library, name) for name in ("GOMP_parallel", "omp_get_num_procs")) else None
    except (OSError, StopIteration):
        return None


def scheduling_delay() -> float:
    """Seconds that this process's threads were ready to run and waited for a processor, summed over them."""
    nanoseconds = 0
    for path in (PROCESS / "task").glob("*/schedstat"):
        try:
            nanoseconds += int(path.read_text("ascii").split()[1])
        except (OSError, ValueError, IndexError):  # a thread that has ended
            continue
    return nanoseconds / 1e9
