"""`zoo help`: made from the table of commands, without torch; names of parts come from the registry."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from zoo.cli import commands
from zoo.config.option_parser import CommandSpec, Option, ParsedOptions
from zoo.errors import UsageError

WIDTH = 108
OVERVIEW = """\
zoo: swap any part of a Transformer by one line, train it, and learn whether the swap helped.

usage: zoo COMMAND [options]        (zoo COMMAND --help says more)"""
ENVIRONMENT = """\

Environment
  ZOO_DISABLE_PLUGINS=1         leave out every plugin; or names of packages, with commas

Examples
  zoo fit lm-tiny
  zoo fit lm-tiny --model.position alibi --seed 2
  zoo compare lm-tiny --vary model.position=rope,alibi --seeds 5
  zoo list position"""


def run(options: ParsedOptions) -> int:
    """`zoo help [COMMAND]`."""
    if not options.words:
        print(overview())
        return 0
    name = options.words[0]
    if name not in commands.COMMANDS:
        from zoo import registry

        raise UsageError(f"unknown command {name!r}.{registry.suggest(name, commands.COMMANDS)} See: zoo --help")
    print(command_help(name))
    return 0


def version(options: ParsedOptions) -> int:
    """`zoo version`."""
    from importlib.metadata import version

    print(f"zoo {version('zoo-transformers')}")
    return 0


def overview() -> str:
    """The help of `zoo`: every command with its summary, under the heading of its group."""
    lines = [OVERVIEW]
    for group, note in commands.GROUPS.items():
        lines += ["", f"{group:<32}{note}".rstrip()]
        for command in commands.COMMANDS.values():
            if command.group == group:
                lines += _entry(f"{command.name} {_words(command)}", command.summary)
    return "\n".join([*lines, ENVIRONMENT])


def command_help(name: str) -> str:
    """The help of one command: usage, description, arguments, options under their headings, and examples."""
    command = commands.COMMANDS[name]
    usages = command.usages or (f"{_words(command)} [options]".lstrip(),)
    lines = [f"usage: zoo {name} {usages[0]}", *(f"       zoo {name} {usage}" for usage in usages[1:])]
    summary = command.summary[0].upper() + command.summary[1:]
    lines += [*textwrap.wrap(summary if summary.endswith("?") else f"{summary}.", WIDTH)]
    lines += command.description.splitlines()
    lines += [""] if command.arguments else []
    for argument in command.arguments:
        lines += _entry(argument.name, argument.help)
    headings = dict.fromkeys(option.heading for option in command.all_options if option.heading)
    for heading in headings:
        lines += ["", heading]
        for option in command.all_options:
            if option.heading == heading:
                lines += _entry(_flags(option), _about(option))
    lines += ["", "Examples", *(f"  {example}" for example in command.examples)]
    if command.notes:
        from importlib import import_module

        module, _, function = command.notes.partition(":")
        lines += getattr(import_module(f"zoo.cli.{module}"), function)()
    return "\n".join(lines)


def _words(command: CommandSpec) -> str:
    """The words of a command as a usage line shows them."""
    names = (f"{argument.name}{' ...' if argument.repeats else ''}" for argument in command.arguments)
    pairs = zip(names, command.arguments, strict=True)
    return " ".join(word if argument.required else f"[{word}]" for word, argument in pairs)


def _entry(name: str, text: str) -> list[str]:
    """A name and its explanation beside it, in as many lines as needed."""
    wrapped = textwrap.wrap(text, WIDTH - 32) or [""]
    first = [f"  {name:<29} {wrapped[0]}".rstrip()] if len(name) <= 29 else [f"  {name}", f"{'':<32}{wrapped[0]}"]
    return [*first, *(f"{'':<32}{line}" for line in wrapped[1:])]


def _flags(option: Option) -> str:
    value = "" if option.type is bool else f" {option.metavar or '|'.join(option.choices) or 'VALUE'}"
    return f"{f'{option.short}, ' if option.short else ''}--{option.name}{value}"


def _about(option: Option) -> str:
    """The explanation of an option, with the names that it takes and its default."""
    text = _names(option.kind) if option.kind and option.name.count(".") < 2 else option.help
    value = f"{option.default:g}" if isinstance(option.default, float) else option.default
    default = f" ({value})" if value not in (None, False, 0) else ""
    return f"{text}{default}"


def _names(kind: str) -> str:
    """The installed names of a kind, cut where a line ends."""
    from zoo import registry  # which `zoo --help` does without

    names = list(dict.fromkeys(part.name for part in registry.parts(kind)))
    first: list[str] = []
    more = f", … (zoo list {kind})"
    for name in names:
        if len(", ".join([*first, name])) + len(more) > WIDTH - 34:
            return f"{', '.join(first)}{more}"
        first.append(name)
    return ", ".join(first) or "none installed"


def part_names() -> Iterable[str]:
    """The note about the options of parts in the help of fit."""
    return ["", "A part's own options: --model.position.base 500000; zoo show position rope lists them."]


def comparison_names() -> Iterable[str]:
    """The packaged comparisons."""
    from zoo import recipe_files

    return ["", "Packaged comparisons", *(f"  {one.name:<29} {one.summary}" for one in recipe_files.comparisons())]
