"""The commands `zoo` and `lightning`."""

from __future__ import annotations

import sys
from pathlib import Path

RUN = ("fit", "validate", "test", "predict")
READ = ("list", "show", "recipes", "cp", "tensorboard", "doctor")
USE = ("generate", "translate", "classify", "fill", "tag", "export")
ANYWHERE = ("list", "recipes", "doctor")  # need no working folder
OWN = ("compare", "check", "new", "matrix", "import")
# commands that print and end: nothing is left to do when nobody reads what they print
PRINT = ("list", "show", "recipes", "generate", "translate", "classify", "fill", "tag")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from zoo.system import stop_signals

    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] not in [[name] for name in RUN]:
        return _guarded(words, restore=argv is not None)
    later = words[0] == "fit" and stop_signals.is_further_process()  # all processes agree on an end
    try:
        with stop_signals.handled(later, restore=argv is not None):
            return _guarded(words, restore=argv is not None)
    except stop_signals.Interrupted as interrupted:  # before the first line that could answer it, or after the last
        return stop_signals.exit_code(interrupted.signum)


def _guarded(words: list[str], restore: bool) -> int:
    """Run one command behind guarded output; its exit code."""
    from zoo import console

    with console.guarded(ends=words[:1] in ([], *([name] for name in PRINT)), restore=restore) as output:
        try:
            code = _dispatch(words, Path(sys.argv[0]).stem)
            sys.stdout.flush()
        except console.UnreadError:  # the reader, such as head, has seen enough
            code = 0
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # also what libraries in Rust raise, which is no Exception
            from zoo.cli.error_report import report_error

            code = report_error(error, "--debug" in words)
        sys.stdout.flush()
        return output.exit_code(code)


def _dispatch(words: list[str], program: str) -> int:
    from zoo.cli.environment_errors import check_words, working_folder
    from zoo.errors import UsageError

    check_words(words)
    if words[:1] == ["--version"]:
        from importlib.metadata import version

        print(f"zoo {version('zoo-transformers')}")
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        from zoo.cli import help

        print(help.overview())
        return 0
    command, rest = words[0], words[1:]
    if command not in ANYWHERE:
        working_folder()
    if command in RUN:
        return _train(command, rest)
    if command in READ:
        from zoo.cli import reading

        return reading.run(command, rest)
    if command in USE:
        from zoo.cli import inference

        return inference.run(command, rest)
    if command in OWN:
        from zoo.cli import own

        return own.run(command, rest)
    if program == "lightning":
        from zoo.cli import lightning_command

        return lightning_command.run(words)
    from zoo.registry import suggest

    raise UsageError(f"unknown command {command!r}.{suggest(command, [*RUN, *READ, *USE, *OWN])} See: zoo --help")


def _train(command: str, rest: list[str]) -> int:
    """fit, validate, test, predict: check everything that needs no torch first."""
    from zoo.cli import doctor, warning_filters, words
    from zoo.config import fit_options, run_config
    from zoo.system import garbage_collection, malloc

    if "-h" in rest or "--help" in rest:
        from zoo.cli import help

        print(help.command_help(command))
        return 0
    parsed = fit_options.parse(command, rest, words.other_commands())
    doctor.warn_of_unknown_plugins()
    draft = (
        run_config.draft(parsed) if "help-all" not in parsed.flags or parsed.recipe else run_config.Draft([], None, 0)
    )
    doctor.check_torch()
    malloc.keep()
    with garbage_collection.uncollected():
        warning_filters.filter_warnings(parsed.debug)
        schema = run_config.schema()
        if "help-all" in parsed.flags:
            from zoo.cli import help_all

            return help_all.run(parsed, draft, schema)
        config_plan = run_config.plan(parsed, draft, schema)
        if "print_config" in parsed.flags:
            print(run_config.config_text(config_plan), end="")
            return 0
        from zoo.cli import fit

        return fit.run_plan(config_plan, schema)
