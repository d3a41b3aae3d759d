"""Find commands: the classes that installed packages register in the group ``zoo.command``. Needs no torch."""

from __future__ import annotations

import functools
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence

import zoo
from zoo import registry
from zoo.command_line import Command, ParsedOptions
from zoo.command_line import parse as parse_options
from zoo.errors import PluginError, UsageError

KIND = "command"


def command_names() -> list[str]:
    """What may follow `zoo`."""
    return [part.name.lower() for part in registry.parts(KIND)] or list(_own())


def find_command(name: str) -> Command:
    """The command of that name. Raises UsageError for an unknown one, PluginError if its package cannot be imported."""
    own = {} if registry.parts(KIND) else _own()
    if name in own:
        return own[name]
    if name == name.lower() and (registry.parts_called(KIND, name) or _is_new(name)):
        return _load(name)
    if package := registry.not_installed(KIND, name):
        raise UsageError(f"unknown command {name!r}.{package}")
    hint = " Options come after the command." if name.startswith("-") else registry.suggest(name, command_names())
    raise UsageError(f"unknown command {name!r}.{hint} See: zoo --help")


@functools.cache
def all_commands() -> Mapping[str, Command]:
    """Every command by its name, except those whose package cannot be imported: `zoo doctor` says why."""
    commands: dict[str, Command] = {}
    for name in command_names():
        try:
            commands[name] = find_command(name)
        except (PluginError, UsageError):
            continue
    return commands


def parse(command: Command, argv: Sequence[str]) -> ParsedOptions:
    """Read what follows a command's name. Raises UsageError, which names the option and where help is."""
    return parse_options(command, argv, lambda option: _commands_with(option, command.name))


def _is_new(name: str) -> bool:
    """Whether a package with the command was installed while this process runs."""
    return registry.refresh() and bool(registry.parts_called(KIND, name))


def _load(name: str) -> Command:
    part = registry.find(KIND, name)
    try:
        cls = part.load()
    except PluginError as error:
        if part.builtin and isinstance(error.__cause__, ModuleNotFoundError):  # an application that was left out
            raise UsageError(f"unknown command {name!r}: this zoo comes without {part.module}.") from error
        raise
    if not issubclass(cls, Command):
        raise PluginError(f"{part}: {cls.__name__} is no subclass of zoo.command_line.Command")
    return cls()


def _own() -> dict[str, Command]:
    """The commands of zoo itself, without its metadata, which may be damaged: `zoo doctor` says what to do."""
    commands: dict[str, Command] = {}
    for folder in pkgutil.iter_modules(zoo.__path__, "zoo."):
        if folder.ispkg and importlib.util.find_spec(f"{folder.name}.commands"):
            module = importlib.import_module(f"{folder.name}.commands")
            classes = [item for item in vars(module).values() if getattr(item, "__module__", "") == module.__name__]
            commands |= {cls.name: cls() for cls in classes if isinstance(cls, type) and issubclass(cls, Command)}
    return commands


def _commands_with(option: str, but: str) -> str:
    """The other commands that have an option, for the message about one that a command has not."""
    names = [command.name for command in all_commands().values() if option in {one.name for one in command.options}]
    return ", ".join(f"zoo {name}" for name in names if name != but)
