"""The commands `zoo` and `lightning`."""

from __future__ import annotations

import sys
from pathlib import Path

from zoo import console

RUN = ("fit", "validate", "test", "predict")
READ = ("list", "show", "recipes", "cp", "tensorboard", "doctor")
USE = ("generate", "translate", "classify", "fill", "tag", "export")
ANYWHERE = ("list", "recipes", "doctor")  # need no working folder
OWN = ("compare", "check", "new", "matrix", "import")
# commands that print and end: nothing is left to do when nobody reads what they print
PRINT = ("list", "show", "recipes", "generate", "translate", "classify", "fill", "tag")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    with console.guarded(ends=words[:1] in ([], *([name] for name in PRINT)), restore=argv is not None) as output:
        try:
            code = _dispatch(words, Path(sys.argv[0]).stem)
            sys.stdout.flush()
        except console.UnreadError:  # the reader, such as head, has seen enough
            code = 0
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # also what libraries in Rust raise, which is no Exception
            from zoo.cli.failure import report

            code = report(error, "--debug" in words)
        sys.stdout.flush()
        return output.exit_code(code)


def _dispatch(words: list[str], program: str) -> int:
    from zoo.cli.environment import check_words, working_folder
    from zoo.errors import UsageError

    check_words(words)
    if words[:1] == ["--version"]:
        from importlib.metadata import version

        print(f"zoo {version('zoo-transformers')}")
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        from zoo.cli import helptext

        print(helptext.overview())
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
        from zoo.cli import use

        return use.run(command, rest)
    if command in OWN:
        from zoo.cli import own

        return own.run(command, rest)
    if program == "lightning":
        from zoo.cli import forward

        return forward.run(words)
    from zoo.registry import suggest

    raise UsageError(f"unknown command {command!r}.{suggest(command, [*RUN, *READ, *USE, *OWN])} See: zoo --help")


def _train(command: str, rest: list[str]) -> int:
    """fit, validate, test, predict: check everything that needs no torch first."""
    from zoo import cycles, memory
    from zoo.cli import args, doctor, plan, quiet

    if "-h" in rest or "--help" in rest:
        from zoo.cli import helptext

        print(helptext.run(command))
        return 0
    parsed = args.parse(command, rest)
    draft = plan.draft(parsed) if "help-all" not in parsed.flags or parsed.recipe else plan.Draft([], None, 0)
    doctor.check_torch()
    memory.keep()
    with cycles.uncollected():
        quiet.quiet(parsed.debug)
        schema = plan.schema()
        if "help-all" in parsed.flags:
            from zoo.cli import fullhelp

            return fullhelp.run(parsed, draft, schema)
        made = plan.plan(parsed, draft, schema)
        if "print_config" in parsed.flags:
            print(plan.text(made), end="")
            return 0
        from zoo.cli import run

        return run.execute(made, schema)
