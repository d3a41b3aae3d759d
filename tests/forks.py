"""Processes for tests, forked from one process that has imported the libraries, and neither zoo nor a plugin.

``run`` and ``Process`` take the commands ``[sys.executable, "-m", module, ...]`` and
``[sys.executable, "-c", code, ...]`` and arguments of ``subprocess.run`` and ``subprocess.Popen``. A start of torch and
Lightning costs seconds, a fork milliseconds. A test of the start itself, of what is imported, of the memory allocator,
of hash seeds or of the number of threads needs ``subprocess``.
"""

from __future__ import annotations

import atexit
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
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("fork_server.py")
PATIENCE = 300.0  # seconds for the start of a server


class Server:
    """One process that forks on demand; it ends with the process that started it."""

    def __init__(self, python: str = sys.executable, env: dict[str, str] | None = None) -> None:
        self.python = python
        self.folder = tempfile.mkdtemp(prefix="zoo-forks-")
        self.address = f"{self.folder}/socket"
        env = {**(os.environ if env is None else env), "OMP_NUM_THREADS": "1"}
        command = [python, "-P", str(SERVER), self.address]
        self.process = subprocess.Popen(command, env=env, cwd=self.folder, stdin=subprocess.PIPE)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(self.address):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the server of forks does not start")
            time.sleep(0.02)

    def close(self) -> None:
        """End the server; its forks go on."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


_servers: dict[int, Server] = {}  # by the process that uses it: a fork of a test's process starts its own


def server() -> Server:
    """The server of this process, started when first needed."""
    if os.getpid() not in _servers:
        _servers[os.getpid()] = Server()
        atexit.register(_servers[os.getpid()].close)
    return _servers[os.getpid()]


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
    ) -> None:
        by = by or server()
        python, option, what, *words = map(str, command)
        if python != by.python or option not in ("-m", "-c"):
            raise ValueError(f"not a command of this server: {command}")
        self.args = command
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        with ExitStack() as files:
            null = files.enter_context(open(os.devnull, "r+b"))
            descriptors = []
            for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                if stream == subprocess.PIPE:
                    ours, theirs = os.pipe() if name != "stdin" else os.pipe()[::-1]
                    setattr(self, name, os.fdopen(ours, "wb" if name == "stdin" else "rb"))
                    files.callback(os.close, theirs)
                    stream = theirs
                stream = null if stream is None else stream
                descriptors.append(stream if isinstance(stream, int) else stream.fileno())
            request = {
                "option": option, "what": what, "words": words, "cwd": str(cwd or os.getcwd()),
                "env": dict(os.environ if env is None else env), "session": start_new_session,
            }  # fmt: skip
            content = json.dumps(request).encode()
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.connect(by.address)
            socket.send_fds(self._connection, [len(content).to_bytes(8, "big")], descriptors)
            self._connection.sendall(content)
        self.pid = int(b"".join(iter(lambda: self._connection.recv(1), b"\n")))

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
