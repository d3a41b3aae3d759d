"""Look at attention weights without changing the model or its backend."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, Chosen
from zoo.parts.cache import Cache

log = logging.getLogger(__name__)


@runtime_checkable
class HasWeights(Protocol):
    """A module that can say what weights, (B, H, T, S), a forward with the same arguments has."""

    def weights(self, *args, **kwargs) -> Tensor:
        """The weights (B, H, T, S) of a forward with the same arguments."""
        ...


def attention_layers(module: nn.Module) -> list[str]:
    """The names of the parts whose attention can be watched, in the order of the model."""
    return [name for name, part in module.named_modules() if isinstance(part, HasWeights)]


@contextmanager
def record_weights(
    module: nn.Module,
    names: Collection[str] | None = None,
    rows: Chosen | None = None,
    heads: Chosen | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Within the block, each forward leaves its attention weights, (B, H, T, S), under the attention's name.

    They are computed again from what the attention was given, so that any backend can be watched. Of chosen ``names``
    (see ``attention_layers``), ``rows`` (queries) and ``heads`` nothing else is computed or kept. Raises UsageError
    for a name that there is not, and for queries that go on from a cache: watch one pass over the whole sequence.
    An attention that cannot say its weights (it has no ``weigh``) leaves none; that is said once in a process.
    """
    parts = {name: module.get_submodule(name) for name in attention_layers(module)}
    for name in names or ():
        if name not in parts:
            raise UsageError(f"no attention {name!r} to watch. There are: {', '.join(parts) or 'none'}")
    recorded: dict[str, Tensor] = {}

    def follow(name: str):
        def hook(part: HasWeights, args: tuple, kwargs: dict, _output: object) -> None:
            try:
                with torch.no_grad():
                    recorded[name] = _weights(part, args, kwargs, rows, heads)
            except NotImplementedError:
                _say_unseen(type(part))

        return hook

    handles = [
        part.register_forward_hook(follow(name), with_kwargs=True)
        for name, part in parts.items()
        if names is None or name in names
    ]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


@cache
def _say_unseen(part: type) -> None:
    log.warning("%s says no attention weights (it has no weigh): nothing is drawn or aligned by them", part.__name__)


def _weights(part: HasWeights, args: tuple, kwargs: dict, rows: Chosen | None, heads: Chosen | None) -> Tensor:
    arguments = {key: value for key, value in kwargs.items() if key != "cache"}
    if isinstance(part, Attention):
        if isinstance(kwargs.get("cache"), Cache) and arguments["pattern"].offset:
            raise UsageError(
                "attention cannot be watched while it goes on from a cache. Watch a pass over all tokens, without one."
            )
        return part.weights(*args, **arguments, rows=rows, heads=heads)
    weights = part.weights(*args, **arguments)
    weights = weights if heads is None else weights[:, heads]
    return weights if rows is None else weights[:, :, rows]
