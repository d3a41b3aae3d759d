"""A reader that has seen enough is no error of a command that prints; a training goes on; lost output is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import zoo.cli
from tests import forks
from zoo import console
from zoo.cli import find_command
from zoo.cli.find_command import all_commands
from zoo.command_line import ParsedOptions

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
# each way once for either stream
FEW_PAIRS = [("unread", "full"), ("closed", "hangs"), ("dies", "gone")]  # each way once
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


@pytest.mark.parametrize("command", list(all_commands()))
def test_only_commands_that_print_end_with_their_reader(command, monkeypatch):
    """Each command prints two lines for nobody, and has something to do after them."""
    reader, writer = os.pipe()
    os.close(reader)
    worked = []

    def run(*_):
        print("one", flush=True)
        print("two", flush=True)
        worked.append(command)
        return 3

    monkeypatch.setattr(type(all_commands()[command]), "run", run)
    nothing = ParsedOptions(command, defaults={"help": False})
    monkeypatch.setattr(find_command, "parse", lambda *_: nothing)
    with os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        code = zoo.cli.main([command])
    ends = all_commands()[command].only_prints
    assert (code, worked) == ((0, []) if ends else (3, [command]))
    assert command not in ("fit", "compare", "check", "predict", "export", "import", "new") or not ends


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("several", [FEW_PAIRS, pytest.param(PAIRS, marks=pytest.mark.campaign)], ids=len)
def test_trainings_outlive_their_readers_and_save_when_a_terminal_hangs_up(tmp_path, several):
    """In a process of its own: one in which gradients were computed cannot be forked."""
    pairs = ",".join("-".join(ways) for ways in several)
    command = [
        sys.executable,
        "-m",
        "tests.campaigns.chaos.streams",
        "--home",
        str(tmp_path),
        "--seed",
        "1",
        "--pairs",
        pairs,
    ]
    env = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "ZOO_CACHE": str(tmp_path / "cache")}
    done = forks.run(command, env=env, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.endswith(f"{len(several) + 2} runs, 0 bad\n")


def test_a_log_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, capfd):
    (tmp_path / console.LOG).symlink_to("/dev/full")

    def dispatch(*_):
        console.open_log(tmp_path)
        print("said")
        return 0

    monkeypatch.setattr(zoo.cli, "_dispatch", dispatch)
    assert zoo.cli.main(["fit"]) == 0
    message = capfd.readouterr()
    assert message.out == "said\n"
    assert message.err == f"warning: {console.LOG} cannot be written: No space left on device; going on without it\n"


def test_a_process_that_is_there_before_the_folder_of_its_run_logs_what_it_has_printed(tmp_path, monkeypatch, capfd):
    def dispatch(*_):
        console.open_log(tmp_path / "run")
        print("early")
        (tmp_path / "run").mkdir()
        print("late")
        return 0

    monkeypatch.setattr(zoo.cli, "_dispatch", dispatch)
    assert zoo.cli.main(["fit"]) == 0
    assert tuple(capfd.readouterr()) == ("early\nlate\n", "")
    assert (tmp_path / "run" / console.LOG).read_text() == "early\nlate\n"
