"""The contract of a command: what its description says is what it takes, and reading it imports no torch."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys

from zoo.cli import find_command, help
from zoo.command_line import Command, Option
from zoo.conformance.check import require
from zoo.conformance.subject import Independent
from zoo.conformance.token_checks import documentation
from zoo.errors import UsageError

HEAVY = ("torch", "lightning", "numpy", "matplotlib")  # packages that take longer to import than a shell waits


def description_is_light(subject: Independent) -> None:
    """Importing the module that describes it imports no torch, and prints nothing: help and completion read it."""
    code = f"import sys, {subject.part.__module__}; sys.exit(' '.join(name for name in {HEAVY} if name in sys.modules))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    require("Traceback" not in done.stderr, f"its module cannot be imported: {done.stderr[-300:]}")
    message = f"its module imports {done.stderr.strip()}: import it inside the method that needs it."
    require(not done.stderr.strip(), message)
    require(not done.stdout, f"importing its module prints {done.stdout[:80]!r}: say nothing on import.")


def runs_something(subject: Independent) -> None:
    """It overrides `run`, or `runs` names a function that exists."""
    command = subject.build()
    if type(command).run is not Command.run:
        return
    module, _, function = command.runs.partition(":")
    try:
        runs = getattr(importlib.import_module(module), function, None)
    except (ImportError, ValueError) as error:
        require(False, f"runs = {command.runs!r} cannot be imported: {error}")
    require(callable(runs), f"runs = {command.runs!r} is no function: write package.module:function.")


def options_are_read(subject: Independent) -> None:
    """No two options share a spelling, and each is read where it stands on a command line."""
    command = subject.build()
    problem = command.problem()
    require(not problem, f"{problem}.")
    for option in command.all_options:
        required = [argument.name for argument in command.arguments if argument.required]
        value = [] if option.type is bool else [option.choices[0] if option.choices else sample_value(option)]
        if option.name == "help" or option.key:
            continue
        try:
            parsed = find_command.parse(command, [*required, *("=".join([f"--{option.name}", *value]),)])
        except UsageError as error:
            require(False, f"--{option.name} cannot be given: {error}")
        require(option.destination in parsed.values, f"--{option.name} is given, and not read.")


def examples_are_read(subject: Independent) -> None:
    """There is an example, and each line that calls the command is one that it takes."""
    command = subject.build()
    require(bool(command.examples), "it has no example: write at least one.")
    for example in command.examples:
        words = shlex.split(example.partition(" < ")[0].partition(" > ")[0].replace("<(", ""))
        if words[:2] != ["zoo", command.name]:
            continue
        try:
            find_command.parse(command, words[2:])
        except UsageError as error:
            require(False, f"its example {example!r} is refused: {error}")


def help_is_whole(subject: Independent) -> None:
    """The help has the summary, every argument, and every option that has a heading."""
    command = subject.build()
    text = help.command_help(command)
    names = [argument.name for argument in command.arguments]
    for word in (*names, *(f"--{option.name}" for option in command.options if option.heading)):
        require(word in text, f"the help lacks {word}.")


def sample_value(option: Option) -> str:
    """A value that an option of its type takes."""
    if option.type is str:
        return "x"
    low, high = max(option.above, 0), option.most
    middle = low + 1 if high == float("inf") else (low + high) / 2
    return str(option.type(middle))


PROMISES = [documentation, description_is_light, runs_something, options_are_read, examples_are_read, help_is_whole]
