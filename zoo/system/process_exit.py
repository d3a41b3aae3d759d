"""End a process with the one that started it, or at the end of its command without freeing its objects one by one.

An interpreter that ends walks all of its objects several times, to free what the system takes back at once anyway:
after torch and Lightning are imported, that is half a million objects and one to two seconds of every command.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import stat
import sys
from collections.abc import Callable
from typing import Any, NoReturn

PARENT_PROCESS = "ZOO_PARENT"  # the environment variable with the number of the process that a command of zoo ends with
PR_SET_PDEATHSIG = 1


def follow_parent(parent: int | None = None) -> None:
    """Have this process killed when the one that started it ends, and end here if that has ended already.

    ``parent`` is its number, or else that of ``PARENT_PROCESS``; without either nothing happens. The system counts the
    end of the thread that started this process as the end of its parent. SIGINT, which a shell has the background jobs
    of scripts ignore, is handled again.
    """
    number = parent or int(
        os.environ.pop(PARENT_PROCESS, None) or 0
    )  # it is not the parent of processes started from here
    if not number:
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != number:
            os._exit(1)
        return
    import threading
    import time

    def watch() -> None:
        while os.getppid() == first_parent:
            time.sleep(0.2)
        os._exit(1)

    first_parent = os.getppid()
    threading.Thread(target=watch, name="observer of the parent", daemon=True).start()


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Exit with the code that ``main`` returns, after threads have ended and functions of ``atexit`` have run.

    If ``main`` raises, or another library has registered a function of ``atexit`` before, such as one that measures
    coverage, the interpreter ends as usual.
    """
    codes: list[int] = []
    if not _other_functions():  # what is registered first runs last
        atexit.register(_end_process, codes)
    codes.append(main())
    sys.exit(codes[0])


def _other_functions() -> int:
    """How many functions ``atexit`` will call except that of logging; one where that cannot be known."""
    count: Callable[[], int] | None = getattr(atexit, "_ncallbacks", None)
    return 1 if count is None else count() - ("logging" in sys.modules)


def _end_process(codes: list[int]) -> None:
    """End this process at once with a code; as usual without a code, or where a file cannot be written."""
    if not codes:
        return
    try:
        if "logging" in sys.modules:
            sys.modules["logging"].shutdown()
        gc.unfreeze()  # else objects that a library has frozen are not listed
        objects = [item for generation in range(3) for item in reversed(gc.get_objects(generation))]
        _finalize_standard_objects(objects)
        _close_files(objects)
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # a full disk, a closed pipe: the interpreter reports it
        return
    os._exit(codes[0])


def _finalize_standard_objects(objects: list[Any]) -> None:
    """Call ``__del__`` of objects whose class has it from Python's library, in their order: the newest is first.

    These are few, and some write or remove files: an archive its table, a sound its header, a shelf its cache.
    """
    types = set(filter(_has_standard_finalizer, set(map(type, objects))))
    for item in [item for item in objects if type(item) in types] if types else []:
        type(item).__del__(item)


def _has_standard_finalizer(cls: type) -> bool:
    """Whether a class has ``__del__`` from a module of Python's library; files are closed by themselves."""
    module = getattr(getattr(cls, "__del__", None), "__module__", None)
    return str(module).partition(".")[0] in sys.stdlib_module_names and not issubclass(cls, io.IOBase.__mro__[-2])


def _close_files(objects: list[Any]) -> None:
    """Write what files on a disk hold that nobody has closed, as their finalizers would; a pipe may wait for ever."""
    types = _subclasses(io.IOBase.__mro__[-2])  # of classes written in C too
    standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    layers = {id(layer) for stream in standard for layer in (stream, getattr(stream, "buffer", None))}
    files = [file for file in objects if type(file) in types and id(file) not in layers]
    for file in sorted(files, key=_depth):
        if not file.closed and _is_on_disk(file):
            file.close()


def _depth(file: io.IOBase) -> int:
    """Where a file stands among those that write for each other: text, then what compresses, then buffers."""
    if isinstance(file, io.FileIO):
        return 3
    return 0 if isinstance(file, io.TextIOBase) else 1 + isinstance(file, io.BufferedWriter | io.BufferedRandom)


def _is_on_disk(file: io.IOBase) -> bool:
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):  # in memory, or its descriptor was closed by others
        return False


def _subclasses(cls: type) -> set[type]:
    inner: list[type] = cls.__subclasses__()
    return {cls}.union(*map(_subclasses, inner))
