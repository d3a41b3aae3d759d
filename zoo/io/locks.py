"""Locks on run folders: `RunLock` of the process that writes a run, `Lock` of the comparison that runs it.

`RunLock` is held by the operating system, which frees it when the process dies. A `Lock` is shared by processes and
machines on one file system, without a server: a file beside the run's folder names the process that works on it. It is
stale, and taken over, when its processes are dead on this machine, or when it has not been refreshed for some minutes
on another one. Machines, and containers of one machine, may have the same host name: a process number means something
only where the kernel and its numbering of processes are the same, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from zoo.errors import StorageError, UsageError
from zoo.io import atomic_files

REFRESH, STALE = 20.0, 300.0  # seconds: between two refreshes of a lock, and without one until it is stale


class RunLock:
    """The right to write into a folder, until ``release`` or the end of the process, however it ends.

    The lock is a file beside the folder, so that it outlives ``--overwrite``; a file that stays without its process
    locks nothing.
    """

    def __init__(self, folder: Path) -> None:
        """Raises UsageError that names the process which has the lock, or the reason why there can be no lock."""
        path = folder.with_name(f".{folder.name}.lock")
        self.note = path.with_suffix(".holder")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(path)
            self.lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(
                f"{folder} is being written by {_holder(self.note)}.\nWait for it, end it, or keep both: --name NAME."
            ) from error
        except OSError as error:
            raise UsageError(
                f"cannot make {folder}: {error.strerror or error}. Choose another place: --runs DIR"
            ) from error
        except NotImplementedError as error:
            raise UsageError(f"the file system of {folder} has no locks. Choose another place: --runs DIR") from error
        with contextlib.suppress(OSError):  # without it a second process is refused all the same
            atomic_files.write_json(self.note, {"pid": os.getpid(), "host": platform.node(), "since": time.time()})

    def release(self) -> None:
        """Let others write."""
        with contextlib.suppress(OSError):
            self.note.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it ends with the process in any case
            self.lock.release()


def _holder(note: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(note.read_text())
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(content["since"])))
        return f"process {int(content['pid'])} on {str(content['host'])[:80]} since {since}"
    return "another process"


@dataclass(frozen=True)
class Owner:
    """Who holds a lock: the process that compares, and the run that it has started."""

    host: str
    pid: int
    born: str  # when the process began, by its machine's clock: a number may come to belong to another process
    child: int = 0
    child_born: str = ""
    machine: str = ""  # see `machine_id`; empty where the system has none

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    """This process."""
    return Owner(socket.gethostname(), os.getpid(), start_time(os.getpid()), machine=machine_id())


def machine_id() -> str:
    """An identifier that other machines of this host name do not have: the kernel's start and its process namespace.

    Without /proc that of the network hardware; empty where there is none.
    """
    try:
        return f"{_boot()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        node = uuid.getnode()
        return "" if node >> 40 & 1 else f"{node:012x}"  # with this bit it is a random number, new in every process


def is_local(owner: Owner) -> bool:
    """Whether the owner's process numbers are those of this machine."""
    return owner.host == socket.gethostname() and owner.machine == machine_id()


def start_time(pid: int) -> str:
    """When a process of this machine began; empty for no process, "?" where the system does not record it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "?" if not Path("/proc/self/stat").exists() and _exists(pid) else ""
    return "" if fields[0] in ("Z", "X") else f"{_boot()}-{fields[19]}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def is_alive(owner: Owner) -> bool:
    """Whether one of the owner's processes still runs on this machine."""
    pairs = ((owner.pid, owner.born), (owner.child, owner.child_born))
    return any(pid and since and start_time(pid) == since for pid, since in pairs)


class Lock:
    """A lock of one run that processes and machines share; a stale one is taken over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mine: Owner | None = None

    def holder(self) -> Owner | None:
        """The process that works on the run now; None for none."""
        try:
            owner = _read(self.path)
            age = _now(self.path.parent) - self.path.stat().st_mtime
        except FileNotFoundError:
            return None
        if owner is None:
            return Owner("an unknown machine", 0, "") if age < REFRESH else None  # half written, or damaged
        if is_local(owner):
            return owner if is_alive(owner) else None
        return owner if age < STALE else None

    def acquire(self) -> bool:
        """Take the lock; False while another process holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _guard(self.path):
            owner = this_process()
            if not atomic_files.create(self.path, json.dumps(asdict(owner)).encode()):
                if self.holder() is not None:
                    return False
                self._write(owner)
            self.mine = owner
        return True

    def record_child(self, pid: int) -> None:
        """Record the process of the run: while it lives the lock holds, even without the process that took it."""
        if self.mine is not None:
            owner = replace(self.mine, child=pid, child_born=start_time(pid))
            with contextlib.suppress(OSError):  # the run holds its own lock, and ends with this process
                self._write(owner)
                self.mine = owner

    def refresh(self) -> bool:
        """Renew the lock's time; False where another process has taken it over as stale."""
        try:
            if self.mine is None or _read(self.path) != self.mine:
                return False
            os.utime(self.path)
        except FileNotFoundError:
            return False
        except OSError:  # the owner cannot be read now: the next refresh may work
            return True
        return True

    def release(self) -> None:
        """Release the lock, unless another process has taken it over."""
        with contextlib.suppress(OSError, StorageError), _guard(self.path):
            if self.mine is not None and _read(self.path) == self.mine:
                self.path.unlink()
        self.mine = None

    def _write(self, owner: Owner) -> None:
        atomic_files.write_json(self.path, asdict(owner), indent=None)


def _read(path: Path) -> Owner | None:
    """The owner a lock names, None where the file is damaged. Raises FileNotFoundError."""
    try:
        return Owner(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError):
        return None


@contextlib.contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Let one process at a time replace a stale lock; the system frees this one when its process dies.

    Raises StorageError if the file system refuses.
    """
    lock = FileLock(path.with_name(".locks"))
    try:
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # the second: a file system without locks
        why = atomic_files.reason(error) if isinstance(error, OSError) else "the file system has no locks"
        raise StorageError(f"{lock.lock_file} cannot be locked: {why}") from error
    try:
        yield
    finally:
        lock.release()


def _now(folder: Path) -> float:
    """The time by the clock of the file system, which other machines' locks are dated by."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
