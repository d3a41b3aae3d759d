"""Measure calls in processes of their own: an import, for one, may end the process, never return, or print.

A child process imports what is ready, and forks for every call: what is measured is what the call itself imports.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from zoo.system import threads
from zoo.system.group_clock import GroupClock

MOST_BYTES = 2**16  # bytes of what a call prints
MOST_LETTERS = 2_000  # of the text of an error


def measure_in_fresh_process(
    ready: str, target: str, calls: Iterable[Sequence[Any]], patience: float, offline: bool = False
) -> Iterator[dict[str, Any]]:
    """What `measure_call` tells of ``target``, "module:function", with the arguments of each call.

    ``ready`` are the statements that the process executes before: what they fail to import is tried by the calls.
    """
    command = [sys.executable, "-P", "-c", program(ready, target, patience, offline)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as child:  # type: ignore[call-overload]
        for arguments in calls:
            try:
                print(json.dumps(arguments), file=child.stdin, flush=True)
                yield json.loads(child.stdout.readline())
            except (OSError, ValueError):
                yield {"error": "not tried: the process that imports parts has ended"}


def program(*arguments: object) -> str:
    """The program of the child, with the same places to import from."""
    call = f"from zoo.system import fresh_process; fresh_process.serve{arguments!r}"
    return f"import sys; sys.path[:] = {sys.path!r}; {call}"


def serve(ready: str, target: str, patience: float, offline: bool) -> None:
    """Answer a line of JSON for each line on standard input; nothing else may write to standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with contextlib.suppress(Exception):
        exec(ready)
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    for line in sys.stdin:
        outcome = measure_call(functools.partial(function, *json.loads(line)), patience, offline)
        print(json.dumps(outcome), file=answers, flush=True)


def measure_call(call: Callable[[], object], patience: float = math.inf, offline: bool = True) -> dict[str, Any]:
    """What a call does in a fork of this process: its ``error`` if it fails, its ``seconds`` of processor time, those
    that ``elapsed`` without what others computed, what it ``said``, and whether it opened a ``network`` connection, if
    ``offline`` refuses it, or started ``cuda``.

    A call that ends its process or does not return within ``patience`` seconds has only an ``error`` and what it said.
    """
    output_pipe, result_pipe = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _call(call, output_pipe[1], result_pipe[1], patience < math.inf, offline)
    os.close(output_pipe[1])
    os.close(result_pipe[1])
    texts = {output_pipe[0]: b"", result_pipe[0]: b""}
    ended, status = 0, 0
    try:
        clock = GroupClock(child)
        while not ended and not clock.exceeds(patience):
            _read_pipes(texts)
            ended, status = os.waitpid(child, os.WNOHANG)
        _read_pipes(texts)
    finally:
        for kill in (os.killpg,) if ended else (os.killpg, os.kill):  # with the processes that it started
            with contextlib.suppress(OSError):
                kill(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
        os.close(output_pipe[0])
        os.close(result_pipe[0])
    output, result = texts[output_pipe[0]].decode("utf-8", "replace"), texts[result_pipe[0]]
    if not ended:
        return {"said": output, "error": f"importing it did not end within {patience:g} s"}
    code = os.waitstatus_to_exitcode(status)
    reason = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return {"said": output} | (json.loads(result) if result else {"error": f"importing it ends the process ({reason})"})


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


def _call(call: Callable[[], object], output_pipe: int, result_pipe: int, own_group: bool, offline: bool) -> None:
    """In the fork: call, write the result, and exit."""
    try:
        if own_group:
            os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_pipe, 1)
        os.dup2(output_pipe, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        opened = list[int]()

        def refuse(*arguments: Any, **keywords: Any) -> NoReturn:
            opened.append(1)
            raise OSError("no network during import")

        if offline:
            socket.socket.connect = refuse  # type: ignore[method-assign]
        result: dict[str, Any] = {}
        start, processor, delay = time.monotonic(), time.process_time(), threads.scheduling_delay()
        try:
            call()
        except BaseException as error:
            result["error"] = f"{type(error).__name__}: {error}"[:MOST_LETTERS]
        result["seconds"] = time.process_time() - processor
        result["elapsed"] = time.monotonic() - start - (threads.scheduling_delay() - delay)
        torch = sys.modules.get("torch")
        result |= {"network": bool(opened), "cuda": bool(torch and torch.cuda.is_initialized())}
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(result_pipe, json.dumps(result).encode())
    finally:
        os._exit(0)
