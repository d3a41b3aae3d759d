"""Keep freed memory instead of giving it back to the system, which would fault every page in again.

glibc maps each large block anew and unmaps it when it is freed: a training step then spends its time on page faults.
``keep_freed_memory`` makes glibc (``mallopt``) serve large blocks from its heap and never shrink that, and makes torch
ask for huge pages (its own ``THP_MEM_ALLOC_ENABLE``). The process keeps the memory of its peak. It does nothing where
``ZOO_KEEP_MEMORY=0``, MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_ or GLIBC_TUNABLES is set, and with another
allocator (preloaded jemalloc, tcmalloc) or system.
"""

from __future__ import annotations

import ctypes
import os
import sys

SWITCH = "ZOO_KEEP_MEMORY"
DECIDED = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
HUGE = "THP_MEM_ALLOC_ENABLE"  # read by torch at its first allocation
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1  # mallopt takes an int
NEVER = -1

_state = "returned to the system"


def keep_freed_memory() -> str:
    """Keep freed memory from now on, before torch is used; what was done, in a few words."""
    global _state
    _state = _configure()
    return _state


def state() -> str:
    """What happens to freed memory in this process."""
    return _state


def _configure() -> str:
    unchanged = "returned to the system"
    if os.environ.get(SWITCH, "").lower() in ("0", "no", "off", "false"):
        return f"{unchanged} ({SWITCH}={os.environ[SWITCH]})"
    decided = next((name for name in DECIDED if name in os.environ), None)
    if decided:
        return f"as {decided} says"
    mallopt = _glibc()
    if mallopt is None:
        return unchanged
    if not (mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, NEVER)):
        return unchanged
    os.environ.setdefault(HUGE, "1")
    return "kept" + (", huge pages" if os.environ[HUGE] == "1" and _huge_pages() else "")


def _glibc():
    """glibc's mallopt, None where another allocator or another C library serves this process."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (musl has a mallopt of its own that does nothing)
    except (OSError, AttributeError):
        return None
    preloaded = os.environ.get("LD_PRELOAD", "")
    if "malloc" in preloaded:
        return None
    mallopt = library.mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return mallopt


def _huge_pages() -> bool:
    """Whether the system gives huge pages on request."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            return "[never]" not in file.read()
    except OSError:
        return False
