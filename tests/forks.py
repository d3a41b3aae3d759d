"""Processes for tests, forked from one process that has imported the libraries, and neither zoo nor a plugin.

``run`` and ``Process`` take the commands ``[sys.executable, "-m", module, ...]`` and
``[sys.executable, "-c", code, ...]``, also with ``-P`` before the second word, which forks do without, and arguments
of ``subprocess.run`` and ``subprocess.Popen``. A start of torch and Lightning costs seconds, a fork milliseconds. A
test of the start itself, of what is imported, of the memory allocator, of hash seeds or of the number of threads needs
``subprocess``.

``Popen`` in the place of ``subprocess.Popen`` forks for the commands of Python that the tested code starts itself (the
fixture ``forked_children``, and ``nested=True`` for a process that is forked). Such a process is a child of the server,
not of its starter: a test of process groups or of a parent's death needs real ones.

The processes of pytest-xdist use one server together, ``share``.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("fork_server.py")
PATIENCE = 300.0  # seconds for the start of a server
START = subprocess.Popen  # whatever takes its place later
SHARED = "ZOO_TESTS_FORKS"  # an environment variable: the process id and the address of a server, and its Python


class Server:
    """One process that forks on demand; it ends with the process that started it."""

    def __init__(self, python: str = sys.executable, env: dict[str, str] | None = None) -> None:
        self.python = python
        self.folder = tempfile.mkdtemp(prefix="zoo-forks-")
        self.address = f"{self.folder}/socket"
        env = {**(os.environ if env is None else env), "OMP_NUM_THREADS": "1"}
        command = [python, "-P", str(SERVER), self.address]
        self.process = START(command, env=env, cwd=self.folder, stdin=subprocess.PIPE)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.address):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the server of forks does not start")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def close(self) -> None:
        """End the server; its forks go on."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


class Starter:
    """A server that an ancestor of this process has started."""

    def __init__(self, python: str, address: str, pid: int) -> None:
        self.python, self.address, self.pid = python, address, pid


_servers: dict[int, Server] = {}  # by the process that uses it: a fork of a test's process starts its own
_inherited: Starter | None = None


def server() -> Server | Starter:
    """The server of this process, started when first needed."""
    if _inherited is not None:
        return _inherited
    if shared := os.environ.get(SHARED):
        number, address, python = shared.split(os.pathsep)
        if python == sys.executable and os.path.exists(address):
            return Starter(python, address, int(number))
    if os.getpid() not in _servers:
        _servers[os.getpid()] = Server()
        atexit.register(_servers[os.getpid()].close)
    return _servers[os.getpid()]


def share() -> None:
    """Let processes that this one starts use its server."""
    by = server()
    os.environ[SHARED] = os.pathsep.join([str(by.pid), by.address, by.python])


def inherit(python: str, address: str) -> None:
    """In a process that is forked: fork for the commands of Python that it starts, too."""
    global _inherited
    _inherited = Starter(python, address, os.getppid())
    subprocess.Popen = Popen  # type: ignore[misc]


def forkable(command: Any, by: Server | Starter | None = None) -> bool:
    """Whether a command is Python's, with a module or with code."""
    if not isinstance(command, (list, tuple)) or len(command) < 3:
        return False
    return command[0] == (by.python if by else sys.executable) and command[1 + (command[1] == "-P")] in ("-m", "-c")


def request(
    by: Server | Starter,
    command: Sequence[str],
    descriptors: Sequence[int],
    cwd: str | Path | None,
    env: dict[str, str] | None,
    session: bool,
    nested: bool,
) -> tuple[socket.socket, int]:
    """Ask a server for a fork: the connection that tells its exit code, and its process id."""
    _, option, what, *words = (word for place, word in enumerate(map(str, command)) if (place, word) != (1, "-P"))
    fields = {
        "option": option, "what": what, "words": words, "cwd": str(cwd or os.getcwd()), "session": session,
        "env": dict(os.environ if env is None else env), "nested": nested,
    }  # fmt: skip
    content = json.dumps(fields).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(by.address)
    socket.send_fds(connection, [len(content).to_bytes(8, "big")], list(descriptors))
    connection.sendall(content)
    return connection, int(b"".join(iter(lambda: connection.recv(1), b"\n")))


ARGUMENTS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
STREAMS = ("p2cread", "c2pwrite", "errwrite")


class Popen(subprocess.Popen):
    """subprocess.Popen that forks for the commands of the server's Python, and starts others as it does."""

    _connection: socket.socket | None = None

    def _execute_child(self, *values: Any) -> None:
        names = ARGUMENTS.bind(self, *values).arguments
        if names["preexec_fn"] or names["pass_fds"] or names["shell"] or not forkable(names["args"]):
            super()._execute_child(*values)  # type: ignore[misc]
            return
        descriptors = [number if (number := names[name]) >= 0 else place for place, name in enumerate(STREAMS)]
        session = bool(names["start_new_session"])
        self._connection, self.pid = request(
            server(), names["args"], descriptors, names["cwd"], names["env"], session, nested=True
        )
        self._child_created = True
        pipes = [names[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        self._connection.setblocking(not wait_flags & os.WNOHANG)
        try:
            code = int(self._connection.recv(16) or -signal.SIGKILL)  # nothing: its server has ended, and it with it
        except BlockingIOError:
            return 0, 0
        self._connection.close()
        return self.pid, code << 8 if code >= 0 else -code

    def _internal_poll(self, _deadstate: int | None = None, **others: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(_deadstate, **others)  # type: ignore[misc]
        if self.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                self._wait(0.0)  # type: ignore[attr-defined]
        return self.returncode


class Process:
    """As much of subprocess.Popen as tests use; pipes are binary."""

    def __init__(
        self,
        command: Sequence[Any],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: str | Path | None = None,
        env: dict[str, str] | None = None,
        start_new_session: bool = False,
        by: Server | None = None,
        nested: bool = False,
    ) -> None:
        if not forkable([str(word) for word in command], by):
            raise ValueError(f"not a command of this server: {command}")
        self.args = command
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        with ExitStack() as files:
            null = files.enter_context(open(os.devnull, "r+b"))
            descriptors = []
            for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                if stream == subprocess.DEVNULL:
                    stream = null
                elif stream == subprocess.PIPE:
                    ours, theirs = os.pipe() if name != "stdin" else os.pipe()[::-1]
                    setattr(self, name, os.fdopen(ours, "wb" if name == "stdin" else "rb"))
                    files.callback(os.close, theirs)
                    stream = theirs
                stream = null if stream is None else stream
                descriptors.append(stream if isinstance(stream, int) else stream.fileno())
            self._connection, self.pid = request(
                by or server(), command, descriptors, cwd, env, start_new_session, nested
            )

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, minus the signal's number where one ended it. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                answer = self._connection.recv(16)  # a number in one piece
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self.returncode = int(answer)
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[Any],
    *,
    input: str | bytes | None = None,
    text: bool = False,
    capture_output: bool = True,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as subprocess.run does. Raises subprocess.TimeoutExpired, and kills it then."""
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        if input is not None:
            files["stdin"] = stack.enter_context(tempfile.TemporaryFile())
            files["stdin"].write(input.encode() if isinstance(input, str) else input)
            files["stdin"].seek(0)
        outputs: list[Any] = [None, None]
        if capture_output:
            files |= {name: stack.enter_context(tempfile.TemporaryFile()) for name in ("stdout", "stderr")}
        process = Process(command, **files, **options)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        for number, name in enumerate(("stdout", "stderr")):
            if name in files:
                files[name].seek(0)
                content = files[name].read()
                outputs[number] = content.decode() if text else content
    return subprocess.CompletedProcess(list(command), code, *outputs)
