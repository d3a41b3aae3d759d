"""Stacks of blocks: one for encoders, decoders and encoder-decoders."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.models.compatibility import CROSS, check_recompute, check_supported, required_features, too_long
from zoo.models.initialization import Init
from zoo.models.layer_overrides import Layer, Override, apply_overrides, share_layers
from zoo.parts.attention import Attention, MultiHead
from zoo.parts.backend import Backend
from zoo.parts.block import Block, Context, Memory, PreNorm
from zoo.parts.cache import Cache, LayerCache, MemoryCache
from zoo.parts.derivatives import transformed
from zoo.parts.ffn import FFN, MLP, RealTokens
from zoo.parts.norm import LayerNorm, Norm
from zoo.parts.packing import Packing, declares_packs
from zoo.parts.pattern import Bias, Pattern
from zoo.parts.position import Extent, Position, RoPE
from zoo.value_checks import MOST_MODULES, a_rate, at_least, at_most

LARGEST_PADDING = 100.0  # larger numbers at padding may overflow on their way through a stack


class Recomputed:
    """A block that keeps its input alone and is run again, with the same dropout, in the backward pass."""

    def __init__(self, block: Block):
        self.block = block

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        return checkpoint(self._run, x, context, use_reentrant=False)

    def _run(self, x: Tensor, context: Context) -> Tensor:
        # a pattern of its own in every run: a mask that was remembered would not be computed, and kept, a second time
        return self.block(x, context._replace(pattern=replace(context.pattern)))


class Stack(nn.Module):
    """``depth`` blocks of parts: an encoder, a decoder (causal extent), or a decoder that looks at a memory (cross).

    Here, and nowhere else, parts and their defaults are declared: models and tasks forward ``**stack``.
    """

    def __init__(
        self,
        extent: Extent,
        *,
        cross: bool = False,
        padded: bool = False,
        dim: int = 512,
        depth: int = 6,
        heads: int = 8,
        hidden: int | None = None,
        position: Callable[[int, int, Extent], Position] = RoPE,
        backend: Callable[[], Backend] | None = None,
        attention: Callable[[int, int, Backend | None, float], Attention] = MultiHead,
        norm: Callable[[int], Norm] = LayerNorm,
        ffn: Callable[[int, int], FFN] = MLP,
        block: Callable[[Attention, Attention | None, nn.Module, Callable[[], Norm], float], Block] = PreNorm,
        window: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        embedding_norm: bool = False,
        overrides: list[Override] | None = None,
        recompute: bool = False,
        init: Callable[[int], Init] | None = None,
    ):
        """
        Args:
            extent: where tokens can stand, given by the model.
            cross: whether the blocks look at a memory, given by the model.
            padded: whether batches will hold padding, given by the model.
            dim: width of a token.
            depth: number of blocks.
            heads: number of attention heads.
            hidden: width of the feed-forward as a budget: gated ones use two thirds of it; 4 * dim unless given.
            position: how positions enter.
            backend: how attention is computed; the attention's own choice unless given.
            attention: what attention computes.
            norm: the normalisation.
            ffn: the feed-forward.
            block: how attention and feed-forward join the stream of tokens.
            window: how many tokens back (and ahead, unless causal) attention reaches, itself included.
            dropout: rate on embeddings and residual branches.
            attention_dropout: rate on attention weights.
            embedding_norm: normalise embeddings, with their positions, before the first block.
            overrides: other parts for some of the layers.
            recompute: keep only the input of each block for the backward pass and compute the rest again: less memory.
            init: the initial weights, and factors on the learning rate; FanIn unless given.
        """
        super().__init__()
        self._trains_on: torch.device | None = None  # where every backend has gradients
        at_least(1, dim=dim, depth=depth, heads=heads, window=window, hidden=hidden)
        at_most(MOST_MODULES, depth=depth)
        a_rate(dropout=dropout, attention_dropout=attention_dropout)
        self.dim = dim
        self.init_rule = init(dim) if init else None
        hidden = 4 * dim if hidden is None else hidden
        self.position = position(dim, heads, extent)
        self.another_norm = partial(norm, dim)  # for heads that have one of the stack's kind
        self.entry = norm(dim) if embedding_norm else nn.Identity()

        def attend(layer: Layer) -> Attention:
            return layer.attention(dim, heads, backend() if backend else None, attention_dropout)

        def feed(layer: Layer) -> nn.Module:
            part = layer.ffn(dim, layer.hidden)
            return RealTokens(part) if part.real_tokens else part

        layers = apply_overrides(Layer(attention, ffn, hidden, window), depth, overrides)
        parts = [(attend(layer), attend(layer).across() if cross else None, feed(layer)) for layer in layers]
        share_layers([own for own, _, _ in parts])
        self.blocks = nn.ModuleList(block(*of_layer, self.another_norm, dropout) for of_layer in parts)
        self.norm = norm(dim) if cast(Block, self.blocks[0]).closes else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.causal, self.windows, self.recompute = extent.causal, [layer.window for layer in layers], recompute
        check_recompute(recompute, cast(Block, self.blocks[0]))
        for (own, other, _), wide in zip(parts, self.windows, strict=True):
            required = required_features(self.position, self.pattern(window=wide), padded, attention_dropout)
            memory = CROSS | {name: who for name, who in required.items() if name == "dropout"}
            if self.position.rotates:
                self.position.check(own.head_dim)
            check_supported(own, required)
            if other is not None:
                check_supported(other, memory)

    def attentions(self) -> list[Attention]:
        """Every attention, those that look at a memory included."""
        return [module for module in self.modules() if isinstance(module, Attention)]

    def pattern(
        self,
        valid: Tensor | None = None,
        offset: int = 0,
        start: int = 0,
        window: int | None = None,
        packing: Packing | None = None,
    ) -> Pattern:
        """The pattern of self-attention for tokens from number ``offset`` on, and keys from number ``start`` on."""
        valid = None if valid is None else valid[:, start:]
        bias = self._bias()
        return Pattern(
            causal=self.causal, window=window, valid=valid, bias=bias, offset=offset, start=start,
            queries=packing, keys=packing,
        )  # fmt: skip

    def _bias(self) -> Bias | None:
        position, special = self.position, self.position.extent.special
        if not position.biases:
            return None
        return (
            (lambda head, query, key: position.bias(head, query - special, key - special)) if special else position.bias
        )

    def caches(self, capacity: int) -> list[LayerCache]:
        """Empty caches for decoding up to ``capacity`` tokens."""
        return [LayerCache(Cache(capacity, window), MemoryCache()) for window in self.windows]

    def forward(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        memory: Memory | None = None,
        caches: list[LayerCache] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """x (B, T, dim) to the same shape, or with a ``packing`` to (1, N, dim): padding is then removed on the way.

        ``valid`` (B, S) is False at padding, over cached tokens too. It may stand on the left or on the right: the
        first real token is the first to the position scheme. What stands at padding, of x and of the memory, may be
        nan or infinite.

        Raises UsageError in training on a device where a backend has no gradients.
        """
        if self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.check_training(x.device)
        offset = caches[0].own.length if caches else 0
        self._check_length(offset + x.size(1))
        # a block that mixes the tokens of a row would mix several sentences: it has to declare that it does not
        packs = packing is not None and all(declares_packs(type(block)) for block in self.blocks)
        x = self.embed(x, valid, offset)
        x = packing.pack(x) if packing is not None and packs else x
        x = self.run_blocks(x, self.contexts(offset, valid, memory, caches, packing, packs))
        x = packing.pack(x) if packing is not None and not packs else x
        return self.norm(x)

    def embed(self, x: Tensor, valid: Tensor | None, offset: int = 0) -> Tensor:
        """x (B, T, dim), whose first token stands at ``offset``, with positions, norm and dropout; the same shape."""
        if valid is None:
            place = torch.arange(offset, offset + x.size(1), device=x.device)
        else:
            place = (valid.cumsum(1) - 1).clamp(min=0)[:, offset:]
            x = tame_padding(x, valid[:, offset:])
        return self.dropout(self.entry(self.position.embed(x, place - self.position.extent.special)))

    def contexts(
        self,
        offset: int,
        valid: Tensor | None,
        memory: Memory | None,
        caches: list[LayerCache] | None,
        packing: Packing | None,
        packs: bool,
    ) -> list[Context]:
        """What each block needs beside x: its pattern, the memory and its cache; ``packs``: x comes packed."""
        projected = caches is not None and caches[0].memory.projected is not None  # the memory is not read again
        if memory is not None and memory.valid is not None and memory.packing is None and not projected:
            memory = memory._replace(states=tame_padding(memory.states, memory.valid))
        if memory is not None and not packs:
            memory = memory.padded()
        if packing is not None:
            tokens: Tensor | None = packing.real if packs else packing.valid
        else:
            tokens = None if valid is None else valid[:, offset:]
        inner = packing if packs else None
        starts = [cache.own.start for cache in caches] if caches else [0] * len(self.windows)
        views = list(zip(starts, self.windows, strict=True))
        patterns = {view: self.pattern(valid, offset, *view, inner) for view in views}  # layers share equal ones
        return [
            Context(patterns[view], self.position, memory, tokens, caches[number] if caches else None, inner)
            for number, view in enumerate(views)
        ]

    def run_blocks(self, x: Tensor, contexts: Sequence[Context]) -> Tensor:
        """x (B, T, dim) through all blocks, recomputed in the backward pass with ``recompute``; the same shape."""
        blocks = cast(Sequence[Block], self.blocks)
        cached = contexts[0].cache is not None
        again = self.recompute and self.training and not cached and not transformed()  # torch.func has no checkpoints
        through = type(blocks[0]).through
        return through(cast(Sequence[Block], [Recomputed(block) for block in blocks]) if again else blocks, x, contexts)

    def check_training(self, device: torch.device) -> None:
        """Raise UsageError where a backend has no gradients on this device."""
        if device != self._trains_on:
            for attention in self.attentions():
                attention.backend.check_training(device)
            self._trains_on = device

    def _check_length(self, length: int) -> None:
        position, limit = self.position, self.position.limit
        if limit is not None and length > limit + position.extent.special:
            raise too_long(position, length, limit)


def tame_padding(x: Tensor, valid: Tensor) -> Tensor:
    """x (B, T, dim) with zeros where padding, False in ``valid`` (B, T), is nan or large: 0 times nan or inf is nan."""
    return torch.where(valid[..., None] | (x.abs() <= LARGEST_PADDING), x, 0.0)
