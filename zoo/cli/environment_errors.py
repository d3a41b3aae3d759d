"""Translate errors of the machine and of the user's input, which are no bugs of zoo, into one sentence each.

Only unambiguous ones are translated: an error number of the operating system with a file, memory or threads that could
not be allocated, text with a lone surrogate. Everything else counts as a bug, and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from zoo.console import format_bytes
from zoo.errors import CheckpointError, UsageError, ZooError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE)
PATH = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
        errno.EEXIST, errno.ENOTEMPTY)  # fmt: skip
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
HANDLES = (errno.EMFILE, errno.ENFILE)
# messages of torch, NumPy, the loader and the C++ library where memory or a thread could not be allocated
MEMORY = re.compile(
    r"DefaultCPUAllocator|not enough memory|can't allocate memory|[Cc]annot allocate memory|failed to map segment"
    r"|[Uu]nable to allocate|std::bad_alloc|out of memory|unable to mmap|[Mm]emory allocation"
    r"|[Ss]torage size calculation overflowed|integer multiplication overflow"
)
THREADS = re.compile(r"can't start new thread|pthread_create|unable to create (new )?thread|Thread creation failed")
# torch's message; by any other signal, such as of a wrong address, a loading process dies of a bug
KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: (Killed|Bus error)")
PROGRAM = (str(Path(__file__).parents[1]), "site-packages", "dist-packages", "<frozen")


def explain_error(error: BaseException) -> ZooError | None:
    """An error with a message for the user, for a fault of the machine or the input; None for a possible bug."""
    for one in _causes(error):
        explanation = (
            _explain_memory(one)
            or _explain_worker(one)
            or _explain_home(one)
            or _explain_text(one)
            or _explain_module(one)
            or (_explain_system(one) if isinstance(one, OSError) else None)
        )
        if explanation is not None:
            return explanation
    return None


def working_folder() -> str:
    """The path of the working folder. Raises UsageError where that folder was deleted, or may not be read."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working folder does not exist: it was deleted or moved ({error.strerror}). Change to another: cd ~"
        ) from error


def check_words(words: Sequence[str]) -> None:
    """Raise UsageError for a word of the command line that is not UTF-8, or holds a NUL character."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"word {number} of the command line is not UTF-8 text: {ascii(word)[1:-1]:.80} "
                f"(at character {error.start + 1}).\nConvert it to UTF-8; or rename the file that has this name."
            ) from error
        if "\0" in word:
            raise UsageError(f"word {number} of the command line holds a NUL: {ascii(word)[1:-1]:.80}")


def check_ranks() -> None:
    """Unset variables of launchers that are empty; raise UsageError for one that is no number: Lightning would fail."""
    for name in RANKS:
        text = os.environ.get(name, "0").strip()
        if not text:
            del os.environ[name]
        elif not text.isdecimal():
            raise UsageError(
                f"{name}={text!r:.40} of the environment is not the number of a process. Run: unset {name}"
            )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes."""
    one: BaseException | None = error
    for _ in range(8):
        if one is None:
            return
        yield one
        one = one.__cause__


class MemoryShortageError(ZooError):
    """The machine's memory is full. ``amount`` says in sentences what was asked for, and the limit."""

    amount = ""


def _explain_memory(error: BaseException) -> ZooError | None:
    text = str(error)[:2000] if isinstance(error, (RuntimeError, OSError, ImportError, MemoryError)) else ""
    if isinstance(error, RuntimeError) and THREADS.search(text):
        return ZooError(f"the system gives this process no more threads.{_limit('NPROC', 'ulimit -u')}")
    memory = isinstance(error, MemoryError) or MEMORY.search(text)
    if not memory and not (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return None
    size = re.search(r"(?:allocate|allocating)\D{0,40}?([\d.]+ ?(?:[KMGT]i?B|bytes))", text)
    amount = f" An allocation of {size[1]} failed." if size else ""
    answer = MemoryShortageError(
        f"out of memory.{amount}{_limit('AS', 'ulimit -v')}\n"
        "Take a smaller model, batch or --data.max_length, or a machine with more memory."
    )
    answer.amount = f"{amount}{_limit('AS', 'ulimit -v')}"
    return answer


def _explain_worker(error: BaseException) -> ZooError | None:
    killed = KILLED.match(str(error)) if isinstance(error, RuntimeError) else None
    if not killed:
        return None
    return ZooError(
        f"a loading process was ended from outside (signal: {killed[1]}), mostly as memory or /dev/shm is full.\n"
        "Load with fewer processes, or in the training process: --data.num_workers 0"
    )


def _limit(name: str, command: str) -> str:
    """The limit of a resource where there is one."""
    try:
        import resource

        soft = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
        if soft == resource.RLIM_INFINITY:
            return ""
    except (ImportError, AttributeError, OSError, ValueError):
        return ""
    amount = format_bytes(soft) if name == "AS" else str(soft)
    return f" Its limit is {amount} ({command})."


def _explain_home(error: BaseException) -> ZooError | None:
    if isinstance(error, RuntimeError) and str(error) == "Could not determine home directory.":  # Path.expanduser's
        return UsageError("a path begins with ~ and the name of a user who has no home folder here. Write it out.")
    return None


def _explain_module(error: BaseException) -> ZooError | None:
    """What zoo itself or a package that it needs imports is missing; errors of parts have their own message."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.partition(".")[0] == "zoo":
        return None
    return ZooError(
        f"the installation is incomplete: there is no module {error.name!r}. What else is wrong: zoo doctor"
    )


def _explain_text(error: BaseException) -> ZooError | None:
    if not isinstance(error, UnicodeEncodeError) or "surrogate" not in error.reason:
        return None
    around = ascii(error.object[max(0, error.start - 20) : error.end + 20])[1:-1]
    return UsageError(
        f"a text or a name is not Unicode: it holds half a character, a lone surrogate (…{around}…). Use UTF-8."
    )


def _explain_system(error: OSError) -> ZooError | None:
    reason = error.strerror or str(error)
    if error.errno in HANDLES:
        return ZooError(f"too many open files.{_limit('NOFILE', 'ulimit -n')}")
    if error.errno == errno.ENOENT and error.filename is None:
        try:
            working_folder()
        except UsageError as folder_error:
            return folder_error
        return None
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    if error.errno in DISK:
        return CheckpointError(f"{name or 'a file'} cannot be read or written: {reason}.")
    if error.errno in PATH and name and not any(piece in name for piece in PROGRAM):
        return UsageError(f"{ascii(name)[1:-1] if not name.isprintable() else name} cannot be used: {reason}.")
    return None
