"""Guarded output: control characters are escaped, a run logs it, and a closed reader does not end a training.

The command line puts a ``Guard`` in front of standard output and standard error, so that no ``print``, warning, logger
or traceback can send an untrusted control sequence to the terminal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from zoo.errors import ZooError

LOG = "output.log"  # in a run's folder: everything that its command has printed
BUFFERED = 2**16  # characters printed before a run has a folder
# controls but line feed and tab, line separators, bidirectional controls, characters without a width, surrogates
CONTROL = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff"
    r"\U000e01f0-\U000e0fff"
)
# joiners are spelling in Arabic and Indic scripts and hold emoji together; after anything else they only hide
JOINED = (
    r"(?<![\u0620-\u06dc\u06de-\u070e\u0710-\u109f\u1780-\u17b3\u2600-\u27bf\ufe0f\U0001f000-\U0001faff])[\u200c\u200d]"
)
LINES = re.compile(f"[{CONTROL}]|{JOINED}")
HAZARD = re.compile(f"[\\t\\n{CONTROL}]|{JOINED}")
SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
# what draws on a terminal: colours, movements of the cursor and erasing, but no title, link, clipboard or answer
DRAWING = re.compile(r"(\x1b\[[0-9;]*[A-HJKm]|\x1b\[\?25[hl]|\r)")
DRAWERS = ("rich", "tqdm")  # packages whose own output holds such sequences
# the reader of a pipe has ended, a terminal has hung up, the stream was closed
UNREAD = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET, errno.ESHUTDOWN)


class UnreadError(BrokenPipeError):
    """The reader of standard output has ended, and the command does nothing but print."""


class OutputError(ZooError):
    """What a command prints could not be written."""

    code = 5


def printable(text: str, lines: bool = False) -> str:
    r"""A text with every character that a terminal would obey, hide or reorder as an escape: ``\x1b``, ``\u202e``.

    ``lines``: line feeds and tabs stay, where a text of several lines is what is printed.
    """
    return (LINES if lines else HAZARD).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return SHORT.get(match[0]) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
    )


def is_terminal(*streams: Any) -> bool:
    """Whether all streams are terminals; None, and an object that cannot say so, is none."""
    return all(getattr(stream, "isatty", bool)() for stream in streams)


def format_bytes(count: float) -> str:
    """A number of bytes in binary units: ``512 B``, ``1.5 KiB``, ``954 MiB``, ``1.0 GiB``; a dash for NaN."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        size = abs(count) / 1024**power
        if 1 - 2**-11 <= size < math.inf:  # what would be 1024 of the unit below
            return f"{count / 1024**power:.{int(power > 2 or size < 9.95)}f} {unit}"
    return f"{count:.0f} B" if math.isfinite(count) else "–"


def as_json(value: Any, encoding: str = "", **options: Any) -> str:
    """JSON whose strings hold what is not printable, or not in the encoding (the output's), as JSON's own escapes."""
    encoding = (encoding or getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(value, ensure_ascii=not encoding.startswith("utf"), **options)
    return LINES.sub(lambda match: json.dumps(match[0])[1:-1], text)


class Guard:
    """A text stream that escapes control characters, and that stays usable when the stream behind it fails."""

    def __init__(self, stream: TextIO, title: str, output: Output) -> None:
        self.stream, self.title, self.output = stream, title, output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text; colours and cursor movements pass where a library that draws calls."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if LINES.search(text) is None:
            return self._write(text, text)
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in DRAWERS:
            return self.draw(text)
        clean = printable(text, lines=True)
        return self._write(clean, clean)

    def draw(self, text: str) -> int:
        """Write a text with zoo's own colours and cursor movements; they are not kept in the log."""
        pieces = DRAWING.split(text)
        pieces[::2] = [printable(piece, lines=True) for piece in pieces[::2]]
        return self._write("".join(pieces), "" if "\r" in pieces[1::2] else "".join(pieces[::2]))

    def writelines(self, lines: Any) -> None:
        """Write several texts, each as ``write`` does."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream behind; a failure is reported once, and later output discarded."""
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self._discard_output(error)

    def _write(self, text: str, logged: str) -> int:
        self.output.record(logged)
        try:
            self.stream.write(text)
        except (OSError, ValueError) as error:
            self._discard_output(error)
        return len(text)

    def _discard_output(self, error: OSError | ValueError) -> None:
        """Discard later output, of libraries and child processes too; Python would fail once more at exit."""
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.stream.fileno())
            os.close(null)
            self.stream.flush()
        except (OSError, ValueError):
            self.stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
        self.output.report_failure(self, error)


class Output:
    """The two streams of one command, their log, and what could not be written."""

    def __init__(self) -> None:
        self.only_prints = False  # whether the command ends when the reader of its standard output has ended
        self.guards: list[Guard] = []
        self.log: TextIO | None = None
        self.log_place: Path | None = None  # of the log, whose folder another process makes
        self.unlogged: list[str] = []
        self.failed_streams: set[str] = set()  # titles
        self.failure = ""  # why standard output failed, unless its reader ended

    def record(self, text: str) -> None:
        """Write a text to the log, or keep it until there is one."""
        if self.log is None and self.log_place is not None and self.log_place.parent.is_dir():
            self.open_log(self.log_place)
        if self.log is None:
            self.unlogged.append(text)
            if len(self.unlogged) > BUFFERED or sum(map(len, self.unlogged[-2:])) > BUFFERED:
                self.unlogged.clear()
            return
        try:
            self.log.write(text)
        except (OSError, ValueError) as error:
            self._drop_log(error)

    def open_log(self, path: Path) -> None:
        """Append everything that the command prints, from its beginning on, to a file, once there is its folder."""
        self.log_place = None if path.parent.is_dir() else path
        if self.log_place is not None:
            return
        try:
            self.log = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        except OSError as error:
            self._drop_log(error)
            return
        text, self.unlogged = "".join(self.unlogged), []
        self.record(text)
        if self.failed_streams:
            print(f"what is printed is in {path}", file=self.guards[1], flush=True)

    def _drop_log(self, error: OSError | ValueError) -> None:
        log, self.log = self.log, None
        if log is not None:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), log.fileno())  # what it buffers
                log.close()
        print(f"warning: {LOG} cannot be written: {reason(error)}; going on without it", file=sys.stderr, flush=True)

    def report_failure(self, guard: Guard, error: OSError | ValueError) -> None:
        """Warn on the other stream that one has failed, or end a command that does nothing but print."""
        reader_left = isinstance(error, ValueError) or error.errno in UNREAD
        is_stdout = guard.title == self.guards[0].title
        self.failed_streams.add(guard.title)
        if is_stdout and not reader_left:
            self.failure = reason(error)
        if is_stdout and self.only_prints:
            if reader_left:
                raise UnreadError(errno.EPIPE, "the reader of standard output has ended")
            raise OutputError(f"{guard.title} cannot be written: {self.failure}.")
        hint = f"; what follows is in {self.log.name}" if self.log else ""
        stream = self.guards[1 if is_stdout else 0]
        print(f"warning: {guard.title} cannot be written ({reason(error)}); going on{hint}", file=stream, flush=True)

    def exit_code(self, code: int) -> int:
        """The command's own exit code, or 5 if its output could not be written."""
        if code or not self.failure or self.log:
            return code
        print(f"error: {self.guards[0].title} could not be written: {self.failure}.", file=self.guards[1], flush=True)
        return OutputError.code


current: Output | None = None  # that of the command which runs


@contextlib.contextmanager
def guard_streams(restore: bool = True) -> Iterator[Output]:
    """Guard standard output and standard error while a command runs, and from then on unless ``restore``."""
    global current
    open_missing()
    before, streams, output = current, (sys.stdout, sys.stderr), Output()
    output.guards = [Guard(streams[0], "standard output", output), Guard(streams[1], "standard error", output)]
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    current, sys.stdout, sys.stderr = output, *output.guards
    try:
        yield output
    finally:
        if restore:
            current, sys.stdout, sys.stderr = before, *streams


def open_missing() -> None:
    """Open standard streams that were closed on the null device: the next file would take the place of one."""
    for handle in range(3):
        try:
            os.fstat(handle)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the process ends)


def guard_again() -> None:
    """Guard the streams that a progress bar has installed: it would draw untrusted escape sequences as colours."""
    if current is None:
        return
    for index, name in enumerate(("stdout", "stderr")):
        stream = getattr(sys, name)
        if not isinstance(stream, Guard) and type(stream).__module__.startswith("rich."):
            setattr(sys, name, Guard(stream, current.guards[index].title, current))


def open_log(folder: Path) -> None:
    """Log what the command prints in a run's folder."""
    if current is not None:
        current.open_log(folder / LOG)


def draw(text: str, stream: Any = None, end: str = "\n") -> None:
    """Print a text with zoo's own colours or cursor movements; all other control characters are escaped."""
    stream = sys.stdout if stream is None else stream
    (stream.draw if isinstance(stream, Guard) else stream.write)(text + end)


def reason(error: OSError | ValueError) -> str:
    """Why something cannot be written, in a few words."""
    return getattr(error, "strerror", None) or str(error)
