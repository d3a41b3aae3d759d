"""Stacks of blocks: one for encoders, decoders and encoder-decoders."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.errors import UsageError
from zoo.models.compatibility import (
    CROSS,
    check_earlier_layers,
    check_recompute,
    check_supported,
    required_features,
    too_long,
)  # fmt: skip
from zoo.models.decoding_step import step_of
from zoo.models.initialization import Init
from zoo.models.layer_overrides import (
    Layer,
    Override,
    apply_overrides,
    class_of,
    errors_of_layer,
    place_arguments,
    share_layers,
)  # fmt: skip
from zoo.parts.attention import Attention, MultiHead, TokenMixer
from zoo.parts.backend import Backend
from zoo.parts.block import Block, Context, Memory, PreNorm
from zoo.parts.cache import Caches
from zoo.parts.derivatives import transformed
from zoo.parts.ffn import FFN, MLP, RealTokens
from zoo.parts.norm import LayerNorm, Norm
from zoo.parts.packing import Packing, declares_packs
from zoo.parts.pattern import Bias, Pattern
from zoo.parts.position import Extent, Position, RoPE
from zoo.parts.recompute import without_traces
from zoo.value_checks import MOST_MODULES, a_rate, at_least, at_most

LARGEST_PADDING = 100.0  # larger numbers at padding may overflow on their way through a stack


class Recomputed:
    """A block that keeps its input alone and is run again, with the same dropout, in the backward pass."""

    def __init__(self, block: Block):
        self.block, self.ran = block, False

    def __call__(self, x: Tensor, context: Context) -> Tensor:
        earlier = dict(context.earlier_layers or {})  # as it is now: the second run must not read what the first leaves
        x, own = checkpoint(self._run, x, context, earlier, use_reentrant=False)
        self.ran = True
        if context.earlier_layers is not None:
            context.earlier_layers.update(own)
        return x

    def _run(self, x: Tensor, context: Context, earlier: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        # a pattern of its own in every run: a mask that was remembered would not be computed, and kept, a second time
        every = dict(earlier)
        with without_traces(self.block) if self.ran else nullcontext():
            x = self.block(x, context._replace(pattern=replace(context.pattern), earlier_layers=every))
        return x, {name: tensor for name, tensor in every.items() if name not in earlier}


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
            overrides: other parts, windows or heads for some layers, such as [{layers: every 4th, position: none}].
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
        own = Layer(attention, ffn, hidden, window, position, norm, backend, block, heads)
        layers = apply_overrides(own, depth, overrides)
        self.causal, self.windows, self.recompute = extent.causal, [layer.window for layer in layers], recompute
        self.other_positions = nn.ModuleList()
        self._schemes = self._add_positions(own, layers, extent)
        self.blocks = nn.ModuleList()
        attentions: list[Attention | None] = []
        for number, layer in enumerate(layers):
            with errors_of_layer(number, bool(overrides)):
                attend, look, feed = self._parts(layer, number, depth, attention_dropout, cross)
                required = self._required(number, padded, attention_dropout)
                if attend is not None:
                    if self.positions[number].rotates and not isinstance(attend, TokenMixer):
                        self.positions[number].check(attend.turned_dim)
                    check_supported(attend, required)
                attentions.append(attend)
                if look is not None:
                    check_supported(look, CROSS | {name: who for name, who in required.items() if name == "dropout"})
                another = partial(layer.norm, dim, **place_arguments(layer.norm, number, depth))
                place = place_arguments(layer.block, number, depth)
                self.blocks.append(layer.block(attend, look, feed, another, dropout, **place))
                check_recompute(recompute, cast(Block, self.blocks[-1]))
                check_earlier_layers(attend, cast(Block, self.blocks[-1]))
        share_layers([part for part in attentions if part is not None])
        self._check_positions(attentions)
        self.norm = norm(dim) if cast(Block, self.blocks[-1]).closes else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def _parts(
        self, layer: Layer, number: int, depth: int, dropout: float, cross: bool
    ) -> tuple[Attention | None, Attention | None, nn.Module | None]:
        """The attention of a layer, the one that looks at a memory where there is one, and the feed-forward: those that
        its block uses.

        Raises UsageError for a block that cannot look at a memory where there is one.
        """
        slots = layer.slots

        def attend() -> Attention:
            place = place_arguments(layer.attention, number, depth)
            return layer.attention(self.dim, layer.heads, layer.backend() if layer.backend else None, dropout, **place)

        if cross and "cross" not in slots:
            name = getattr(class_of(layer.block), "__name__", "")
            raise UsageError(f"this model looks at a memory, which block {name} does not. Take another block.")
        place = place_arguments(layer.ffn, number, depth)
        part = layer.ffn(self.dim, layer.hidden, **place) if "ffn" in slots else None
        return (
            attend() if "attention" in slots else None,
            attend().across() if cross else None,
            RealTokens(part) if part is not None and part.real_tokens else part,
        )

    def _add_positions(self, own: Layer, layers: Sequence[Layer], extent: Extent) -> list[int]:
        """Make the position schemes beside the stack's own, one for each kind and number of heads, and number them:
        for every layer 0, which is the stack's own, or 1 and on.

        Raises UsageError for a scheme that enters at the embeddings, which all layers have in common.
        """
        numbers: dict[tuple[object, int], int] = {(own.position, own.heads): 0}
        if not (self.position.rotates or self.position.biases):
            numbers |= {(own.position, layer.heads): 0 for layer in layers}  # the number of heads is nothing to it
        for layer_number, layer in enumerate(layers):
            if (key := (layer.position, layer.heads)) in numbers:
                continue
            with errors_of_layer(layer_number, True):
                scheme = layer.position(self.dim, layer.heads, extent)
                if layer.position is not own.position and type(scheme).embed is not Position.embed:
                    raise UsageError(
                        f"position {type(scheme).__name__} is added to the embeddings, which all layers share. Take it "
                        "as the position of all, or one that acts in attention, such as RoPE."
                    )
            self.other_positions.append(scheme)
            numbers[key] = len(self.other_positions)
        return [numbers[layer.position, layer.heads] for layer in layers]

    def _check_positions(self, attentions: Sequence[Attention | None]) -> None:
        """Raise UsageError where the attention of no layer is left for the weights of the stack's own position."""
        pairs = zip(self._schemes, attentions, strict=True)
        used = any(scheme == 0 and part is not None and not isinstance(part, TokenMixer) for scheme, part in pairs)
        enters = type(self.position).embed is not Position.embed
        if not used and not enters and any(True for _ in self.position.parameters()):
            name = type(self.position).__name__
            raise UsageError(f"no layer has position {name}: name that of the layers, or noposition, as position.")

    @property
    def positions(self) -> list[Position]:
        """The position scheme of every layer."""
        schemes = cast(list[Position], [self.position, *self.other_positions])
        return [schemes[number] for number in self._schemes]

    def _required(self, number: int, padded: bool, dropout: float) -> dict[str, str]:
        """The features that a layer needs of its attention and backend, each with the reason."""
        position = self.positions[number]
        return required_features(
            position, self.pattern(window=self.windows[number], position=position), padded, dropout
        )

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
        position: Position | None = None,
    ) -> Pattern:
        """The pattern of self-attention for tokens from number ``offset`` on, and keys from number ``start`` on."""
        valid = None if valid is None else valid[:, start:]
        bias = self._bias(position or self.position)
        return Pattern(
            causal=self.causal, window=window, valid=valid, bias=bias, offset=offset, start=start,
            queries=packing, keys=packing,
        )  # fmt: skip

    def _bias(self, position: Position) -> Bias | None:
        special = position.extent.special
        if not position.biases:
            return None
        return (
            (lambda head, query, key: position.bias(head, query - special, key - special)) if special else position.bias
        )

    def caches(self, capacity: int) -> Caches:
        """Empty states for decoding up to ``capacity`` tokens, each block's own."""
        blocks = zip(self.blocks, self.windows, strict=True)
        return Caches(cast(Block, block).cache(capacity, window) for block, window in blocks)

    def forward(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        memory: Memory | None = None,
        caches: Caches | None = None,
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
        offset = caches.length if caches else 0
        added = x.size(1)
        alone = valid is None and memory is None and packing is None
        if caches and offset and alone and self.causal and type(self) is Stack:
            step = step_of(self, x, caches)
            if step is not None:
                return step(x, caches)
        self.check_length(offset + added)
        # a block that mixes the tokens of a row would mix several sentences: it has to declare that it does not
        packs = packing is not None and all(declares_packs(type(block)) for block in self.blocks)
        x = self.embed(x, valid, offset)
        x = packing.pack(x) if packing is not None and packs else x
        for run, argument in self.runs(self.contexts(offset, valid, memory, caches, packing, packs)):
            x = run(x, argument)
        x = packing.pack(x) if packing is not None and not packs else x
        if caches:
            caches.length = offset + added
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
        caches: Caches | None,
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
        views = list(zip(starts, self.windows, self.positions, strict=True))
        patterns = {  # layers share equal ones
            (start, window, position): self.pattern(valid, offset, start, window, inner, position)
            for start, window, position in views
        }
        earlier: dict[str, Tensor] = {}
        return [
            Context(patterns[view], view[2], memory, tokens, caches[number] if caches else None, inner, earlier)
            for number, view in enumerate(views)
        ]

    def runs(self, contexts: Sequence[Context]) -> list[tuple[Callable[[Tensor, Any], Tensor], Any]]:
        """What x (B, T, dim) goes through in turn, each with its second argument: the blocks with their contexts.

        Neighbours of a class that defines ``through`` are one. Blocks with several streams begin with copies of x, and
        leave their mean. With ``recompute`` a block is computed again in the backward pass.
        """
        blocks = cast(Sequence[Block], self.blocks)
        cached = contexts[0].cache is not None
        again = self.recompute and self.training and not cached and not transformed()  # torch.func has no checkpoints
        runs: list[tuple[Callable[[Tensor, Any], Tensor], Any]] = []
        start = 0
        while start < len(blocks):
            cls, streams, end = type(blocks[start]), blocks[start].residual_streams, start + 1
            while end < len(blocks) and type(blocks[end]) is cls and blocks[end].residual_streams == streams:
                end += 1
            run = [cast(Block, Recomputed(block)) if again else block for block in blocks[start:end]]
            if streams > 1:
                runs.append((copy_streams, streams))
            if cls.through.__func__ is Block.through.__func__:  # type: ignore[attr-defined]
                runs += zip(run, contexts[start:end], strict=True)
            else:
                runs.append((partial(cls.through, run), contexts[start:end]))
            if streams > 1:
                runs.append((torch.mean, -2))
            start = end
        return runs

    def check_training(self, device: torch.device) -> None:
        """Raise UsageError where a backend has no gradients on this device."""
        if device != self._trains_on:
            for attention in self.attentions():
                attention.backend.check_training(device)
            self._trains_on = device

    def check_length(self, length: int) -> None:
        """Raise UsageError for more tokens than a position scheme has positions for."""
        for position in cast(list[Position], [self.position, *self.other_positions]):
            limit = position.limit
            if limit is not None and length > limit + position.extent.special:
                raise too_long(position, length, limit)


def copy_streams(x: Tensor, streams: int) -> Tensor:
    """x (B, T, dim) as equal streams (B, T, streams, dim)."""
    return x.unsqueeze(-2).expand(*x.shape[:-1], streams, x.size(-1))


def tame_padding(x: Tensor, valid: Tensor) -> Tensor:
    """x (B, T, dim) with zeros where padding, False in ``valid`` (B, T), is nan or large: 0 times nan or inf is nan."""
    return torch.where(valid[..., None] | (x.abs() <= LARGEST_PADDING), x, 0.0)
