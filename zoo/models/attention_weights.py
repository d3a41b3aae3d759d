"""Look at attention weights without changing the model or its backend."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, Selection

log = logging.getLogger(__name__)


@runtime_checkable
class HasWeights(Protocol):
    """A module that computes the attention weights (B, H, T, S) of a forward."""

    def weights(self, *args, **kwargs) -> Tensor:
        """The weights (B, H, T, S) of a forward with the same arguments."""
        ...


def attention_layers(module: nn.Module) -> list[str]:
    """The names of the parts whose attention can be watched, in the order of the model.

    Those that have no weights to show are left out, with one warning for each class in a process.
    """
    names = []
    for name, part in module.named_modules():
        if isinstance(part, HasWeights):
            if shows_weights(part):
                names.append(name)
            else:
                _warn_without_weights(type(part))
    return names


def shows_weights(part: HasWeights) -> bool:
    """Whether a part has attention weights to look at: it does not declare the opposite, and has a ``weigh``."""
    if not isinstance(part, Attention):
        return True
    return part.shows_weights and type(part).weigh is not Attention.weigh


@contextmanager
def record_weights(
    module: nn.Module,
    names: Collection[str] | None = None,
    rows: Selection | None = None,
    heads: Selection | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Within the block, each forward leaves its attention weights, (B, H, T, S), under the attention's name.

    They are computed again from the attention's arguments, so that any backend works. With ``names`` (see
    ``attention_layers``), ``rows`` (queries) and ``heads`` only these are computed. Raises UsageError
    for an unknown name, and for queries that go on from a cache: watch one pass over the whole sequence.
    An attention without weights to show is left out, with one warning in a process.
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
                _warn_without_weights(type(part))

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
def _warn_without_weights(part: type) -> None:
    log.warning("%s has no attention weights to show: heat maps and alignments leave it out", part.__name__)


def _weights(part: HasWeights, args: tuple, kwargs: dict, rows: Selection | None, heads: Selection | None) -> Tensor:
    arguments = {key: value for key, value in kwargs.items() if key not in ("cache", "earlier_layers")}
    if isinstance(part, Attention):
        if kwargs.get("cache") is not None and arguments["pattern"].offset:
            raise UsageError(
                "attention cannot be watched while it goes on from a cache. Watch a pass over all tokens, without one."
            )
        return part.weights(*args, **arguments, rows=rows, heads=heads)
    weights = part.weights(*args, **arguments)
    weights = weights if heads is None else weights[:, heads]
    return weights if rows is None else weights[:, :, rows]
