"""How long the processes of a group have computed and waited: a limit that a busy machine does not use up."""

from __future__ import annotations

import os
import time
from pathlib import Path

LOOK = 1.0  # seconds between two looks at what was computed
IDLE = 0.02  # the share of a time below which processes wait: a busy machine leaves them more
SLOWEST = 10  # how many times as long something may take, where a system does not say what is computed


class GroupClock:
    """What the processes of a group have computed and waited since a moment."""

    def __init__(self, group: int) -> None:
        self.group, self.wall, self.processor = group, time.monotonic(), processor_seconds(group)
        self.next_look = self.wall

    def exceeds(self, limit: float) -> str:
        """In words what took longer than ``limit`` seconds; empty where nothing did."""
        now = time.monotonic()
        if now < self.next_look:
            return ""
        self.next_look = now + LOOK
        wall, processor = now - self.wall, processor_seconds(self.group)
        if processor is None:  # this system does not say what others compute
            return f"took longer than {limit:g} s" if wall > SLOWEST * limit else ""
        used = processor - (self.processor or 0.0)
        if used > limit:
            return f"took longer than {limit:g} s of processor time"
        return f"took longer than {limit:g} s, waiting," if wall > limit and used < IDLE * wall else ""


def processor_seconds(group: int) -> float | None:
    """Seconds that the processes of a group have computed, those that have ended included; None where none says so."""
    ticks, exists = 0, False
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):  # it has ended
            continue
        if int(fields[2]) == group:
            ticks, exists = ticks + sum(map(int, fields[11:15])), True
    return ticks / os.sysconf("SC_CLK_TCK") if exists else None
