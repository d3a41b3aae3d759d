"""Completion scripts, run by the shells themselves where they are installed."""

import shutil
import subprocess

import pytest

from zoo.cli import completion, main
from zoo.cli.find_command import all_commands

# the words on the command line, and some of what must be offered and must not be
CASES = [
    (["com"], {"compare", "completion"}, {"fit"}),
    (["fit", "lm-t"], {"lm-tiny"}, {"vit-tiny"}),
    (["fit", "--on-nonfinite", "s"], {"stop", "skip"}, {"rewind"}),
    (["fit", "--model.position", "al"], {"alibi"}, {"rope"}),
    (["fit", "--over"], {"--overwrite"}, {"--resume"}),
    (["show", "pos"], {"position"}, {"norm"}),
    (["show", "position", "ro"], {"rope"}, {"alibi"}),
    (["completion", "z"], {"zsh"}, {"bash"}),
    (["help", "doc"], {"doctor"}, {"fit"}),
]
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _zoo; printf '%s\\n' "${COMPREPLY[@]}"
"""
# outside of an interactive line, zsh's own functions offer nothing: these print what they are asked to offer
ZSH = """
compdef() { :; }; compset() { :; }; _files() { print FILES; }
compadd() { shift; print -l -- "$@"; }
_describe() { print -l -- "${(@)${(@P)2}%%:*}"; }
source "$1"; shift
words=("$@"); CURRENT=$#; _zoo
"""


def offers(shell, script, words):
    """What a shell offers for the last word."""
    if shell == "fish":
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C 'zoo {' '.join(words)}'"]
    else:
        program = {"bash": ["bash", "--norc", "-c", BASH], "zsh": ["zsh", "-f", "-c", ZSH]}[shell]
        command = [*program, shell, str(script), "zoo", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request):
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed: its script is only looked at")
    return request.param


@pytest.fixture
def script(shell, tmp_path):
    path = tmp_path / f"zoo.{shell}"
    path.write_text(completion.SCRIPTS[shell]())
    return path


def test_shells_offer_commands_options_and_names(shell, script):
    for words, present, absent in CASES:
        offered = offers(shell, script, words)
        assert present <= offered, (words, offered)
        if shell != "zsh":  # which filters by the word itself
            assert not absent & offered, (words, offered)


def test_shells_read_the_script_without_complaint(shell, script):
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_after_an_equals_sign(tmp_path):
    path = tmp_path / "zoo.bash"
    path.write_text(completion.bash())
    assert offers("bash", path, ["fit", "--on-nonfinite", "=", "re"]) == {"rewind"}
    assert offers("bash", path, ["fit", "--on-nonfinite", "="]) == {"stop", "skip", "rewind"}


@pytest.mark.parametrize("shell_name", completion.SCRIPTS)
def test_a_script_names_every_command_and_option(shell_name, capsys):
    assert main(["completion", shell_name]) == 0
    text = capsys.readouterr().out
    for command in all_commands().values():
        assert command.name in text
        for option in command.all_options:
            if option.heading:
                assert (f"-l {option.name}" if shell_name == "fish" else f"--{option.name}") in text
    unquoted = text.replace("\\'", "").replace("'\"'\"'", "")  # apostrophes, as fish and shlex write them
    for quote in "'", '"':
        assert unquoted.count(quote) % 2 == 0
    assert "lm-tiny" in text
    assert "rope" in text


def test_another_shell_is_refused(capsys):
    assert main(["completion", "csh"]) == 2
    assert "no completion for 'csh': SHELL is bash, zsh, fish" in capsys.readouterr().err
