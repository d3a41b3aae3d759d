"""Split a command line into a recipe, dotted options and the few options of zoo itself. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from zoo.errors import UsageError
from zoo.registry import suggest

FLAGS = {
    "trust", "overwrite", "resume", "requeue", "accept-changes", "debug", "print_config", "help", "help-all",
}  # fmt: skip
VALUED = {"name", "runs", "config", "save-every", "on-nonfinite"}
POLICIES = ("stop", "skip", "rewind")  # what to do about a loss or a gradient that is not finite
LISTED = {"config", "allow-import"}
SHORT = {"-c": "config", "-h": "help"}
ALIASES = {"seed": "seed_everything", "print-config": "print_config", "allow_import": "allow-import"}
CONFIG = ("seed_everything", "ckpt_path", "return_predictions", "compile")
SECTIONS = ("model", "data", "trainer", "tune")
# what people write most often at the top level, and what they mean
COMMON = (
    "model.lr", "model.dim", "model.depth", "model.heads", "model.position", "model.attention", "model.norm",
    "model.ffn", "model.backend", "model.optimizer", "model.dropout", "data.batch_size", "data.path",
    "trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "trainer.devices", "trainer.precision",
    "trainer.accelerator", "trainer.strategy", "trainer.accumulate_grad_batches", "trainer.gradient_clip_val",
)  # fmt: skip


@dataclass
class Command:
    """A parsed command line of fit, validate, test or predict."""

    subcommand: str
    recipe: str | None = None
    configs: list[str] = field(default_factory=list)
    options: list[tuple[str, str | bool, str]] = field(default_factory=list)  # dotted key, value, text
    allow: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    name: str | None = None
    runs: str = "runs"
    save_every: int = 0  # steps
    on_nonfinite: str = "stop"

    @property
    def debug(self) -> bool:
        return "debug" in self.flags


def parse(subcommand: str, argv: list[str], elsewhere: Mapping[str, str] = MappingProxyType({})) -> Command:
    """Read everything after the subcommand; ``elsewhere``: options of other commands, and those commands.

    Raises UsageError for what zoo does not know.
    """
    command = Command(subcommand)
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-") or token == "-":
            if command.recipe is not None:
                raise UsageError(f"one recipe at a time: got {command.recipe!r} and {token!r}. Add files with -c FILE.")
            command.recipe = token
            continue
        word, equals, value = token.partition("=")
        key = SHORT.get(word) or (word[2:] if word.startswith("--") else "")
        key = ALIASES.get(key, key)
        if key in FLAGS:
            if equals:
                raise UsageError(f"'{word}' takes no value.")
            command.allow += ["*"] if key == "trust" else []
            command.flags.add(key)
            continue
        _check(subcommand, word, key, elsewhere)
        given: str | bool = value if equals else _next(rest)
        text = token if equals or given is True else f"{word} {given}"
        _store(command, key, given, text, word)
    return command


def _next(rest: list[str]) -> str | bool:
    """The option's value, or True for a bare one."""
    if not rest or rest[0].startswith("--") or rest[0] in SHORT:
        return True
    return rest.pop(0)


def _check(subcommand: str, word: str, key: str, elsewhere: Mapping[str, str]) -> None:
    if key in VALUED or key in LISTED or key in CONFIG or key.partition(".")[0] in SECTIONS:
        return
    full_name = nearest_option(key, [*FLAGS, *VALUED, *LISTED, *CONFIG, "seed"])
    if key in elsewhere and full_name.rpartition(".")[2] != key:
        raise UsageError(f"zoo {subcommand} has no option {word!r}: it belongs to {elsewhere[key]}.")
    hint = f" Did you mean '--{full_name}'?" if full_name else ""
    raise UsageError(f"unknown option {word!r}.{hint} See: zoo fit --help")


def nearest_option(key: str, more: Sequence[str] = ()) -> str:
    """The common option, or one of ``more``, whose last name is that of ``key``, or is like it; empty for none."""
    by_last = {name.rpartition(".")[2]: name for name in COMMON}
    last = key.rpartition(".")[2]
    near = suggest(last, [*more, *by_last]).removeprefix(" Did you mean '").removesuffix("'?")
    near = last if last in by_last else near if near[:1] == last[:1] else ""
    return by_last.get(near, near)


def _store(command: Command, key: str, value: str | bool, text: str, word: str) -> None:
    if key not in VALUED and key not in LISTED:
        command.options.append((key, value, text))
        return
    if not isinstance(value, str):
        raise UsageError(f"{word!r} needs a value.")
    if key == "config":
        command.configs.append(value)
    elif key == "allow-import":
        command.allow.append(value)
    elif key == "name":
        command.name = value
    elif key == "save-every":
        if not (value.isdecimal() and value.isascii() and 0 < len(value) < 10):
            raise UsageError(f"--save-every takes a number of steps, got {value!r}.")
        command.save_every = int(value)
    elif key == "on-nonfinite":
        if value not in POLICIES:
            raise UsageError(f"--on-nonfinite takes {', '.join(POLICIES)}; got {value!r}.{suggest(value, POLICIES)}")
        command.on_nonfinite = value
    else:
        command.runs = value
