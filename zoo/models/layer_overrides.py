"""Other parts for some layers of a stack: the hybrid ones of GPT-3, Mixtral's relatives, Gemma, SmolLM3, Jamba."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from torch import nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention
from zoo.parts.backend import Backend
from zoo.parts.block import SLOTS, Block
from zoo.parts.ffn import FFN
from zoo.parts.norm import Norm
from zoo.parts.position import Extent, Position
from zoo.value_checks import at_least

PATTERNS = "first, last, first N, last N, every 4th, 5 of 6 or numbers such as 0, 3, 6-8; all but … for the others"


@dataclass
class Override:
    """What some layers have instead of the stack's own; None leaves a part as it is.

    They are layers ``first``, ``first + step``, … to ``last``, or those that ``layers`` says: "first", "last 2",
    "every 4th" (the fourth, the eighth, …), "5 of 6" (the first five of every six), "0, 3, 6-8", or "all but" one of
    these. The first layer is number 0; ``last`` is the number of the last one, the stack's unless given. A ``window``
    of 0 is none.
    """

    first: int = 0
    step: int = 1
    last: int | None = None
    layers: str | None = None
    attention: Callable[[int, int, Backend | None, float], Attention] | None = None
    ffn: Callable[[int, int], FFN] | None = None
    hidden: int | None = None
    window: int | None = None
    position: Callable[[int, int, Extent], Position] | None = None
    norm: Callable[[int], Norm] | None = None
    backend: Callable[[], Backend] | None = None
    block: Callable[[Attention, Attention | None, nn.Module, Callable[[], Norm], float], Block] | None = None
    heads: int | None = None

    def numbers(self, depth: int) -> list[int]:
        """The numbers of the layers it is for. Raises UsageError where there is none."""
        if self.layers is not None:
            if (self.first, self.step, self.last) != (0, 1, None):
                raise UsageError(f"overrides: layers={self.layers!r} says which: leave out first, step and last.")
            return matching_layers(self.layers, depth)
        numbers = range(depth)[self.first : depth if self.last is None else self.last + 1 : max(self.step, 1)]
        if self.first < 0 or self.step < 1 or not numbers:
            description = f"first={self.first}, step={self.step}, last={self.last}"
            raise UsageError(f"overrides: one with {description} is for none of the layers 0 to {depth - 1}.")
        return list(numbers)


PLACES = ("first", "step", "last", "layers")  # the options of an override that choose its layers


def configured_layers(options: Mapping[str, Any], depth: int) -> list[int]:
    """The numbers of the layers of an override as a configuration holds it. Raises UsageError where there is none."""
    return Override(**{name: options[name] for name in PLACES if name in options}).numbers(depth)


def matching_layers(pattern: str, depth: int) -> list[int]:
    """The numbers below ``depth`` that "every 4th" and its like stand for. Raises UsageError where there is none."""
    words = re.sub(r"^all but ", "", " ".join(pattern.lower().split()))
    every = range(depth)
    if match := re.fullmatch(r"(first|last)(?: (\d+))?", words):
        count = int(match[2] or 1)
        numbers = set(every[:count] if match[1] == "first" else every[max(0, depth - count) :])
    elif match := re.fullmatch(r"every (\d+)(?:st|nd|rd|th)", words):
        numbers = {number for number in every if int(match[1]) and (number + 1) % int(match[1]) == 0}
    elif match := re.fullmatch(r"(\d+) of (\d+)", words):
        numbers = {number for number in every if int(match[2]) and number % int(match[2]) < int(match[1])}
    elif re.fullmatch(r"\d+(-\d+)?(, ?\d+(-\d+)?)*", words):
        numbers = set()
        for begin, _, end in (span.strip().partition("-") for span in words.split(",")):
            if int(end or begin) < int(begin):
                raise UsageError(f"overrides: layers={pattern!r}: {begin}-{end} runs backwards. Write {end}-{begin}.")
            numbers |= {int(begin), *range(int(begin), min(int(end or begin), depth) + 1)}
        if beyond := sorted(numbers - set(every)):
            raise UsageError(f"overrides: layers={pattern!r}: there is no layer {beyond[0]} among 0 to {depth - 1}.")
    else:
        raise UsageError(f"overrides: layers={pattern!r} is none of: {PATTERNS}.")
    if words != " ".join(pattern.lower().split()):
        numbers = set(every) - numbers
    if not numbers:
        raise UsageError(f"overrides: one with layers={pattern!r} is for none of the layers 0 to {depth - 1}.")
    return sorted(numbers)


@dataclass(frozen=True)
class Layer:
    """The parts of one layer."""

    attention: Callable[..., Attention]
    ffn: Callable[..., FFN]
    hidden: int
    window: int | None
    position: Callable[..., Position]
    norm: Callable[..., Norm]
    backend: Callable[[], Backend] | None
    block: Callable[..., Block]
    heads: int

    @property
    def slots(self) -> frozenset[str]:
        """The slots that its block uses: all, where the class cannot be seen."""
        return frozenset(getattr(class_of(self.block), "slots", SLOTS))


def apply_overrides(own: Layer, depth: int, overrides: Sequence[Override] | None) -> list[Layer]:
    """The parts of every layer; where two overrides speak of one, the later one counts."""
    layers = [own] * depth
    for override in overrides or ():
        at_least(0, window=override.window)
        at_least(1, heads=override.heads, hidden=override.hidden)
        values = {field.name: getattr(override, field.name) for field in fields(Layer)}
        changed = {name: value for name, value in values.items() if value is not None}
        if changed.get("window") == 0:
            changed["window"] = None
        for number in override.numbers(depth):
            layers[number] = replace(layers[number], **changed)
    return layers


@contextmanager
def errors_of_layer(number: int, active: bool) -> Iterator[None]:
    """Within, a UsageError begins with the layer's number, where ``active``."""
    try:
        yield
    except UsageError as error:
        if not active:
            raise
        raise UsageError(f"layer {number}: {error}") from error


def class_of(factory: Any) -> Any:
    """The class that a factory builds, with options bound or not; the factory itself where that cannot be seen."""
    while isinstance(factory, partial):  # configurations bind a function that builds, whose first argument is the class
        values = (factory.func, *factory.args)
        factory = next((value for value in values if isinstance(value, (type, partial))), factory.func)
    return factory


def place_arguments(factory: Any, layer: int, depth: int) -> dict[str, int]:
    """Of ``layer``, the number of a layer, and ``depth``, how many there are, those that a part's constructor takes."""
    try:
        parameters = inspect.signature(class_of(factory)).parameters
    except (TypeError, ValueError):  # no signature to read
        return {}
    return {name: value for name, value in (("layer", layer), ("depth", depth)) if name in parameters}


def share_layers(attentions: Sequence[Attention]) -> None:
    """Give attentions of one class, and of one size, the modules that they have in common: those of the first."""
    for name in {name for attention in attentions for name in attention.shared}:
        common: dict[tuple, nn.Module] = {}
        for attention in attentions:
            if name in attention.shared:
                own = getattr(attention, name)
                sizes = tuple((key, tensor.shape) for key, tensor in own.named_parameters())
                setattr(attention, name, common.setdefault((type(attention), sizes), own))
