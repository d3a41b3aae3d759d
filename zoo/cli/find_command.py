"""Find commands: the classes that installed packages register in the group ``zoo.command``. Needs no torch."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import zoo
from zoo import registry
from zoo.command_line import Command, ParsedOptions
from zoo.command_line import parse as parse_options
from zoo.errors import PluginError, UsageError, ZooError
from zoo.plugins import diagnosis

KIND = "command"
VERBS = {  # commands of other tools
    **dict.fromkeys(("train", "pretrain", "finetune", "resume", "run"), "fit"),
    **dict.fromkeys(("sample", "infer", "inference"), "generate"), **dict.fromkeys(("eval", "evaluate"), "validate"),
    **dict.fromkeys(("ls", "parts", "models"), "list"), "info": "show", "convert": "import", "plot": "tensorboard",
}  # fmt: skip


def command_names() -> list[str]:
    """What may follow `zoo`."""
    return [part.name.lower() for part in registry.parts(KIND)] or list(_own())


def find_command(name: str) -> Command:
    """The command of that name. Raises UsageError for an unknown one, PluginError where its package is at fault."""
    own = {} if registry.parts(KIND) else _own()
    if name in own:
        return own[name]
    there = registry.parts_called(KIND, name) or (registry.refresh() and registry.parts_called(KIND, name))
    if there and name == name.lower():
        return _load(name)
    if not there and (package := registry.not_installed(KIND, name)):
        raise UsageError(f"unknown command {name!r}.{package}")
    likely = VERBS.get(name) or registry.most_similar(name, command_names(), 0.66)
    hint = " Options come after the command." if name.startswith("-") else likely and f" Did you mean {likely!r}?"
    raise UsageError(f"unknown command {name!r}.{hint} See: zoo --help")


@functools.cache
def all_commands() -> Mapping[str, Command]:
    """Every command by its name, except those whose package cannot be imported: `zoo doctor` says why."""
    commands: dict[str, Command] = {}
    for name in command_names():
        try:
            commands[name] = find_command(name)
        except ZooError:
            continue
    return commands


def parse(command: Command, argv: Sequence[str]) -> ParsedOptions:
    """Read what follows a command's name. Raises UsageError, which names the option and where help is."""
    return parse_options(command, argv, lambda option: _commands_with(option, command.name))


def run_command(command: Command, options: ParsedOptions) -> int:
    """Run a command; its exit code. Raises PluginError where it returns none."""
    code = command.run(options)
    if not isinstance(code, int) or not 0 <= code <= 255:
        raise PluginError(f"command {command.name!r} returns {code!r:.80}, and must return an exit code from 0 to 255.")
    return code


def _load(name: str) -> Command:
    part = diagnosis.choose_part(KIND, name)
    try:
        return diagnosis.build_part(part, Command)
    except PluginError as error:
        if part.builtin and isinstance(error.__cause__, ModuleNotFoundError):  # an application that was left out
            raise UsageError(f"unknown command {name!r}: this zoo comes without {part.module}.") from error
        raise


def _own() -> dict[str, Command]:
    """The commands of zoo itself, without its metadata, which may be damaged: `zoo doctor` says what to do."""
    commands: dict[str, Command] = {}
    for folder in pkgutil.iter_modules(zoo.__path__, "zoo."):
        place = Path(zoo.__path__[0], folder.name.removeprefix("zoo."), "commands.py")
        if place.is_file():  # looking for its spec would import the package
            module = importlib.import_module(f"{folder.name}.commands")
            classes = [item for item in vars(module).values() if getattr(item, "__module__", "") == module.__name__]
            commands |= {cls.name: cls() for cls in classes if isinstance(cls, type) and issubclass(cls, Command)}
    return commands


def _commands_with(option: str, but: str) -> str:
    """The other commands of zoo itself that have an option, for the message about one that a command has not."""
    names = [part.name.lower() for part in registry.parts(KIND) if part.builtin]
    commands = [find_command(name) for name in names if name != but]
    owners = [command for command in commands if any(entry.name == option for entry in command.options)]
    return ", ".join(f"zoo {command.name}" for command in owners)
