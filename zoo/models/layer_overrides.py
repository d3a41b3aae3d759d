"""Other parts for some layers of a stack: the hybrid ones of GPT-3, Mixtral's relatives, Gemma."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention
from zoo.parts.backend import Backend
from zoo.parts.ffn import FFN


@dataclass
class Override:
    """What layers ``first``, ``first + step``, … have instead of the stack's own; None leaves a part as it is.

    The first layer is number 0; ``last`` is the number of the last one, the stack's unless given.
    """

    first: int = 0
    step: int = 1
    last: int | None = None
    attention: Callable[[int, int, Backend | None, float], Attention] | None = None
    ffn: Callable[[int, int], FFN] | None = None
    hidden: int | None = None
    window: int | None = None

    def layers(self, depth: int) -> range:
        """The numbers of the layers it is for. Raises UsageError where there is none."""
        layers = range(depth)[self.first : depth if self.last is None else self.last + 1 : max(self.step, 1)]
        if self.first < 0 or self.step < 1 or not layers:
            description = f"first={self.first}, step={self.step}, last={self.last}"
            raise UsageError(f"overrides: one with {description} is for none of the layers 0 to {depth - 1}.")
        return layers


@dataclass(frozen=True)
class Layer:
    """The parts of one layer."""

    attention: Callable[[int, int, Backend | None, float], Attention]
    ffn: Callable[[int, int], FFN]
    hidden: int
    window: int | None


def apply_overrides(own: Layer, depth: int, overrides: Sequence[Override] | None) -> list[Layer]:
    """The parts of every layer; where two overrides speak of one, the later one counts."""
    layers = [own] * depth
    for override in overrides or ():
        for number in override.layers(depth):
            old = layers[number]
            layers[number] = Layer(
                override.attention or old.attention,
                override.ffn or old.ffn,
                override.hidden or old.hidden,
                override.window or old.window,
            )
    return layers


def share_layers(attentions: Sequence[Attention]) -> None:
    """Give attentions of one class, and of one size, the modules that they have in common: those of the first."""
    for name in {name for attention in attentions for name in attention.shared}:
        first: dict[tuple, nn.Module] = {}
        for attention in attentions:
            if name in attention.shared:
                own = getattr(attention, name)
                sizes = tuple((key, tensor.shape) for key, tensor in own.named_parameters())
                setattr(attention, name, first.setdefault((type(attention), sizes), own))
