"""A reader that has seen enough is no error of a command that prints; a training goes on; lost output is an error."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import zoo.cli
from tests.chaos import lives, streams, toys
from zoo import console

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
# each way once for either stream
PAIRS = [("unread", "file"), ("full", "unread"), ("closed", "hangs"), ("hangs", "closed"), ("dies", "dies"),
         ("gone", "full"), ("file", "gone")]  # fmt: skip


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which zoo stands for the command."""
    text = f'set -o pipefail; zoo() {{ {sys.executable} -m zoo "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=120,
                          env=ENVIRONMENT | environment)  # fmt: skip


def test_a_reader_that_leaves_is_no_error():
    done = shell("zoo list | head -1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    done = shell(f"zoo recipes {closed}")
    assert (done.returncode, done.stderr) == (0, "")


def test_lost_output_is_an_error():
    done = shell("zoo list >/dev/full")
    assert done.returncode == 5
    assert done.stderr == "error: standard output cannot be written: No space left on device.\n"
    assert shell("zoo list >/dev/full 2>&1").returncode == 5


def test_a_pipe_that_breaks_between_processes_is_an_error(monkeypatch, capfd):
    def dispatch(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(zoo.cli, "_dispatch", dispatch)
    assert zoo.cli.main(["fit", "lm-tiny"]) == 1
    assert zoo.cli.main(["list"]) == 1
    assert "BrokenPipeError" in capfd.readouterr().err


@pytest.mark.parametrize("command", [*zoo.cli.RUN, *zoo.cli.READ, *zoo.cli.USE, *zoo.cli.OWN])
def test_only_commands_that_print_end_with_their_reader(command, monkeypatch):
    """Each command prints two lines for nobody, and has something to do after them."""
    reader, writer = os.pipe()
    os.close(reader)
    worked = []

    def dispatch(*_):
        print("one", flush=True)
        print("two", flush=True)
        worked.append(command)
        return 3

    monkeypatch.setattr(zoo.cli, "_dispatch", dispatch)
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        code = zoo.cli.main([command])
    ends = command in zoo.cli.PRINT
    assert (code, worked) == ((0, []) if ends else (3, [command]))
    assert command not in ("fit", "compare", "check", "predict", "export", "import", "new") or not ends


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    home = tmp_path_factory.mktemp("streams")
    toys.write(home, steps=12)
    lives.load()
    return home


@pytest.mark.parametrize("ways", PAIRS, ids="-".join)
def test_a_training_outlives_its_readers(toy, ways):
    words = ["fit", "lm.yaml", "--runs", "-".join(ways)]
    code = lives.ended(streams.start(words, toy, ways, after=2), 120)
    assert streams.flaws(toy / "-".join(ways) / "lm/default/s1", toy, ways, code) == []


@pytest.mark.parametrize("deaf", [False, True])
def test_a_training_whose_terminal_hangs_up_saves_what_it_has(toy, deaf):
    """Unless it was started to outlive it, as by nohup."""

    def prologue():
        if deaf:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    name = f"hangup{deaf}"
    words = ["fit", "lm.yaml", "--runs", name, "--trainer.max_steps", "100000" if not deaf else "60"]
    child = lives.born(words, toy, toy / f"{name}.log", prologue)
    deadline = time.monotonic() + 60
    while not list(toy.glob(f"{name}/lm/*/s1/checkpoints/last.ckpt")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(child, signal.SIGHUP)
    assert lives.ended(child, 60) == (0 if deaf else 143)
    (log,) = toy.glob(f"{name}/lm/*/s1/{console.LOG}")
    assert ("finished" if deaf else "interrupted by SIGHUP: step") in log.read_text()


def test_a_log_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, capfd):
    (tmp_path / console.LOG).symlink_to("/dev/full")

    def dispatch(*_):
        console.open_log(tmp_path)
        print("said")
        return 0

    monkeypatch.setattr(zoo.cli, "_dispatch", dispatch)
    assert zoo.cli.main(["fit"]) == 0
    said = capfd.readouterr()
    assert said.out == "said\n"
    assert said.err == f"warning: {console.LOG} cannot be written: No space left on device; going on without it\n"
