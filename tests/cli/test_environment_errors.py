"""What the machine refuses and what is no text is said in a sentence; a bug keeps its traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from zoo.cli import main
from zoo.cli.environment_errors import HANDLES, PATH, check_words, explain_error
from zoo.cli.error_report import report_error
from zoo.cli.find_command import all_commands
from zoo.errors import UsageError
from zoo.io.atomic_files import STORAGE


def answered(capsys, *words) -> tuple[int, str]:
    code = main(list(words))
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert len(message.strip().splitlines()) <= 4
    return code, message


def caught(call) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("command", all_commands())
def test_every_command_in_a_folder_that_was_deleted(command, tmp_path, capsys, monkeypatch):
    missing = tmp_path / "gone"
    missing.mkdir()
    monkeypatch.chdir(missing)
    missing.rmdir()
    if not all_commands()[command].needs_folder:
        assert main([command, *(["bash"] if command == "completion" else [])]) == 0
        return
    code, message = answered(capsys, command, "lm-tiny")
    assert (code, "the working folder does not exist" in message) == (2, True)


@pytest.mark.parametrize("word", ["caf\udce9", "\ud800", "--name=\udfff", "a\0b"])
@pytest.mark.parametrize("command", all_commands())
def test_every_command_with_a_word_that_is_no_text(command, word, capsys):
    for words in ([command, word], [command, "lm-tiny", "--prompt", word], [word]):
        code, message = answered(capsys, *words)
        assert code == 2
        assert f"word {words.index(word) + 1} of the command line" in message


def test_words_in_any_script_are_text():
    check_words(["fit", "привет", "日本語", "é", "🙂"])


@pytest.mark.parametrize("number", [*sorted(STORAGE), *PATH, *HANDLES, errno.ENOMEM])
def test_errors_of_the_system(number, capsys):
    error = OSError(number, os.strerror(number), "some/file.txt")
    code = report_error(error)
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert code == (5 if number in STORAGE else 2 if number in PATH else 1)
    assert "bug" not in message
    assert "some/file.txt" in message or number in (*HANDLES, errno.ENOMEM)


MEMORY = [
    lambda: torch.empty(2**55),
    lambda: torch.zeros(2**40, 2**10),
    lambda: bytearray(2**60),
    lambda: __import__("numpy").zeros(2**58),
]


@pytest.mark.parametrize("number", range(len(MEMORY)))
def test_memory_that_cannot_be_had(number, capsys):
    error = caught(MEMORY[number])
    assert report_error(error) == 1
    message = capsys.readouterr().err
    assert "error: out of memory." in message
    assert "Traceback" not in message


def test_threads_that_cannot_be_had(capsys):
    assert report_error(RuntimeError("can't start new thread")) == 1
    assert "no more threads" in capsys.readouterr().err


def test_a_loading_process_that_is_killed(capsys):
    program = (  # in a process of its own: torch raises from a signal handler, wherever this process happens to be
        "import os, signal, sys, torch\n"
        "from torch.utils.data import DataLoader\n"
        "from zoo.cli.environment_errors import explain_error\n"
        "batches = iter(DataLoader(torch.arange(64), num_workers=1))\n"
        "next(batches)\n"
        "os.kill(batches._workers[0].pid, signal.SIGKILL)\n"
        "sys.excepthook = lambda kind, error, trace: print(explain_error(error))\n"
        "list(batches)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("a loading process "), done.stderr
    killed = explain_error(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "))
    assert str(killed).startswith("a loading process was ended from outside (signal: Killed), mostly as memory")
    silent = explain_error(RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"))
    assert str(silent).startswith("a loading process ended without a message")
    assert explain_error(RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")) is None


def thrown(error: BaseException):
    raise error


BUGS = [
    lambda: 1 / 0,
    lambda: [][0],
    lambda: {}["a"],
    lambda: None.x,
    lambda: torch.ones(2) @ torch.ones(3),
    lambda: int("a"),
    lambda: (Path(torch.__file__).parent / "nothing").read_text(),
    lambda: "é".encode("ascii"),
    lambda: b"\xff".decode(),
    lambda: thrown(OSError("no number")),
    lambda: thrown(RecursionError()),
    lambda: thrown(RuntimeError("shape mismatch in memory format")),
]


@pytest.mark.parametrize("number", range(len(BUGS)))
def test_a_bug_keeps_its_traceback(number, capsys):
    error = caught(BUGS[number])
    assert explain_error(error) is None
    assert report_error(error) == 1
    message = capsys.readouterr().err
    assert "Traceback" in message
    assert "this looks like a bug" in message


def test_what_a_library_in_rust_raises_ends_in_an_exit_code(monkeypatch, capsys):
    class PanicException(BaseException):
        pass

    def fail(*_):
        raise PanicException("index out of bounds")

    monkeypatch.setattr("zoo.cli._dispatch", fail)
    assert main(["list"]) == 1
    assert "this looks like a bug" in capsys.readouterr().err


def test_what_ends_the_interpreter_is_left_alone(monkeypatch):
    def leave(*_):
        raise SystemExit(3)

    monkeypatch.setattr("zoo.cli._dispatch", leave)
    with pytest.raises(SystemExit):
        main(["list"])


def test_the_cause_of_an_error_counts():
    error = ValueError("a wrapper")
    error.__cause__ = MemoryError()
    assert "out of memory" in str(explain_error(error))
    assert isinstance(explain_error(caught(lambda: "\ud800".encode())), UsageError)


@pytest.mark.parametrize("shape", [(10**12, 10**12), (10**18, 10**18, 8)])
def test_a_size_that_no_number_holds_is_no_bug(shape):
    from zoo.cli.environment_errors import explain_error

    with pytest.raises(RuntimeError) as caught:
        torch.empty(*shape)
    assert str(explain_error(caught.value)).startswith("out of memory.")


@pytest.mark.parametrize("broken", [ConnectionResetError, ConnectionRefusedError, EOFError, FileNotFoundError])
def test_a_loading_process_that_ends_while_its_batch_is_fetched(broken, monkeypatch):
    from multiprocessing.resource_sharer import DupFd

    def detach(self):
        raise broken

    monkeypatch.setattr(DupFd, "detach", detach)
    with pytest.raises(broken) as caught_error:
        next(iter(DataLoader(torch.arange(64), num_workers=1)))
    assert str(explain_error(caught_error.value)).startswith("a loading process ended without a message")
