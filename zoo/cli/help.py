"""`zoo help`: made from the table of commands, without torch; names of parts come from the registry."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from zoo import __version__
from zoo.cli.find_command import all_commands, command_names, find_command
from zoo.command_line import ABOUT, HEADINGS, Command, Option, ParsedOptions, call_by_name

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
    print(command_help(find_command(options.words[0])))
    return 0


def version(options: ParsedOptions) -> int:
    """`zoo version`."""
    print(f"zoo {__version__}")
    return 0


def overview() -> str:
    """The help of `zoo`: every command with its summary, under the heading of its group."""
    commands = all_commands().values()
    lines = [OVERVIEW]
    further = [command.group for command in commands if command.group != ABOUT]
    for heading in dict.fromkeys([*HEADINGS, *further, ABOUT]):
        if not any(command.group == heading for command in commands):
            continue
        lines += ["", f"{heading:<32}{HEADINGS.get(heading, '')}".rstrip()]
        for command in commands:
            if command.group == heading:
                lines += _entry(f"{command.name} {_words(command)}", _phrase(command.summary))
    if missing := [name for name in command_names() if name not in all_commands()]:
        lines += ["", f"Left out, since something is wrong with them (zoo doctor): {', '.join(missing)}"]
    return "\n".join([*lines, ENVIRONMENT])


def _phrase(sentence: str) -> str:
    """A sentence as it stands in a table: without a capital and a full stop."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def command_help(command: Command) -> str:
    """The help of one command: usage, description, arguments, options under their headings, and examples."""
    name = command.name
    usages = command.usages or (f"{_words(command)} [options]".lstrip(),)
    lines = [f"usage: zoo {name} {usages[0]}", *(f"       zoo {name} {usage}" for usage in usages[1:])]
    lines += textwrap.wrap(command.summary, WIDTH)
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
        lines += call_by_name(command.notes)
    return "\n".join(lines)


def _words(command: Command) -> str:
    """The words of a command as a usage line shows them."""
    names = (f"{argument.name}{' ...' if argument.repeats else ''}" for argument in command.arguments)
    pairs = zip(names, command.arguments, strict=True)
    return " ".join(word if argument.required else f"[{word}]" for word, argument in pairs)


def _entry(name: str, text: str) -> list[str]:
    """A name and its explanation beside it, in as many lines as needed."""
    wrapped = textwrap.wrap(text, WIDTH - 32) or [""]
    head = [f"  {name:<29} {wrapped[0]}".rstrip()] if len(name) <= 29 else [f"  {name}", f"{'':<32}{wrapped[0]}"]
    return [*head, *(f"{'':<32}{line}" for line in wrapped[1:])]


def _flags(option: Option) -> str:
    value = "" if option.type is bool else f" {option.metavar or '|'.join(option.choices) or 'VALUE'}"
    return f"{f'{option.short}, ' if option.short else ''}--{option.name}{value}"


def _about(option: Option) -> str:
    """The explanation of an option, with the names that it takes and its default."""
    text = _names(option.kind) if option.kind and option.key and option.name.count(".") < 2 else option.help
    value = f"{option.default:g}" if isinstance(option.default, float) else option.default
    default = f" ({value})" if value not in (None, False, 0) else ""
    return f"{text}{default}"


def _names(kind: str) -> str:
    """The installed names of a kind, cut where a line ends."""
    from zoo import registry  # which `zoo --help` does without

    names = list(dict.fromkeys(part.name for part in registry.parts(kind)))
    examples: list[str] = []
    more = f", … (zoo list {kind})"
    for name in names:
        if len(", ".join([*examples, name])) + len(more) > WIDTH - 34:
            return f"{', '.join(examples)}{more}"
        examples.append(name)
    return ", ".join(examples) or "none installed"


def part_names() -> Iterable[str]:
    """The note about the options of parts in the help of fit."""
    return ["", "A part's own options: --model.position.base 500000; zoo show position rope lists them."]
