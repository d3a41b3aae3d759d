"""What zoo's parts remember while a text is generated, held by the cache classes of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from zoo.models.stack import Stack
from zoo.parts.cache import Cache, Caches, LayerCache, MemoryCache, PartState


class LayerKeys(Cache):
    """Keys and values of a self-attention, held by a layer of a cache of transformers.

    A static cache has room behind the newest key, which is cut off: ``length`` are the tokens after this forward.
    """

    def __init__(self, cache: Any, layer: int, length: int) -> None:
        self.cache, self.layer, self.length = cache, layer, length
        self.window, self.start = None, 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, G, T, D); all of them, (B, G, S, D)."""
        k, v = self.cache.update(k, v, self.layer)
        self.k, self.v = k[:, :, : self.length], v[:, :, : self.length]
        return self.k, self.v

    def visible(self) -> StoredKeys:
        """The keys of the newest forward as a state that takes no others up."""
        return StoredKeys(self)


class StoredKeys(Cache):
    """Keys and values as they are after a forward, for a second look at its weights."""

    def __init__(self, keys: LayerKeys) -> None:
        self.keys = keys

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The stored keys and values (B, G, S, D)."""
        return self.keys.k, self.keys.v


class LayerMemory(MemoryCache):
    """Keys and values of a cross-attention, held by the cross-attention cache of transformers."""

    def __init__(self, cache: Any, layer: int) -> None:
        self.cache, self.layer = cache, layer

    @property
    def projected(self) -> tuple[Tensor, Tensor] | None:  # type: ignore[override]
        """Keys and values (B, G, S, D), None before the first forward."""
        if not self.cache.is_updated.get(self.layer):
            return None
        layer = self.cache.cross_attention_cache.layers[self.layer]
        return layer.keys, layer.values

    def once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, S, D) that ``project`` gave the first time."""
        if self.projected is None:
            self.cache.cross_attention_cache.update(*project(), self.layer)
            self.cache.is_updated[self.layer] = True
        return cast(tuple[Tensor, Tensor], self.projected)


class LayerStates(CacheLayerMixin):
    """What parts of one block remember that are no keys and values, as a layer of a cache of transformers."""

    supports_early_init = False

    def __init__(self, make: Callable[[], LayerCache]) -> None:
        super().__init__()
        self.make = make
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.states, self.length, self.is_initialized = self.make(), 0, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: parts make their states themselves."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Raise TypeError: there are no keys and values here."""
        raise TypeError("this layer remembers a state of its own and takes no keys and values")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of tokens after the next ``query_length``, and the first of them."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Number of tokens so far."""
        return self.length

    def get_max_length(self) -> int:
        """-1: no maximum of its own."""
        return -1

    def offload(self) -> None:
        """Nothing: a state is small."""

    def prefetch(self) -> None:
        """Nothing: it was never moved."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these rows of the batch, (B,)."""
        self.states.select(beam_idx)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        rows = next((len(value) for value in _tensors(self.states)), 0)
        self.states.select(torch.arange(rows).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Raise NotImplementedError unless nothing is to be removed: a state does not say what it was before."""
        if tokens_to_remove:
            raise NotImplementedError("this model remembers a state that cannot go back: use no assisted generation")


def _tensors(states: Any) -> Iterator[Tensor]:
    """All tensors of the states of a block."""
    for state in states if isinstance(states, LayerCache) else vars(states).values():
        if isinstance(state, Tensor) and state.numel():
            yield state
        elif isinstance(state, PartState):
            yield from _tensors(state)


def layer_caches(stack: Stack, cache: Any, tokens: int, capacity: int) -> Caches:
    """What the blocks of a stack remember, as views of a cache of transformers, for the next ``tokens`` tokens."""
    both = isinstance(cache, EncoderDecoderCache)
    own, length = (cache.self_attention_cache if both else cache), int(cache.get_seq_length())
    layers = []
    for number, (block, window) in enumerate(zip(stack.blocks, stack.windows, strict=True)):
        here = own.layers[number] if number < len(own.layers) else None
        states = here.states if isinstance(here, LayerStates) else cast(Any, block).cache(capacity, window)
        if not isinstance(here, LayerStates) and not holds_keys(states):
            while len(own.layers) <= number:
                own.layers.append(DynamicLayer())
            own.layers[number] = LayerStates(lambda block=block, window=window: block.cache(capacity, window))  # type: ignore[misc]
            states = own.layers[number].states
        keys = LayerKeys(own, number, length + tokens) if holds_keys(states) else states.own
        memory = LayerMemory(cache, number) if both else states.memory
        layers.append(LayerCache(keys, memory, states.block))
    caches = Caches(layers)
    caches.length = length
    return caches


def holds_keys(states: LayerCache) -> bool:
    """Whether a block remembers keys and values of all tokens alone, which a cache of transformers can hold."""
    return type(states.own) is Cache and states.block is None


def count_tokens(cache: Any, tokens: int) -> None:
    """Say to the layers with states of their own that they have seen so many tokens more."""
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    for layer in own.layers:
        if isinstance(layer, LayerStates):
            layer.length += tokens
