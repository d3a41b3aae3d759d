"""Whether commands of the documentation are valid: every recipe, part, lesson, check and option of them exists.

    python -m tests.documented_commands < commands.txt

prints a line for each command that is not, and runs none. A plugin's names need that plugin.
"""

import importlib
import importlib.util
import shlex
import sys
from collections.abc import Callable

from zoo import recipe_files, registry
from zoo.config import fit_options, run_config
from zoo.errors import ZooError


def find_problem(command: str) -> str:
    """What is wrong with a command; empty where it is valid."""
    program, *words = shlex.split(command)
    try:
        if program == "zoo":
            check_zoo(words)
        elif program == "python" and words[0] == "-m":
            check_module(words[1], words[2:])
        else:
            return "neither `zoo …` nor `python -m …`"
    except (ZooError, ValueError, LookupError, ImportError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    except SystemExit as stop:  # of argparse, which has said why
        return f"refused with exit code {stop.code}"
    return ""


def check_zoo(words: list[str]) -> None:
    """Raise an error for a command of zoo that cannot be run."""
    from zoo.cli import find_command

    name, *arguments = words
    if name not in find_command.all_commands():
        raise LookupError(f"no command {name}")
    if name in ("fit", "validate", "test", "predict"):
        check_recipe(arguments)
        return
    parsed = find_command.parse(find_command.find_command(name), arguments)
    for checked, check in CHECKS.items():
        if name in checked.split():
            check(parsed)


def check_recipe(words: list[str]) -> None:
    """Raise an error for a recipe with options that cannot be trained."""
    command = fit_options.parse("fit", words)
    run_config.make_plan(command, run_config.read_draft(command))


def check_explained(parsed) -> None:
    """Recipes, or parts, with options."""
    from zoo.explain.explain_command import split_words

    first, second = split_words(parsed.words)
    if len(first) == 2:
        for kind, part in filter(None, (first, second)):
            registry.get(kind, part)
    elif all("=" in word for word in second):
        check_recipe([*first, *(f"--{word}" for word in second), *(text for _, _, text in parsed.settings)])
    else:
        for recipe in (*first, *second):
            check_recipe([recipe])


def check_compared(parsed) -> None:
    """A recipe with each value of each option that is varied."""
    from zoo.compare import plan

    assert plan.parse_seeds(parsed.get("seeds"))
    factors = [plan.parse_factor(text) for text in parsed.get("vary")]
    if not factors:
        raise ValueError("nothing is varied")
    for choice in (choice for factor in factors for choice in factor.choices()):
        check_recipe([parsed.words[0], choice.word])


def check_conformance(parsed) -> None:
    """A part, and the checks of its kind."""
    kind, part = parsed.words
    registry.get(kind, part)
    promises = {promise.__name__ for promise in importlib.import_module(f"zoo.conformance.contracts.{kind}").PROMISES}
    for name in (name for text in parsed.get("only") for name in text.split(",")):
        if name not in promises:
            raise LookupError(f"no check {name} of kind {kind}")


def check_lesson(parsed) -> None:
    """A lesson and its inputs."""
    from zoo_learn import source

    source.parse_inputs(source.get_lesson(parsed.words[0]), parsed.get("set"))


def check_shown(parsed) -> None:
    """A part."""
    registry.get(*parsed.words)


def check_trained(parsed) -> None:
    """A recipe whose newest run is meant."""
    recipe_files.find_recipe(parsed.words[0])


CHECKS: dict[str, Callable] = {
    "explain": check_explained, "compare": check_compared, "check": check_conformance, "lesson": check_lesson,
    "show": check_shown, "probe generate translate chat classify fill tag export": check_trained,
}  # fmt: skip


def check_module(name: str, words: list[str]) -> None:
    """Raise an error for a module that does not exist, or a study that the benchmark does not have."""
    if importlib.util.find_spec(name) is None:
        raise LookupError(f"no module {name}")
    if name == "bench":
        from bench import published
        from bench.__main__ import parse_arguments

        published.parse_arguments(words[1:]) if words[:1] == ["published"] else parse_arguments(words)


def main() -> int:
    """Print what is wrong with the commands of standard input. Returns 1 where something is."""
    problems = [(line, find_problem(line)) for line in sys.stdin.read().splitlines()]
    for command, problem in problems:
        if problem:
            print(f"{command}: {problem}")
    return int(any(problem for _, problem in problems))


if __name__ == "__main__":
    sys.exit(main())
