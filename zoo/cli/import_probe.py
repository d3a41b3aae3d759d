"""Import parts in child processes: an import may end the process, never return, or print.

One child imports torch and then forks for every part, so that what is measured is the part's own import.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from zoo import registry
from zoo.errors import PluginError
from zoo.plugins import discovery
from zoo.registry import Part
from zoo.system import threads
from zoo.system.group_clock import GroupClock

PATIENCE = 20.0  # seconds for one import
MOST_BYTES = 2**16  # bytes of what an import prints
PRELOADED = ("torch", "lightning.pytorch", "zoo.models.stack", "zoo.tasks.task", "zoo.data.data")


@dataclass(frozen=True)
class Outcome:
    """The outcome of importing a part: its problem, if any, its seconds, and what it printed."""

    problem: str | None
    seconds: float
    printed: str


def probe(parts: Iterable[Part], patience: float = PATIENCE) -> Iterator[Outcome]:
    """The outcome of importing each part."""
    requests = [json.dumps([asdict(part), patience]) for part in parts]
    command = [sys.executable, "-P", "-c", boot()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as child:  # type: ignore[call-overload]
        for line in requests:
            try:
                print(line, file=child.stdin, flush=True)
                yield Outcome(**json.loads(child.stdout.readline()))
            except (OSError, ValueError):
                yield Outcome("not tried: the process that imports parts has ended", 0.0, "")


def boot() -> str:
    """The program of the child, with the same places to import from."""
    return f"import sys; sys.path[:] = {sys.path!r}; from zoo.cli import import_probe; import_probe.serve()"


def serve() -> None:
    """Answer a line of JSON for each line on standard input; nothing else may write to standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    discovery.tolerate_damaged_metadata()
    for name in PRELOADED:
        with contextlib.suppress(Exception):  # the part's own import reports it
            importlib.import_module(name)
    for line in sys.stdin:
        fields, patience = json.loads(line)
        print(json.dumps(asdict(_outcome(Part(**fields), patience))), file=answers, flush=True)


def _outcome(part: Part, patience: float) -> Outcome:
    """Import a part in a forked child, and read its output and result until it ends or its time is over."""
    output_pipe, result_pipe = os.pipe(), os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _import(part, output_pipe[1], result_pipe[1])
    os.close(output_pipe[1])
    os.close(result_pipe[1])
    texts = {output_pipe[0]: b"", result_pipe[0]: b""}
    ended = status = None
    try:
        clock = GroupClock(child)
        while ended is None and not clock.exceeds(patience):
            _read_pipes(texts)
            done, status = os.waitpid(child, os.WNOHANG)
            ended = time.monotonic() if done else None
        _read_pipes(texts)
    finally:
        for kill in (os.killpg, os.kill) if ended is None else (os.killpg,):  # with the processes that it started
            with contextlib.suppress(OSError):
                kill(child, signal.SIGKILL)
        if ended is None:
            os.waitpid(child, 0)
        os.close(output_pipe[0])
        os.close(result_pipe[0])
    printed = " ".join(texts[output_pipe[0]].decode("utf-8", "replace").split())
    if ended is None:
        return Outcome(f"importing it did not end within {patience:g} s", patience, printed)
    if not texts[result_pipe[0]]:
        return Outcome(f"importing it ends the process ({_status(status or 0)})", ended - started, printed)
    problem, seconds = json.loads(texts[result_pipe[0]])
    return Outcome(problem, seconds, printed)


def _read_pipes(texts: dict[int, bytes]) -> None:
    """Read from the pipes for a moment, at most MOST_BYTES each: endless output does not fill the memory."""
    until = time.monotonic() + 0.05
    while (seconds := until - time.monotonic()) > 0:
        chunks = {pipe: os.read(pipe, MOST_BYTES) for pipe in select.select(list(texts), [], [], seconds)[0]}
        for pipe, more in chunks.items():
            texts[pipe] += more[: MOST_BYTES - len(texts[pipe])]
        if not all(chunks.values()):
            time.sleep(0.01)  # a closed one is always ready
        if chunks and not any(chunks.values()):
            return


def _status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _import(part: Part, output_pipe: int, result_pipe: int) -> None:
    """In the child: import the part, write the result, and exit."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_pipe, 1)
        os.dup2(output_pipe, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        start, delay = time.monotonic(), threads.scheduling_delay()
        problem = None
        try:
            cls = part.load()
            if registry.kind_of(cls) != part.kind:
                problem = f"{part.path} is not a {part.kind}"
        except PluginError as error:
            problem = str(error).partition("\n")[0].removeprefix(str(part)).lstrip(": ")
        seconds = time.monotonic() - start - (threads.scheduling_delay() - delay)  # without what others computed
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(result_pipe, json.dumps([problem, seconds]).encode())
    finally:
        os._exit(0)
