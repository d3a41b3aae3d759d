"""Import third-party code, which may print, raise anything, or try to end the process."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from zoo.errors import PluginError


def import_object(module: str, name: str) -> Any:
    """The attribute ``name`` of a module. Raises whatever importing it raises, and SystemExit for ``os._exit``."""
    with contain_import() if module.partition(".")[0] != "zoo" else contextlib.nullcontext():
        return getattr(importlib.import_module(module), name)


def search_working_folder(path: str) -> None:
    """Let the module of a class path that the user trusts be found in the working folder, as the last place of all.

    The folder is only searched after everything that is installed, and only once a module is named that nothing
    installed provides: so its files never stand in for other modules. Processes that load data inherit the search.
    """
    top, folder = path.partition(".")[0], os.getcwd()
    mine = [place for place in (os.path.join(folder, f"{top}.py"), os.path.join(folder, top)) if os.path.exists(place)]
    if not mine or folder in sys.path or "" in sys.path:
        return
    spec = importlib.machinery.PathFinder.find_spec(top) if top not in sys.modules else sys.modules[top].__spec__
    if spec is None and top not in sys.builtin_module_names:
        refuse_shadows(folder)
        sys.path.append(folder)
        importlib.invalidate_caches()
    elif spec is not None and mine[0].endswith(".py"):
        print(f"note: module {top} is the installed {spec.origin}, not {mine[0]}: rename yours", file=sys.stderr)


def refuse_shadows(folder: str) -> None:
    """Raise PluginError for a module of a folder that would stand in for an installed package without __init__.py.

    Python takes a module anywhere on its path before such a package, google or nvidia for one.
    """
    for place in sorted(Path(folder).iterdir()):
        name = place.stem if place.suffix == ".py" else place.name if (place / "__init__.py").is_file() else ""
        spec = importlib.machinery.PathFinder.find_spec(name) if name.isidentifier() else None
        if spec is not None and spec.loader is None and name not in sys.modules:
            raise PluginError(f"{place} would stand in for the installed package {name}: rename it.")


def describe_missing(error: ModuleNotFoundError, module: str) -> str:
    """What to say of a module that is neither installed nor in the working folder; empty where another is missing."""
    missing = error.name or ""
    if not f"{module}.".startswith(f"{missing}."):
        return ""
    return (
        f"there is no module {missing!r} among the installed packages or in {os.getcwd()}. Run the command in the "
        "folder of its file."
    )


def import_target(target: str, owner: str) -> Any:
    """What a class declares as "module:name"; ``owner`` says in messages which attribute of which class declares it.

    Raises PluginError for another text, and where the import fails.
    """
    module, _, name = target.partition(":")
    if not module or not name.isidentifier():
        raise PluginError(f'{owner} is {target!r}, and must be "module:name".')
    try:
        return import_object(module, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may call sys.exit() while it is imported
        raise PluginError(f"{owner}, {target}, cannot be imported: {describe_import_error(error, module)}") from error


@contextlib.contextmanager
def contain_import() -> Iterator[None]:
    """Redirect output to standard error, because programs read standard output, and turn os._exit into SystemExit."""
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(_output_to_error())
        contexts.enter_context(contextlib.redirect_stdout(sys.stderr))
        contexts.enter_context(_no_exit())
        yield


@contextlib.contextmanager
def _output_to_error() -> Iterator[None]:
    """Redirect the file descriptor of standard output, for compiled libraries and child processes."""
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
    """Turn ``os._exit`` in this thread into SystemExit, since it would end the process without a message."""
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
    """An exception of an import in one line: its type and message, and the file and line that raised it."""
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
