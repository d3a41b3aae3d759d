"""The variants of a comparison: parse --vary, --baseline and --seeds, and combine values by a design."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zoo import registry
from zoo.config.fit_options import nearest_option
from zoo.errors import UsageError

SECTIONS = ("model", "data", "trainer", "tune")
TASK = "model"  # the key of the task itself
DESIGNS = ("grid", "one-at-a-time")
MANY, MOST_SEEDS = 12, 1000  # variants of a grid that need an explicit --design grid; seeds
PAIRS, OPEN, CLOSE = {"'": "'", '"': '"'}, "[{(", "]})"


@dataclass(frozen=True)
class Choice:
    """One option and its value, as on the command line of `zoo fit`."""

    key: str
    value: str

    @property
    def word(self) -> str:
        """The argument for `zoo fit`."""
        return f"--{self.key}={self.value}"

    def __str__(self) -> str:
        return f"{self.key.rpartition('.')[2]}={self.value}"


@dataclass(frozen=True)
class Factor:
    """A varied option and its values."""

    key: str
    values: tuple[str, ...]

    def choices(self) -> list[Choice]:
        """The option with each of its values."""
        return [Choice(self.key, value) for value in self.values]


Variant = tuple[Choice, ...]  # nothing: the recipe itself


def parse_factor(text: str) -> Factor:
    """The factor of a ``--vary model.position=none,rope,{class_path: RoPE, init_args: {base: 500}}``.

    Raises UsageError if it is not OPTION=VALUE,VALUE.
    """
    key, equals, values = text.partition("=")
    pieces = join_paths(split_values(values))
    if not equals or not pieces:
        raise UsageError(f"--vary {text!r} is not OPTION=VALUE,VALUE: such as --vary model.position=rope,alibi")
    return make_factor(key.strip().removeprefix("--"), pieces)


def make_factor(key: str, values: Sequence[str]) -> Factor:
    """A factor with full part names for short ones. Raises UsageError for an invalid option or no values."""
    section, dot, option = key.partition(".")
    if key != TASK and (section not in SECTIONS or not dot or not option):
        if key in ("seed", "seeds", "seed_everything"):
            raise UsageError(f"{key!r} is no option to vary: --seeds names the seeds of every variant, as --seeds 1,2.")
        full_name = nearest_option(key)
        example = f", as {full_name!r}" if full_name else ""
        raise UsageError(
            f"{key!r} cannot vary: the task varies as 'model', "
            f"and all else begins with model, data, trainer or tune{example}."
        )
    if not values:
        raise UsageError(f"{key!r} has no values to vary over.")
    return Factor(key, tuple(dict.fromkeys(spell_value(key, value) for value in values)))


def spell_value(key: str, value: str) -> str:
    """The value itself, or the full name of a part for a short one: NoPosition for `none` as model.position."""
    return registry.full_name(key.removeprefix("model."), value)


def option_text(value: object) -> str:
    """A value as the text of a command-line option, in JSON, which YAML parses."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def parse_factors(texts: Sequence[str]) -> tuple[Factor, ...]:
    """The factors of all ``--vary`` options. Raises UsageError for an option that occurs twice."""
    result = [parse_factor(text) for text in texts]
    keys = [factor.key for factor in result]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{key!r} varies twice: write all its values into one --vary.")
    return tuple(result)


def split_values(text: str) -> list[str]:
    """Split at commas, except inside brackets or quotes."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in PAIRS:
            quote = letter
        elif letter in OPEN or letter in CLOSE:
            depth += 1 if letter in OPEN else -1
        if letter == "," and not quote and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces if piece.strip()]


def join_paths(pieces: Sequence[str]) -> list[str]:
    """The same with folders and files put together again whose own names hold commas, as those of runs do."""
    joined: list[str] = []
    remaining = list(pieces)
    while remaining:
        # a piece of --baseline begins with its option, whose name holds no slash
        ends = (n for n in range(len(remaining), 1, -1) if "/" in remaining[0] and _is_path(",".join(remaining[:n])))
        count = next(ends, 1)
        joined.append(",".join(remaining[:count]))
        del remaining[:count]
    return joined


def _is_path(text: str) -> bool:
    option, equals, value = text.partition("=")
    paths = [text, *([value] if equals and "/" not in option else [])]
    return any(os.path.exists(os.path.expanduser(path)) for path in paths)


def parse_baseline(text: str, varied: Sequence[Factor]) -> Variant:
    """The values of varied options in ``--baseline position=rope,norm=rmsnorm``; others stay the recipe's.

    Raises UsageError for an option that is not varied.
    """
    choices: dict[str, Choice] = {}
    for piece in join_paths(split_values(text)):
        name, equals, value = piece.partition("=")
        key = _key(name.strip().removeprefix("--"), varied, text)
        if not equals or not value.strip():
            raise UsageError(f"--baseline {text!r} is not OPTION=VALUE, such as: --baseline {varied[0].choices()[0]}")
        choices[key] = Choice(key, spell_value(key, value.strip()))
    return tuple(choices.values())


def _key(name: str, varied: Sequence[Factor], text: str) -> str:
    keys = [factor.key for factor in varied]
    fits = [key for key in keys if key == name or key.endswith(f".{name}")]
    if len(fits) != 1:
        last = [key.rpartition(".")[2] for key in keys]
        hint = registry.suggest(name, [*keys, *last])
        raise UsageError(f"--baseline {text!r}: {name!r} does not vary.{hint} What does: {', '.join(keys)}")
    return fits[0]


def design_variants(varied: Sequence[Factor], base: Variant, design: str | None) -> list[Variant]:
    """The baseline, then every variant of the design, possibly with duplicates.

    Raises UsageError for an unknown design, and for a grid of more than MANY variants without an explicit design.
    """
    if design is not None and design not in DESIGNS:
        raise UsageError(f"no design {design!r}.{registry.suggest(design, DESIGNS)} There are: {', '.join(DESIGNS)}")
    if design == "one-at-a-time":
        return [base, *_single(varied, base)]
    count = math.prod(len(factor.values) for factor in varied)
    if design is None and count > MANY:
        sizes, fewer = (
            " x ".join(str(len(factor.values)) for factor in varied),
            sum(len(factor.values) for factor in varied),
        )
        raise UsageError(
            f"{sizes} = {count} variants. Run them all: --design grid\n"
            f"Vary one option at a time from the baseline, {fewer} variants: --design one-at-a-time"
        )
    return [base, *itertools.product(*(factor.choices() for factor in varied))]


def _single(varied: Sequence[Factor], base: Variant) -> Iterator[Variant]:
    for factor in varied:
        for choice in factor.choices():
            yield (*(unchanged for unchanged in base if unchanged.key != factor.key), choice)


def variant_text(variant: Variant) -> str:
    """A variant in messages: `position=ALiBi,norm=RMSNorm`; `the recipe` without any choice."""
    return ",".join(map(str, variant)) or "the recipe"


def parse_looks(text: str) -> str:
    """The numbers of seeds of a ``--looks``, ``5,10``, without spaces. Raises UsageError unless they ascend from 2."""
    counts = [int(piece) if piece.strip().isdecimal() else 0 for piece in text.split(",")]
    if counts[0] < 2 or counts[-1] > MOST_SEEDS or any(low >= high for low, high in itertools.pairwise(counts)):
        raise UsageError(
            f"--looks {text!r:.40}: numbers of seeds after which to look, ascending from 2 to at most {MOST_SEEDS}, "
            "such as 5,10"
        )
    return ",".join(map(str, counts))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds of a ``--seeds``: `5` means 1 to 5, `1,2,7` these three, `7,` only 7. Raises UsageError for others."""
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not pieces or not all(piece.isdecimal() and int(piece) < 2**32 for piece in pieces):
        raise UsageError(f"--seeds must be a number of seeds, or seeds such as 1,2,7: got {text!r}.")
    numbers = [int(piece) for piece in pieces]
    if "," in text:
        return tuple(dict.fromkeys(numbers))
    if not 0 < numbers[0] <= MOST_SEEDS:
        raise UsageError(f"--seeds {text}: from 1 to {MOST_SEEDS} of them. One seed by its number: --seeds {text},")
    return tuple(range(1, numbers[0] + 1))
