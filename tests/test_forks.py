"""Forks stand for processes of Python: what is started in them, and by whom."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks


def parent(number: int) -> int:
    """The process that has started another."""
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_child_of_the_tested_code_is_a_fork(forked_children, tmp_path):
    code = "import os, sys; print(os.getcwd(), os.getpid() == os.getsid(0), sys.stdin.read(), sys.argv[1]); sys.exit(3)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, "x"], cwd=tmp_path, start_new_session=True, **pipes) as child:
        assert parent(child.pid) == forks.server().pid
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        assert child.communicate("in") == (f"{tmp_path} True in x\n", None)
    assert child.returncode == child.poll() == child.wait() == 3
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([sys.executable, "-c", "raise SystemExit('no')"], check=True, stderr=subprocess.DEVNULL)


def test_a_fork_can_be_killed(forked_children):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.kill()
    assert child.wait(60) == -signal.SIGKILL


def test_other_commands_are_started(forked_children):
    for command in (["echo", "x"], [sys.executable, "-S", "-c", "print('x')"], "echo x"):
        done = subprocess.run(command, shell=isinstance(command, str), capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "x\n")
    child = subprocess.Popen(["sleep", "0"])
    assert parent(child.pid) != forks.server().pid
    assert child.wait(60) == 0


@pytest.mark.parametrize("nested", [False, True])
def test_the_children_of_a_fork_are_forks_where_it_is_asked_for(nested):
    inner = "import os, sys; print(os.getppid(), 'torch' in sys.modules)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    done = forks.run([sys.executable, "-c", code], text=True, nested=nested)
    number, has_torch = done.stdout.split()
    assert (int(number) == forks.server().pid, has_torch) == (nested, str(nested))
