"""Nothing that zoo starts outlives it, however it ends: TensorBoard, workers of checks, imports on trial."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from zoo.compare.tensorboard_command import _free_port
from zoo.conformance import check_process
from zoo.system import fresh_process

ENDS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL]
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: -signal.SIGHUP, signal.SIGKILL: -signal.SIGKILL}
PATIENCE = 120.0


def below(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    result: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *result}} - result:
        result |= more
    return result


def still_alive(processes: set[int]) -> set[int]:
    """Those that still run; a zombie has ended."""
    running = set()
    for pid in processes:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] != "Z":
                running.add(pid)
    return running


def until(condition, seconds: float = PATIENCE):
    """The first true value of a condition, or its last one when the time is over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return value


def start(*words: str, cwd) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "zoo", *words], cwd=cwd, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_tensorboard_ends_with_its_command(number, tmp_path):
    port = _free_port(17006 + 10 * number)

    def answers():
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as page:
            return page.status == 200
        return False

    process = start("tensorboard", str(tmp_path), "--port", str(port), cwd=tmp_path)
    try:
        assert until(answers), "no TensorBoard"
        children = below(process.pid)
        process.send_signal(number)
        assert process.wait(PATIENCE) == CODES[number]
        assert until(lambda: not still_alive(children)), "an orphan"
        assert not answers()
    finally:
        for pid in (process.pid, *below(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


SLEEPS = """\
import os, subprocess, sys, time
from pathlib import Path
{what}
from zoo.parts.norm import Norm
class Sleeps(Norm):
    "Sleeps."
"""
HANGS = """\
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("pid").write_text(str(child.pid))
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_check_takes_what_its_part_has_started_with_it(number, tmp_path):
    (tmp_path / "sleeps.py").write_text(SLEEPS.format(what=HANGS))
    process = start("check", "sleeps.Sleeps", cwd=tmp_path)
    try:
        assert until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        children = below(process.pid)
        assert int((tmp_path / "pid").read_text()) in children
        process.send_signal(number)
        process.wait(PATIENCE)
        assert until(lambda: not still_alive(children)), still_alive(children)
    finally:
        for pid in (process.pid, *below(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def test_child_processes_import_nothing_of_the_working_folder(tmp_path, monkeypatch):
    """A file of every name that the standard library has lies there, as a user's own statistics.py or queue.py."""
    for name in sys.stdlib_module_names - {"sys", "builtins"}:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the working folder was run')\n")
    monkeypatch.setattr(sys, "path", ["/elsewhere", *filter(None, sys.path)])
    monkeypatch.delitem(sys.modules, "zoo.compare.parallel_runs", raising=False)
    command = importlib.import_module("zoo.compare.parallel_runs").COMMAND
    until_import = [program.rpartition(";")[0] for program in (check_process.program()[-1], fresh_process.program())]
    for words in ([*command, "list", "norm"], *([sys.executable, "-P", "-c", code] for code in until_import)):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


def test_runs_import_from_the_working_folder_where_their_comparison_does(monkeypatch):
    for first, safe in ((os.getcwd(), False), ("", False), ("/elsewhere", True)):
        monkeypatch.setattr(sys, "path", [first, *sys.path])
        monkeypatch.delitem(sys.modules, "zoo.compare.parallel_runs", raising=False)
        assert ("-P" in importlib.import_module("zoo.compare.parallel_runs").COMMAND) is safe
