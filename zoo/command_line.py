"""The one parser of command lines: argparse over declared options, with one treatment of every mistake.

A command line is ``WORD ... --option VALUE --option=VALUE --flag --no-flag --flag=false -- WORD ...``, in any order.
Options are written in full: an abbreviation is refused with the option that it begins. Where an option that takes one
value is repeated, the last one counts. ``-`` and ``_`` are the same in a name. Needs no torch.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.errors import PluginError, UsageError

PATHS = ("DIR", "FILE", "RUN", "lookup|RUN")  # how the metavars of options that take a path begin
TYPES = (str, int, float, bool)
OPTION_NAME = re.compile(r"[^\s=-][^\s=]*")
TYPE_NAMES = {int: "a whole number", float: "a number", str: "a value"}


@dataclass(frozen=True)
class Option:
    """One option of a command.

    ``key`` marks an option of the configuration (``model.lr``, ``seed_everything``): its value stays text, is checked
    where the configuration is resolved, and the last of several of one key counts.
    """

    name: str  # without dashes: max-length, model.lr
    help: str
    type: type = str  # bool: a flag
    metavar: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    short: str = ""  # such as -c
    repeats: bool = False
    above: float = -math.inf  # a number must be greater than this
    most: float = math.inf
    key: str = ""
    aliases: tuple[str, ...] = ()
    kind: str = ""  # the kind of part whose names the argument takes
    heading: str = "Options"  # in the help; none: not shown

    @property
    def destination(self) -> str:
        """The name in Python."""
        return self.name.replace("-", "_")

    @property
    def strings(self) -> list[str]:
        """Every spelling on a command line, the documented one first."""
        names = [name for base in (self.name, *self.aliases) for name in (base, base.replace("-", "_"), _dashed(base))]
        return [*(f"--{name}" for name in dict.fromkeys(names)), *([self.short] if self.short else [])]

    @property
    def requirement(self) -> str:
        """What its value must be, as a phrase."""
        if self.choices:
            return _alternatives(self.choices)
        low = f" above {self.above:.12g}" if self.above > -math.inf else ""
        high = f"{' and' if low else ''} at most {self.most:.12g}" if self.most < math.inf else ""
        return f"{TYPE_NAMES[self.type]}{low}{high}"

    def convert(self, text: str) -> Any:
        """The value of a text. Raises ValueError for what it cannot be."""
        value: Any = expand_home(text) if self.metavar.startswith(PATHS) else self.type(text)
        number = self.type in (int, float)
        within = not number or (self.above < value <= self.most and math.isfinite(value))
        if not within or (self.choices and value not in self.choices):
            raise ValueError(text)
        return value


@dataclass(frozen=True)
class Argument:
    """A word of a command line that is no option."""

    name: str
    help: str = ""
    required: bool = True
    repeats: bool = False
    # what a shell offers: recipe, comparison, kind, part, command, shell, or a function package.module:function that
    # returns words; else files
    completes: str = ""


HELP = Option("help", "show this help", bool, short="-h")
COMPARE, TRAIN, USE, LOOK, LEARN, OWN, ABOUT = (
    "Compare", "Train and evaluate", "Use what was trained", "Look around (fast: imports no torch)", "Learn",
    "Your own parts", "Help",
)  # fmt: skip
HEADINGS = {  # groups of commands in `zoo --help`, in their order, each with a note
    COMPARE: "", TRAIN: "", USE: "RUN: a run's folder, a checkpoint, an export, or a recipe: its newest run",
    LOOK: "", LEARN: "", OWN: "",
}  # fmt: skip
DEBUG = Option("debug", "show warnings, and the traceback of an error", bool)
FORCE = Option("force", "write although the target exists", bool)


def json_option(help: str = "one JSON document") -> Option:
    """The option ``--json`` of a command, for programs that read what it prints."""
    return Option("json", help, bool)


class Command:
    """A command of ``zoo``, named after its class in lower case: its arguments, its options, and what runs it.

    A package registers it by an entry point in the group ``zoo.command``. Help, completion and the check of what was
    typed read the attributes; modules that are heavy, such as torch, are imported by ``run``. The first sentence of the
    docstring is its line in ``zoo --help``.
    """

    kind = "command"
    group = "Of further packages"  # heading in `zoo --help`
    runs = ""  # package.module:function, called with ParsedOptions where `run` is not overridden
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    open_options: tuple[str, ...] = ()  # patterns of undeclared options: model.*
    option_kind = ""  # the kind of parts that bring an option of their own name
    examples: tuple[str, ...] = ()
    usages: tuple[str, ...] = ()  # where one line of arguments is not enough
    description = ""
    notes = ""  # package.module:function that returns further lines of help
    surplus = ""  # what to do instead of giving one word too many
    only_prints = False  # ends when the reader of its output has ended
    needs_folder = True  # a working folder that exists
    trains = False  # a signal stops it at the end of a batch, after which it saves
    name = ""  # set for each class

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__name__.lower()

    def run(self, options: ParsedOptions) -> int:
        """Do it; the exit code."""
        code: int = call_by_name(self.runs, options)
        return code

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return " ".join((type(self).__doc__ or "").partition("\n\n")[0].split())

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Its options, and those of every command."""
        return (*self.options, DEBUG, HELP)

    def problem(self) -> str:
        """What is wrong with the description, as part of a sentence; empty where nothing is."""
        texts = ("group", "runs", "description", "notes", "surplus", "summary")
        lists = {"arguments": Argument, "options": Option, "open_options": str, "examples": str, "usages": str}
        for name in texts:
            if not isinstance(getattr(self, name), str):
                return f"its attribute {name} must be a text"
        for name, kind in lists.items():
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)) or not all(isinstance(value, kind) for value in values):
                return f"its attribute {name} must be a tuple of {kind.__name__}"
        owners: dict[str, Option] = {}
        for option in self.all_options:
            if not OPTION_NAME.fullmatch(option.name):
                return f"the name of its option {option.name!r} must have no dashes before it, no space and no ="
            if option.type not in TYPES or not isinstance(option.choices, tuple):
                return f"its option {option.name!r} needs a type of str, int, float, bool, and a tuple of choices"
            for string in option.strings:
                if owners.setdefault(string, option) is not option:
                    return f"two options are written {string}"
        return ""

    def accepts(self, name: str) -> bool:
        """Whether an option that is not declared may be given."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.open_options)


def call_by_name(target: str, *arguments: Any) -> Any:
    """What the function ``package.module:function`` returns.

    Raises PluginError where there is none, and ModuleNotFoundError where its module imports a package that is missing.
    """
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{error.name}."):
            raise  # the function is there, and a package that it needs is not
        raise PluginError(f"{target!r} of a command names no function: {error}") from error
    return function(*arguments)


@dataclass
class ParsedOptions:
    """A command line: its words, the values of declared options by their names in Python, and configuration options."""

    command: str
    words: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  # values of the options that were on the command line
    settings: list[tuple[str, str | bool, str]] = field(default_factory=list)  # key, value, text on the command line
    argv: list[str] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str | None:
        """The first word, such as a recipe."""
        return self.words[0] if self.words else None

    @property
    def allowed(self) -> tuple[str, ...]:
        """The modules that class paths may name, by --allow-import; ``*`` is every module, by --trust."""
        return (*self.get("allow_import"), *(["*"] if self.get("trust") else []))

    def get(self, name: str) -> Any:
        """The value of a declared option, or its default. Raises KeyError for an option that is not declared."""
        return self.values[name] if name in self.values else self.defaults[name]

    def subset(self, *names: str) -> dict[str, Any]:
        """Those of the options that were on the command line."""
        return {name: self.values[name] for name in names if name in self.values}


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing usage and leaving."""

    def error(self, message: str) -> Any:
        raise UsageError(message)


class _Collect(argparse.Action):
    """Appends destination, spelling and value of every option, in the order of the command line."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.collected.append((self.dest, option_string, self.const if self.nargs == 0 else values))


def parse(command: Command, argv: Sequence[str], elsewhere: Callable[[str], str] = lambda option: "") -> ParsedOptions:
    """Read what follows a command's name. Raises UsageError, which names the option and where help is.

    ``elsewhere`` names the commands that have an option, for the message about one that this has not.

    With ``--help`` the words are not checked.
    """
    parser = _Parser(add_help=False, allow_abbrev=False, exit_on_error=False)
    namespace = argparse.Namespace(collected=[])
    declared = {option.destination: option for option in command.all_options}
    spellings = _register(parser, command, argv)
    result = ParsedOptions(command.name, argv=list(argv))
    result.defaults = {name: _default(option) for name, option in declared.items() if not option.key}
    try:
        if any(word.endswith("=--") for word in argv):  # argparse of Python 3.11 fails at it
            raise UsageError("the value '--' cannot be given to an option.")
        extras = parser.parse_known_args(list(argv), namespace)[1]
        for destination, spelling, value in namespace.collected:
            _store(result, declared.get(destination), destination, spelling, value)
        split = extras.index("--") if "--" in extras else len(extras)
        result.words = [expand_home(word) for word in (*extras[:split], *extras[split + 1 :])]
        unknown = [word for word in extras[:split] if word.startswith("-") and word != "-"]
        if result.values.get("help"):
            return result
        if unknown:
            raise UsageError(_unknown_option(command, unknown[0].partition("=")[0], elsewhere))
        _check_words(command, result.words)
    except argparse.ArgumentError as error:
        spelling = str(error.argument_name).partition("/")[0]
        raise UsageError(
            f"{_misused(spelling, spellings[spelling], str(error))} See: zoo {command.name} --help"
        ) from error
    except UsageError as error:
        sentence, newline, more = str(error).partition("\n")
        raise UsageError(f"{sentence} See: zoo {command.name} --help{newline}{more}") from None
    return result


def _register(parser: argparse.ArgumentParser, command: Command, argv: Sequence[str]) -> dict[str, Option]:
    """Declare a command's options to argparse, and those of the configuration that a command line names."""
    spellings: dict[str, Option] = {}
    for option in command.all_options:
        if option.key and option.type is not bool:
            for string in option.strings:
                parser.add_argument(string, dest=option.key, nargs="?", const=True, action=_Collect)
        elif option.type is bool:
            off = [f"--no-{option.name}", f"--no-{option.destination}"] if option is not HELP else []
            for value, strings in ((True, option.strings), (False, off)):
                exact = [f"{flag}={text}" for flag in option.strings for text in (str(value).lower(), str(value))]
                names = [*dict.fromkeys(strings), *exact]
                parser.add_argument(*names, dest=option.destination, nargs=0, const=value, action=_Collect)
                spellings.update(dict.fromkeys(names, option))
        else:
            parser.add_argument(*option.strings, dest=option.destination, action=_Collect)
        spellings.update(dict.fromkeys(option.strings, option))
    for string in dict.fromkeys(word.partition("=")[0] for word in argv if word.startswith("--")):
        if string != "--" and string not in spellings and command.accepts(string[2:]):
            parser.add_argument(string, dest=string[2:], nargs="?", const=True, action=_Collect)
    # a word with one dash that is no option is a value, such as -1e-3 or -b; argparse alone knows plain numbers
    parser._negative_number_matcher = re.compile("-[^-]")
    return spellings


def expand_home(text: str) -> str:
    """A path with the home folder in the place of ``~`` or ``~user`` at its beginning, as a shell writes it.

    A shell leaves it as it is in ``--runs=~/r`` and in quotes. Raises RuntimeError for a user without a home folder.
    """
    return str(Path(text).expanduser()) if text.startswith("~") else text


def _default(option: Option) -> Any:
    return False if option.type is bool else () if option.repeats else option.default


def _store(result: ParsedOptions, option: Option | None, destination: str, spelling: str, value: Any) -> None:
    """Keep one option of the command line. Raises UsageError for a value that it cannot have."""
    if option is None or option.key:
        whole = f"{spelling}={value}"
        text = spelling if isinstance(value, bool) else whole if whole in result.argv else f"{spelling} {value}"
        if option is not None and option.metavar.startswith(PATHS) and isinstance(value, str):
            value = expand_home(value)
        result.settings.append((option.key if option else destination, value, text))
        return
    if option.type is not bool:
        names_something = option.type is str and not option.choices and option.metavar not in ("", "TEXT")
        if names_something and not str(value).strip():
            raise UsageError(f"{spelling!r} needs {option.requirement}, and got an empty value.")
        try:
            value = option.convert(value)
        except ValueError as error:
            from zoo.registry import suggest  # not needed to start a command

            hint = suggest(value, option.choices) if option.choices else ""
            raise UsageError(f"{spelling!r} must be {option.requirement}, got {value!r}.{hint}") from error
    if option.repeats:
        result.values.setdefault(option.destination, []).append(value)
    else:
        result.values[option.destination] = value


def _misused(spelling: str, option: Option, message: str) -> str:
    """What is wrong with an option that argparse refuses: a flag has a value, or another option has none."""
    if option.type is bool:
        value = message.rpartition("explicit argument ")[2]
        return f"{spelling!r} takes true, false or no value, got {value}."
    dashes = f" One that begins with dashes: {spelling}=VALUE." if option.type is str and not option.choices else ""
    return f"{spelling!r} needs {option.requirement}.{dashes}"


def _unknown_option(command: Command, spelling: str, elsewhere: Callable[[str], str]) -> str:
    """The sentence about an option that a command does not have, with the one that was probably meant."""
    from zoo import registry  # not needed to start a command

    names = [option.strings[0] for option in command.all_options if option.heading or option.key]
    # people write --lr for --model.lr
    ends = {name.lstrip("-").rpartition(".")[2].replace("-", "_"): name for name in names}
    last = spelling.lstrip("-").rpartition(".")[2].lower().replace("-", "_")
    begins = [name for name in names if name.startswith(spelling.lower()) and len(spelling) > len("--")]
    near = registry.nearest_key(last, ends, 0.5 if len(last) in (2, 3) else 0.66)  # else --verbose were --overwrite
    if near == "runs" and last in registry.SYNONYMS and any(word.name == "RUN" for word in command.arguments):
        near = ""  # where it reads runs, and writes nothing
    likely = [ends[last]] if last in ends else begins[:3] or ([ends[near]] if near else [])
    if command.option_kind and (package := registry.not_installed(command.option_kind, spelling.lstrip("-"))):
        return f"zoo {command.name} has no option {spelling!r}.{package}"
    has_meaning = last in ends or (near and last in registry.SYNONYMS)
    if not has_meaning and (commands := elsewhere(spelling.lstrip("-"))):
        return f"zoo {command.name} has no option {spelling!r}: it belongs to {commands}."
    hint = f" Did you mean {_alternatives([repr(name) for name in likely])}?" if likely else ""
    return f"zoo {command.name} has no option {spelling!r}.{hint}"


def _check_words(command: Command, words: Sequence[str]) -> None:
    """Raise UsageError for too few or too many words."""
    required = [argument for argument in command.arguments if argument.required]
    if len(words) < len(required):
        lacking = required[len(words)]
        raise UsageError(f"zoo {command.name} needs {lacking.name}: {lacking.help}.")
    for argument, word in zip(command.arguments, words, strict=False):
        if not word.strip():  # to pathlib the current folder
            raise UsageError(f"{argument.name} is empty: is a variable of the shell unset?")
    for word in words if not any("OPTION=VALUE" in argument.help for argument in command.arguments) else ():
        key = word.partition("=")[0]
        if "=" in word and "." in key and command.accepts(key):
            vary = "vary " if "," in word and any(option.name == "vary" for option in command.options) else ""
            raise UsageError(f"{word!r} is no option without its dashes. Did you mean '--{vary}{word}'?")
    most = math.inf if any(argument.repeats for argument in command.arguments) else len(command.arguments)
    if len(words) > most:
        reason = command.surplus or ("" if most else f"zoo {command.name} takes no words")
        raise UsageError(f"{words[int(most)]!r} is one word too many{f': {reason}' if reason else ''}.")


def _alternatives(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _dashed(name: str) -> str:
    """A name with dashes, unless it is a key of the configuration: those have underscores alone."""
    return name if "." in name else name.replace("_", "-")
