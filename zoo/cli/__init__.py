"""The commands `zoo` and `lightning`."""

from __future__ import annotations

import sys

from zoo import console
from zoo.system import stop_signals

SYNONYMS = {"-h": "help", "--help": "help", "--version": "version"}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or ["help"]
    words[0] = SYNONYMS.get(words[0], words[0])
    restore = argv is not None
    with console.guard_streams(restore=restore) as output:
        try:
            code = _dispatch(words[0], words[1:], output, restore)
            sys.stdout.flush()
        except console.UnreadError:  # the reader of the pipe, such as head, has ended
            code = 0
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # exceptions of libraries in Rust do not derive from Exception
            from zoo.cli.error_report import report_error

            code = report_error(error, "--debug" in words)
        sys.stdout.flush()
        return output.exit_code(code)


def _dispatch(name: str, argv: list[str], output: console.Output, restore: bool) -> int:
    """Find a command, read its options, and run it."""
    from zoo.cli import find_command
    from zoo.cli.environment_errors import check_ranks, check_words, working_folder

    check_words([name, *argv])
    check_ranks()
    command = find_command.find_command(name)
    output.only_prints = command.only_prints
    if command.needs_folder:
        working_folder()
    options = find_command.parse(command, argv)
    if options.get("help"):
        from zoo.cli import help

        print(help.command_help(command))
        return 0
    if not command.trains:
        return find_command.run_command(command, options)
    defer = name == "fit" and stop_signals.is_further_process()  # all processes stop at the same batch
    with stop_signals.handle_signals(defer, restore=restore):
        return find_command.run_command(command, options)
