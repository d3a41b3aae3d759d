"""The commands `zoo` and `lightning`."""

from __future__ import annotations

import importlib
import sys

from zoo import console
from zoo.cli.commands import COMMANDS
from zoo.errors import UsageError

SYNONYMS = {"-h": "help", "--help": "help", "--version": "version"}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from zoo.system import stop_signals

    words = list(sys.argv[1:] if argv is None else argv) or ["help"]
    name = SYNONYMS.get(words[0], words[0])
    if name not in COMMANDS or COMMANDS[name].module != "train":
        return _run_guarded(name, words[1:], restore=argv is not None)
    defer = name == "fit" and stop_signals.is_further_process()  # all processes stop at the same batch
    try:
        with stop_signals.handle_signals(defer, restore=argv is not None):
            return _run_guarded(name, words[1:], restore=argv is not None)
    except stop_signals.Interrupted as interrupted:  # outside of the code that handles signals itself
        return stop_signals.exit_code(interrupted.signum)


def _run_guarded(name: str, words: list[str], restore: bool) -> int:
    """Run one command behind guarded output; its exit code."""
    only_prints = name in COMMANDS and COMMANDS[name].only_prints
    with console.guard_streams(only_prints, restore=restore) as output:
        try:
            code = _dispatch(name, words)
            sys.stdout.flush()
        except console.UnreadError:  # the reader of the pipe, such as head, has ended
            code = 0
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # exceptions of libraries in Rust do not derive from Exception
            from zoo.cli.error_report import report_error

            code = report_error(error, "--debug" in (name, *words))
        sys.stdout.flush()
        return output.exit_code(code)


def _dispatch(name: str, argv: list[str]) -> int:
    from zoo.cli.environment_errors import check_words, working_folder

    check_words([name, *argv])
    command = COMMANDS.get(name)
    if command is None:
        raise _unknown_command(name)
    if command.needs_folder:
        working_folder()
    from zoo.cli import commands

    options = commands.parse(name, argv)
    if options.get("help"):
        from zoo.cli import help

        print(help.command_help(name))
        return 0
    module, _, function = command.module.partition(":")
    code: int = getattr(importlib.import_module(f"zoo.cli.{module}"), function or "run")(options)
    return code


def _unknown_command(name: str) -> UsageError:
    from zoo.registry import suggest

    hint = " Options come after the command." if name.startswith("-") else suggest(name, COMMANDS)
    return UsageError(f"unknown command {name!r}.{hint} See: zoo --help")
