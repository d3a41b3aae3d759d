"""The command line of `zoo compare`: its own options, and those of `zoo fit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from zoo.config.fit_options import FLAGS as BARE
from zoo.errors import UsageError

LISTED, FLAGS = ("vary",), ("dry-run", "attribute", "json", "debug")
VALUED = (
    "seeds", "baseline", "design", "budget", "match", "tune", "jobs", "shard", "runs", "goal", "at", "probe", "out",
)  # fmt: skip


@dataclass
class CompareOptions:
    """A command line of `zoo compare`."""

    words: list[str] = field(default_factory=list)
    vary: list[str] = field(default_factory=list)
    valued: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    options: list[str] = field(default_factory=list)  # of zoo fit
    argv: list[str] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        return self.valued.get(name)

    @property
    def jobs(self) -> int:
        text = self.valued.get("jobs", "1")
        if not text.isdecimal() or not 1 <= int(text) <= 1024:
            raise UsageError(f"--jobs must be a number of runs at once, got {text!r}.")
        return int(text)


def parse(argv: Sequence[str]) -> CompareOptions:
    """Split a command line into own options and those of `zoo fit`. Raises UsageError for a missing value."""
    options, rest = CompareOptions(argv=["compare", *argv]), list(argv)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            options.words.append(token)
            continue
        word, equals, value = token.partition("=")
        name = word.removeprefix("--").replace("_", "-")
        if word.startswith("--") and name in FLAGS:
            if equals:
                raise UsageError(f"'{word}' takes no value.")
            options.flags.add(name)
        elif word.startswith("--") and name in (*VALUED, *LISTED):
            if not equals and (not rest or rest[0].startswith("--")):
                raise UsageError(f"'{word}' needs a value. See: zoo compare --help")
            given = value if equals else rest.pop(0)
            if name in LISTED:
                options.vary.append(given)
            else:
                options.valued[name] = given
        else:
            options.options.append(token)
            if not equals and rest and not rest[0].startswith("-") and name not in BARE:
                options.options.append(rest.pop(0))
    return options


def words(asked: CompareOptions) -> list[str]:
    """The options of `zoo fit` for every run. Raises UsageError for what no command knows."""
    from zoo.cli.compare_fits import options

    return options(asked.options, [*VALUED, *LISTED, *FLAGS])


def is_terminal() -> bool:
    """Whether a person looks at a terminal that shows colours."""
    from zoo.cli.tables import fancy as shown

    return shown()


def output_stream(options: CompareOptions) -> TextIO:
    """Where progress goes: not between the braces of a JSON document."""
    return sys.stderr if "json" in options.flags else sys.stdout
