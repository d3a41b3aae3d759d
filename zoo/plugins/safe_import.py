"""Import code of others, which may print, raise anything, or try to end the process."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn


def import_object(module: str, name: str) -> Any:
    """What a module has under a name. Raises whatever importing the module raises, SystemExit for ``os._exit``."""
    with contain_import() if module.partition(".")[0] != "zoo" else contextlib.nullcontext():
        return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def contain_import() -> Iterator[None]:
    """Send what is printed to standard error, since our output is for programs, and let nobody leave unseen."""
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(_output_to_error())
        contexts.enter_context(contextlib.redirect_stdout(sys.stderr))
        contexts.enter_context(_no_exit())
        yield


@contextlib.contextmanager
def _output_to_error() -> Iterator[None]:
    """The same for what libraries and child processes write into the file of standard output."""
    _flush()
    try:
        output = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        _flush()
        os.dup2(output, 1)
        os.close(output)


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, without a reader, or None
            stream.flush()  # type: ignore[union-attr]


@contextlib.contextmanager
def _no_exit() -> Iterator[None]:
    """Turn ``os._exit`` of this thread into SystemExit: it would end the process without a word."""
    real, process, thread = os._exit, os.getpid(), threading.get_ident()

    def leave(status: int) -> NoReturn:
        if os.getpid() == process and threading.get_ident() == thread:
            raise SystemExit(f"os._exit({status})")
        real(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = real


def describe_import_error(error: BaseException, module: str) -> str:
    """What importing a module raised, in one line: what, and in which file and line it began."""
    try:
        text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    except Exception:  # its own __str__ is broken too
        text = ""
    place = _error_location(error) or getattr(sys.modules.get(module), "__file__", None)
    return f"{type(error).__name__}{f': {text[:300]}' if text else ''}{f' ({place})' if place else ''}"


def _error_location(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    for frame, line in traceback.walk_tb(error.__traceback__):
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if not code.co_filename.startswith("<frozen ") and name.partition(".")[0] not in ("zoo", "importlib"):
            return f"{code.co_filename}:{line}"
    return ""
