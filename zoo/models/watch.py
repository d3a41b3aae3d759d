"""Look at attention weights without changing the model or its backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isfunction
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def watch(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within the block, each forward leaves its attention weights, (B, H, T, S), under the attention's name.

    They are computed again from what the attention was given, so that any backend can be watched.
    """
    seen: dict[str, Tensor] = {}
    handles = []

    def follow(name: str):
        def hook(attention: Any, args: tuple, kwargs: dict, _output: Tensor) -> None:
            with torch.no_grad():
                given = {key: value for key, value in kwargs.items() if key != "cache"}
                seen[name] = attention.weights(*args, **given)

        return hook

    for name, part in module.named_modules():
        if isfunction(getattr(type(part), "weights", None)):  # an Attention, or what else can say where it looked
            handles.append(part.register_forward_hook(follow(name), with_kwargs=True))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
