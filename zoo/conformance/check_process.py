"""Start the child process of `zoo check`, read its events, and end it in any case."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from zoo.errors import UsageError
from zoo.system.group_clock import GroupClock

OWN_CODE = str(Path(__file__).parents[1]) + os.sep
TAIL = 65_536  # bytes of a part's output that are kept, the last ones
GRACE = 3.0  # seconds for an aborted child to print its traceback
POLL = 0.1  # seconds between two looks for events


class UnknownCheckError(UsageError):
    """A kind has no check of a name that --only gives."""


@dataclass(frozen=True)
class Job:
    """The part and the checks that a child runs."""

    kind: str
    name: str
    options: list[tuple[str, str | bool, str]]
    only: list[str]
    debug: bool = False
    facts: bool = False  # after the checks, measure what the part costs and combines with

    def with_only(self, names: list[str]) -> Job:
        """The same job with these checks only."""
        return replace(self, only=list(names))


def program() -> list[str]:
    """The command of the child, with the same places to import from, whichever way this process was started."""
    return [
        sys.executable,
        "-P",
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; from zoo.conformance.check_worker import main; main()",
    ]


class Child:
    """One process in its own process group, so that all processes that it starts end with it."""

    def __init__(self, job: Job) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(program(), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self.debug = job.debug
        self.tail = b""
        self.timed_out, self.exceeded = False, ""
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._listen)]
        for reader in self.readers:
            reader.start()
        with contextlib.suppress(OSError):  # it has ended already
            self._stream("stdin").write(json.dumps(asdict(job)).encode() + b"\n")
            self._stream("stdin").flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def events(self, limit: float) -> Iterator[dict[str, Any]]:
        """The events of the child until it ends, or computes or waits for ``limit`` seconds without one; it has ended
        afterwards.

        Other processes take none of the limit: it counts processor time, and waiting only where nothing is computed.
        """
        clock = GroupClock(self.process.pid)
        while True:
            if exceeded := clock.exceeds(limit):
                self.timed_out, self.exceeded = True, exceeded
                break
            try:
                line = self.lines.get(timeout=POLL)
            except queue.Empty:
                if self.process.poll() is not None:
                    # its last lines may not be read yet; a process that the part has forked may hold the pipe open
                    self.readers[0].join(GRACE)
                    if self.lines.empty():
                        break
                continue
            event = json.loads(line) if line else {"event": "end"}
            if event["event"] == "end":
                break
            clock = GroupClock(self.process.pid)
            yield event
        self.stop()

    def end_reason(self) -> str:
        """How the process ended; empty after a timeout."""
        code = self.process.returncode
        if self.timed_out:
            return ""
        name = f" ({signal.Signals(-code).name})" if -code in set(signal.Signals) else ""
        return f"ended the process with code {128 - code if code < 0 else code}{name}"

    def end_position(self) -> str:
        """Where the part was when the process ended, from the traceback; else the last line that it printed."""
        text = self.tail.decode("utf-8", "replace")
        frames = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', text, re.MULTILINE)
        foreign = [
            frame for frame in frames if not frame[0].startswith(OWN_CODE) and "/site-packages/torch/" not in frame[0]
        ]
        if foreign:
            file, line, function = foreign[0]
            return f", in {function} at {os.path.basename(file)}:{line}"
        words = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; its last output: {words[-1][:200]}" if words and not frames else ""

    def stop(self) -> None:
        """End it and everything that it started."""
        if self.timed_out and self.process.poll() is None:
            # an abort makes the interpreter print its position
            self.process.send_signal(signal.SIGABRT)
        elif self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL)
        if self.timed_out:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for reader in self.readers:
            reader.join(GRACE)

    def _read(self) -> None:
        for line in self._stream("stdout"):
            self.lines.put(line)
        self.lines.put(None)

    def _listen(self) -> None:
        stream = self._stream("stderr")
        while part := os.read(stream.fileno(), TAIL):
            self.tail = (self.tail + part)[-TAIL:]
            if self.debug:
                sys.stderr.write(part.decode("utf-8", "replace"))

    def _stream(self, name: str) -> IO[bytes]:
        stream: IO[bytes] | None = getattr(self.process, name)
        assert stream is not None
        return stream
