"""Start TensorBoard and print a link whose charts are pinned, unsmoothed and coloured by variant."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from zoo.cli.environment_errors import port_problem
from zoo.command_line import ParsedOptions
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.io.linked_folders import files_below
from zoo.plugins.discovery import tolerate_damaged_metadata

HOST = "127.0.0.1"  # this machine's own address only
SEEDS = r"regex:^(.*)/s\d+$"  # all seeds of a variant share a colour


def link(host: str = HOST, port: int = 6006, pinned: tuple[str, ...] = ()) -> str:
    """The address of the comparison view; the usual charts are pinned unless others are named."""
    from zoo.compare.tensorboard_summary import PINNED  # which loads numpy

    pinned = pinned or PINNED
    cards = json.dumps([{"plugin": "scalars", "tag": tag} for tag in pinned], separators=(",", ":"))
    query = f"pinnedCards={quote(cards, safe='')}&smoothing=0&runColorGroup={quote(SEEDS, safe='')}"
    return f"http://{host}:{port}/?{query}#timeseries"


def arguments(folder: Path, port: int) -> list[str]:
    """TensorBoard's command line: it listens on this machine's own address only."""
    return ["tensorboard", "--logdir", str(folder), "--host", HOST, "--port", str(port)]


def run(options: ParsedOptions) -> int:
    """`zoo tensorboard [DIR]`: runs until it is interrupted."""
    folder = Path(options.words[0] if options.words else "runs")
    if not folder.is_dir():
        raise UsageError(f"no folder {str(folder)!r}. Train something first: zoo fit RECIPE")
    if not files_below(folder, lambda name: "tfevents" in name):
        atomic_files.warn(f"no run below {folder} has logged anything yet: charts appear as soon as one does")
    from zoo.compare import tensorboard_summary

    port = options.get("port") or _free_port()
    if problem := port_problem(port, HOST):
        raise UsageError(f"'--port' {port} cannot be opened: {problem}. Leave it out for a free one.")
    with tensorboard_summary.tensorboard_folder(folder) as (logdir, pinned):
        print(f"{link(port=port, pinned=pinned)}\nStop it with Ctrl-C.", flush=True)
        return serve(logdir, port)


def serve(folder: Path, port: int) -> int:
    """Run TensorBoard inside this process, so that both end together; its process that reads files watches a pipe.

    Returns 130 after Ctrl-C and 143 after SIGTERM. Raises UsageError with its last line where it stops by itself.
    """
    tolerate_damaged_metadata()
    last: deque[str] = deque(maxlen=20)
    try:
        with _capture_output(last):
            from tensorboard import program

            server = program.TensorBoard()
            server.configure(arguments(folder, port))
            code = server.main()
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        if not error.code:  # its handler of SIGTERM
            return 143
        code = 1
    if not code:  # its server ends so at Ctrl-C
        return 130
    last_line = "".join(last).strip().splitlines()[-1:] or [f"exit code {code}"]
    raise UsageError(f"TensorBoard stopped: {last_line[0]}")


class _Tail(io.TextIOBase):
    """Keeps the last texts that are written."""

    def __init__(self, last: deque[str]) -> None:
        self.last = last

    def write(self, text: str) -> int:
        self.last.append(text)
        return len(text)


@contextlib.contextmanager
def _capture_output(last: deque[str]) -> Iterator[None]:
    """Keep the last texts that this process writes, and hide what a child writes: file names of runs, unescaped."""
    sys.stdout.flush()
    sys.stderr.flush()
    streams, null = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for handle in (1, 2):
            os.dup2(null, handle)
        with contextlib.redirect_stdout(_Tail(last)), contextlib.redirect_stderr(_Tail(last)):
            yield
    finally:
        for handle, before in zip((1, 2), streams, strict=True):
            os.dup2(before, handle)
        for handle in (*streams, null):
            os.close(handle)


def _free_port(lowest: int = 6006, tries: int = 100) -> int:
    """The first free port from TensorBoard's usual one on."""
    for port in range(lowest, lowest + tries):
        if not port_problem(port, HOST):
            return port
    raise UsageError(f"no free port between {lowest} and {lowest + tries}. Choose one: --port PORT")
