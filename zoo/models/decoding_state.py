"""The state of generation: one small object per model, with the same two methods, ``step`` and ``select``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zoo.parts.block import Memory
from zoo.parts.cache import Cache, Caches
from zoo.parts.few_row_linear import Linear, Packed, note_step, packs

VERIFIED = 8  # rows that matrices are packed for where several tokens are verified at once


class State(Protocol):
    """The state of a model that generates a batch of sequences."""

    def step(self, tokens: Tensor) -> Tensor:
        """Take the next tokens (B, T); the logits (B, V) of the one after them."""
        ...

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, in this order; a row may occur more than once."""
        ...


class Decoder(Protocol):
    """A model that generates a target for encoded sources."""

    @property
    def decoder(self) -> Any:
        """The decoder's stack."""
        ...

    @property
    def output(self) -> Tensor:
        """The matrix (V, dim) that turns states into logits."""
        ...

    def decode(self, target: Tensor, memory: Memory, caches: Caches | None = None) -> Tensor:
        """Tokens (B, T), after those in the caches, to logits (B, T, V)."""
        ...


class DecoderOnly(Protocol):
    """A causal language model."""

    @property
    def stack(self) -> Any:
        """Its stack."""
        ...

    @property
    def output(self) -> Tensor:
        """The matrix (V, dim) that turns states into logits."""
        ...

    def states(self, tokens: Tensor, valid: Tensor | None = None, caches: Caches | None = None) -> Tensor:
        """Tokens (B, T), after those in the caches, to states (B, T, dim)."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """States (..., dim) to logits (..., V)."""
        ...


class PackedWeights:
    """Packs linear weights for the decode batch size during generation."""

    def __init__(self, stack: nn.Module, output: Callable[[], Tensor]):
        self.stack, self.output = stack, output
        self.weights: list[Tensor] | None = None  # that a step reads
        self.packed: list[Packed] | None = None

    def ready(self, tokens: Tensor) -> None:
        """Called before each step with its tokens (B, T); packs at the first one that has one token per row."""
        if self.weights is None:  # for a prompt of one or two tokens, which chooses kernels too
            self.weights = self._find_weights()
            note_step(self.weights)
        if self.packed is None and tokens.size(1) == 1:
            self.pack(len(tokens))

    def pack(self, rows: int) -> None:
        """Pack for products of so many rows, unless it was done."""
        if self.packed is None:
            self.packed = packs(self.weights or self._find_weights(), rows)

    def _find_weights(self) -> list[Tensor]:
        linears = [module.weight for module in self.stack.modules() if isinstance(module, Linear)]
        return [*linears, self.output()]


class LanguageState:
    """A language model and its caches; prompts of different lengths stand with their padding on the left."""

    def __init__(self, model: DecoderOnly, capacity: int, valid: Tensor | None = None):
        # without padding nothing is remembered of it, which would grow with each token
        self.model, self.valid = model, None if valid is None or bool(valid.all()) else valid
        self.caches = model.stack.caches(capacity)
        self.matrices = PackedWeights(model.stack, lambda: model.output)

    def step(self, tokens: Tensor) -> Tensor:
        """The next tokens (B, T) to the logits (B, V) of the one after them."""
        self.matrices.ready(tokens)
        if self.valid is not None and self.caches.length:
            self.valid = torch.cat([self.valid, self.valid.new_ones(tokens.shape)], 1)
        return self.model.logits(self.model.states(tokens, self.valid, self.caches)[:, -1])

    def logits(self, tokens: Tensor, last: int) -> Tensor:
        """The next tokens (B, T), without padding, to the logits (B, last, V) behind each of the last of them."""
        if self.caches.length:
            self.matrices.pack(VERIFIED)
        return self.model.logits(self.model.states(tokens, None, self.caches)[:, -last:])

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.output.device

    @property
    def can_truncate(self) -> bool:
        """Whether all that is remembered are keys and values of all tokens, which ``truncate`` can forget."""
        return all(type(layer.own) is Cache and layer.own.window is None and not layer.block for layer in self.caches)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first ``length``; only where ``can_truncate``."""
        self.caches.length = length
        for layer in self.caches:
            layer.own.length = length

    def snapshot(self) -> Caches:
        """What is remembered now, unchanged by later steps. Raises UsageError that names a part without snapshots."""
        return self.caches.snapshot()

    def restore(self, snapshot: Caches) -> None:
        """Go on from a snapshot, which is used up."""
        self.caches = snapshot

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, (rows,), in this order."""
        self.caches.select(rows)
        self.valid = None if self.valid is None else self.valid[rows]


class Seq2SeqState:
    """A decoder, its caches, and the memory of the sources, which were encoded once."""

    def __init__(self, model: Decoder, memory: Memory, capacity: int):
        self.model, self.memory = model, memory
        self.caches = model.decoder.caches(capacity)
        self.matrices = PackedWeights(model.decoder, lambda: model.output)

    def step(self, tokens: Tensor) -> Tensor:
        """The next tokens (B, T) to the logits (B, V) of the one after them."""
        self.matrices.ready(tokens)
        return self.model.decode(tokens, self.memory, self.caches)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, (rows,), in this order."""
        self.caches.select(rows)
        states, valid, packing = self.memory
        states = states if packing is None else packing.spread(states)
        self.memory = Memory(states[rows], None if valid is None else valid[rows])
