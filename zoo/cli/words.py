"""Read the options of the commands that have a fixed list of them. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zoo.errors import UsageError
from zoo.registry import suggest

KINDS = {int: "a whole number", float: "a number", str: "a value"}
COMMON: dict[str, Any] = {"device": str, "runs": str, "allow-import": [str], "trust": bool, "debug": bool}
BEAMS: dict[str, Any] = {"beams": int, "length-penalty": float, "n-best": int}
# a type takes one value, a list of a type any number of them, bool none
OPTIONS: dict[str, dict[str, Any]] = {
    "generate": {
        **{"prompt": [str], "length": int, "temperature": float, "top-k": int, "top-p": float, "seed": int},
        **{**BEAMS, "stop": [str], "int8": bool, "json": bool, **COMMON},
    },
    "translate": {
        **{**BEAMS, "max-length": int, "batch-tokens": int, "too-long": str},
        **{"attention": str, "json": bool, **COMMON},
    },
    "classify": {"text": [str], "top": int, "resize": str, "json": bool, **COMMON},
    "fill": {"text": [str], "top": int, "json": bool, **COMMON},
    "tag": {"text": [str], "json": bool, **COMMON},
    "export": {"force": bool, "format": str, **COMMON},
    "new": {"dest": str, "from": str, "debug": bool},
    "matrix": {"write": str, "debug": bool},
}


@dataclass
class ParsedOptions:
    """A command's words, and the options that were given by their names in Python."""

    command: str
    words: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def some(self, *names: str) -> dict[str, Any]:
        """Those of the named options that were given."""
        return {name: self.options[name] for name in names if name in self.options}

    def get(self, name: str, default: Any = None) -> Any:
        return self.options.get(name, default)


def parse(command: str, argv: list[str]) -> ParsedOptions:
    """Words and options of a command, with the options' types. Raises UsageError for what it does not have."""
    options, kinds, rest = ParsedOptions(command), OPTIONS[command], list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            options.words += rest
            break
        if not word.startswith("-") or word == "-":
            options.words.append(word)
            continue
        written, equals, value = word.partition("=")
        name = written.removeprefix("--").replace("_", "-")
        kind = kinds.get(name) if written.startswith("--") else None
        if kind is None:
            raise UsageError(f"zoo {command} has no option {written!r}.{_near(written, kinds)} See: zoo {command} -h")
        key = name.replace("-", "_")
        if kind is bool:
            if equals:
                raise UsageError(f"{written!r} takes no value.")
            options.options[key] = True
            continue
        if not equals:
            if not rest:
                raise UsageError(f"{written!r} needs {KINDS[kind[0] if isinstance(kind, list) else kind]}.")
            value = rest.pop(0)
        if isinstance(kind, list):
            options.options.setdefault(key, []).append(_typed(written, kind[0], value))
        else:
            options.options[key] = _typed(written, kind, value)
    return options


def other_commands() -> dict[str, str]:
    """The options that no command that trains has, and the commands that have them."""
    from zoo.cli.compare_options import FLAGS, LISTED, VALUED

    commands = {"compare": (*LISTED, *FLAGS, *VALUED), **OPTIONS}
    names = dict.fromkeys(name for options in commands.values() for name in options)
    return {
        name: ", ".join(f"zoo {command}" for command, options in commands.items() if name in options) for name in names
    }


def _near(written: str, names: Mapping[str, Any]) -> str:
    return suggest(written, [f"--{name}" for name in names])


def _typed(name: str, kind: type, text: str) -> Any:
    try:
        value = kind(text)
    except ValueError as error:
        raise UsageError(f"{name!r} must be {KINDS[kind]}, got {text!r}.") from error
    if value != value:
        raise UsageError(f"{name!r} must be {KINDS[kind]}, got {text!r}.")
    return value
