"""Translate errors of the machine and of the user's input, which are no bugs of zoo, into one sentence each.

Only unambiguous ones are translated: an error number of the operating system with a file, memory or threads that could
not be allocated, text with a lone surrogate. Everything else counts as a bug, and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from zoo.console import format_bytes
from zoo.errors import UsageError, ZooError

PATH = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
        errno.EEXIST, errno.ENOTEMPTY)  # fmt: skip
STORE_OF_ITS_OWN = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
DEBUG_LEVEL = "TORCH_DISTRIBUTED_DEBUG"
HANDLES = (errno.EMFILE, errno.ENFILE)
# messages of torch, NumPy, the loader and the C++ library where memory or a thread could not be allocated
MEMORY = re.compile(
    r"DefaultCPUAllocator|not enough memory|can't allocate memory|[Cc]annot allocate memory|failed to map segment"
    r"|[Uu]nable to allocate|std::bad_alloc|out of memory|unable to mmap|[Mm]emory allocation"
    r"|[Ss]torage size calculation overflowed|integer multiplication overflow"
)
THREADS = re.compile(r"can't start new thread|pthread_create|unable to create (new )?thread|Thread creation failed")
# torch's message; by any other signal, such as of a wrong address, a loading process dies of a bug
KILLED = re.compile(
    r"DataLoader worker \(pid(?: \d+\) is killed by signal: (Killed|Bus error)|\(s\) [\d, ]+\) exited unexpectedly)"
)
PROGRAM = (str(Path(__file__).parents[1]), "site-packages", "dist-packages", "<frozen")


def explain_error(error: BaseException) -> ZooError | None:
    """An error with a message for the user, for a fault of the machine or the input; None for a possible bug."""
    for cause in _causes(error):
        explanation = (
            _explain_memory(cause)
            or _explain_worker(cause)
            or _explain_home(cause)
            or _explain_text(cause)
            or _explain_module(cause)
            or (_explain_system(cause) if isinstance(cause, OSError) else None)
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
    level = os.environ.get(DEBUG_LEVEL, "OFF")
    if level.upper() not in ("OFF", "INFO", "DETAIL"):
        raise UsageError(f"{DEBUG_LEVEL}={level!r:.40} of the environment is not OFF, INFO or DETAIL.")


def check_meeting(first_rank: bool, cuda: bool) -> None:
    """Raise UsageError for a variable of torch.distributed with which the processes of a job cannot meet.

    The ``first_rank`` process opens the port, unless torchrun has opened it; over ``cuda`` NCCL connects, else gloo.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address is not None:
        try:
            socket.getaddrinfo(address, None)
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"MASTER_ADDR={address!r:.80} of the environment is no machine that is known here: {error}.\n"
                "Set the name of the first process's machine; on a single machine: unset MASTER_ADDR"
            ) from error
    if port is not None and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise UsageError(
            f"MASTER_PORT={port!r:.40} of the environment is no port, a whole number from 1 to 65535. Set another, or "
            "on a single machine: unset MASTER_PORT"
        )
    opens = port is not None and first_rank and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if port is not None and opens and (reason := port_problem(int(port))):
        raise UsageError(
            f"MASTER_PORT={port} of the environment cannot be opened: {reason}. Set another, or on a single machine: "
            "unset MASTER_PORT"
        )
    name = "NCCL_SOCKET_IFNAME" if cuda else "GLOO_SOCKET_IFNAME"
    value, interfaces = os.environ.get(name, ""), [interface for _, interface in socket.if_nameindex()]
    names = value.removeprefix("=").split(",")
    if cuda:  # beginnings of names, of which some must be there; ^ excludes
        fits = value.startswith("^") or any(interface.startswith(tuple(names)) for interface in interfaces)
        wrong = [] if fits else names
    else:
        wrong = [interface for interface in names if interface not in interfaces]
    if value and wrong:
        raise UsageError(
            f"{name}={value!r:.80} of the environment names a network interface that is not here: {wrong[0]}. "
            f"There are: {', '.join(interfaces)}"
        )


def port_problem(port: int, host: str = "") -> str:
    """Why no process can listen at a port; nothing where one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that has just been closed is free
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            return "it is in use by another program" if error.errno == errno.EADDRINUSE else str(error.strerror)
    return ""


def explain_meeting(error: BaseException) -> UsageError | None:
    """The error where torch cannot connect the processes of a job as the environment says; None for others."""
    if isinstance(error, ZooError) or "init_process_group" not in _functions(error):
        return None
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    values = ", ".join(f"{name}={os.environ[name]!r:.80}" for name in names if name in os.environ)
    reason = str(error).strip().partition("\n")[0].rpartition("] ")[2]
    # torch 2.14 gives all attempts one store, where a process may find the address of one that was killed
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and STORE_OF_ITS_OWN not in os.environ
    advice = f"\nSo that each attempt of torchrun has a store of its own: export {STORE_OF_ITS_OWN}=1" if again else ""
    return UsageError(
        f"the processes of the run cannot meet: {reason}\nThe environment has {values or 'nothing set'}{advice}"
    )


def _functions(error: BaseException) -> set[str]:
    """Names of the functions in which an error was raised."""
    return {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes."""
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


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
    # what it had promised to send when it ended, before torch noticed its end
    broken = isinstance(error, (ConnectionError, EOFError, FileNotFoundError)) and "_try_get_data" in _functions(error)
    if not killed and not broken:
        return None
    how = f"was ended from outside (signal: {killed[1]})" if killed and killed[1] else "ended without a message"
    return ZooError(
        f"a loading process {how}, mostly as memory or /dev/shm is full.\n"
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
    if error.errno in PATH and name and not any(piece in name for piece in PROGRAM):
        return UsageError(f"{ascii(name)[1:-1] if not name.isprintable() else name} cannot be used: {reason}.")
    return None
