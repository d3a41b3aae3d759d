"""A decoding step of a few tokens, for stacks of common parts, without what only other calls need.

A step reads all weights once, which leaves no cache for the interpreter: looking up modules, patterns and options takes
as long as a third of the products do. Here they are looked up once per text. The operations and their order are those
of ``Stack.forward``, and so are the numbers; a stack with any other part takes that way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.parts.attention import MultiHead
from zoo.parts.backend import SDPA
from zoo.parts.block import Branch, PreNorm, is_altered
from zoo.parts.cache import Cache, Caches, PartState
from zoo.parts.derivatives import transformed
from zoo.parts.few_row_linear import FEW, Linear, linear, uses_torch_kernel
from zoo.parts.ffn import ACTIVATIONS, MLP, Gated
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Position, RoPE

if TYPE_CHECKING:
    from zoo.models.stack import Stack

Function = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Caches], Tensor]
Layer = Callable[[Tensor, PartState, list[Any], Pattern | None], Tensor]


def step_of(stack: Stack, x: Tensor, caches: Caches) -> Step | None:
    """The function that takes embeddings x (B, T, dim) and the caches of a stack to its states (B, T, dim), or None
    where ``Stack.forward`` has to compute them. It is made once for each B and T of a text's caches.
    """
    if (
        x.size(0) * x.size(1) > FEW
        or x.is_meta  # which has no autocast to ask for
        or torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled(x.device.type)
        or type(x) is not Tensor
        or stack.training
        or transformed()
    ):
        return None
    key = *x.shape[:2], x.dtype, x.device
    if key not in caches.steps:
        caches.steps[key] = _make_step(stack, x, caches)
    return caches.steps[key]


def _make_step(stack: Stack, x: Tensor, caches: Caches) -> Step | None:
    """A step for x (B, T, dim) through blocks of common parts alone, otherwise None."""
    if any(module.training or is_altered(module) for module in stack.modules()):
        return None
    if any(parameter.dtype != x.dtype or parameter.device != x.device for parameter in stack.parameters()):
        return None
    parts = (getattr(getattr(block, "attend", None), "part", None) for block in stack.blocks)
    widths = [getattr(part, "head_dim", 0) for part in parts]
    turns = list(zip(stack.positions, widths, strict=True))  # what layers have in common that turn alike
    slots, tokens = list(dict.fromkeys(turns)), x.size(1)
    optional = [
        _layer(block, turn[0], slots.index(turn), cache.own, len(x), tokens)
        for block, turn, cache in zip(stack.blocks, turns, caches, strict=True)
        if cache.block is None
    ]
    layers = [layer for layer in optional if layer is not None]
    if len(layers) < len(stack.blocks):
        return None
    position, special = stack.position, stack.position.extent.special
    entry = None if type(stack.entry) is nn.Identity else _norm(stack.entry)
    last = _norm(stack.norm)

    def step(x: Tensor, caches: Caches) -> Tensor:
        offset = caches.length
        stack.check_length(offset + tokens)
        place = torch.arange(offset - special, offset - special + tokens, device=x.device)
        x = position.embed(x, place)
        if entry is not None:
            x = entry(x)
        shared: list[Any] = [place] * len(slots)  # by layers that turn alike: the place, or its cosines and sines
        patterns: dict[Any, Pattern | None] = {}  # equal ones are shared; a single token sees all that is cached
        for layer, cache, window, scheme in zip(layers, caches, stack.windows, stack.positions, strict=True):
            view = cache.own.start, window, scheme
            if view not in patterns:
                patterns[view] = None if tokens == 1 else stack.pattern(None, offset, *view[:2], None, scheme)
            x = layer(x, cache.own, shared, patterns[view])
        caches.length = offset + tokens
        return last(x)

    return step


def _layer(block: nn.Module, scheme: Position, number: int, cache: PartState, texts: int, tokens: int) -> Layer | None:
    """x + attention(norm(x)), and the same with the feed-forward: of a block of common parts, None for any other."""
    if type(block) is not PreNorm or block.scale != 1 or type(cache) is not Cache or block.cross is not None:
        return None
    if not isinstance(block.attend, Branch) or not isinstance(block.ffn, Branch):
        return None
    attend = _attention(block.attend.part, scheme, number, texts, tokens)
    if attend is None:
        return None
    attention_norm, ffn_norm = _norm(block.attend.norm), _norm(block.ffn.norm)
    feed = _feed(block.ffn.part, texts * tokens)

    def layer(x: Tensor, cache: PartState, shared: list[Any], pattern: Pattern | None) -> Tensor:
        x = x + attend(attention_norm(x), cache, shared, pattern)
        return x + feed(ffn_norm(x))

    return layer


def _attention(part: nn.Module, scheme: Position, number: int, texts: int, tokens: int) -> Layer | None:
    """Attention of new tokens, some in each text, to all tokens in a cache."""
    if type(part) is not MultiHead or type(part.backend) is not SDPA or scheme.biases:
        return None
    if any(type(norm) is not nn.Identity for norm in (part.query_norm, part.key_norm)):
        return None
    if type(scheme).rotate_keys is not Position.rotate_keys:
        return None
    rotate = _rotation(scheme, number)
    fused, out = (_product(matrix, texts * tokens) for matrix in (part.qkv, part.out))
    heads, groups, width = part.heads, part.kv_heads, part.head_dim
    shape, sizes = (texts, tokens, heads + 2 * groups, width), [heads, groups, groups]
    backend, scale = part.backend, part.scale
    options: dict[str, Any] = {"scale": scale, "enable_gqa": heads != groups}

    def attend(x: Tensor, cache: PartState, shared: list[Any], pattern: Pattern | None) -> Tensor:
        projected = fused(x).view(shape).transpose(1, 2)
        if rotate is None:
            q, k, v = projected.split(sizes, 1)
        else:
            turned, v = projected.split([heads + groups, groups], 1)
            q, k = rotate(turned, shared).split([heads, groups], 1)
        k, v = cast(Cache, cache).extend(k, v)
        if pattern is None:
            mixed = F.scaled_dot_product_attention(q, k, v, **options)
        else:
            mixed = backend(q, k, v, pattern, scale=scale)
        return out(mixed.transpose(1, 2).reshape(texts, tokens, heads * width))

    return attend


def _rotation(scheme: Position, number: int) -> Callable[[Tensor, list[Any]], Tensor] | None:
    """What turns queries and keys (B, H, T, D); layers with one RoPE share its cosines and sines."""
    if not scheme.rotates:
        return None
    if type(scheme).rotate is not RoPE.rotate:
        return lambda x, shared: scheme.rotate(x, shared[number])
    rope = cast(RoPE, scheme)

    def rotate(x: Tensor, shared: list[Any]) -> Tensor:
        if type(shared[number]) is Tensor:
            shared[number] = rope.waves(shared[number], x.size(-1), x.dtype)
        return rope.turn(x, *shared[number])

    return rotate


def _norm(part: nn.Module) -> Function:
    """A norm of x (..., dim), or what stands in its place."""
    if type(part) is LayerNorm:
        shape, weight, bias, eps = (part.dim,), part.weight, part.bias, part.eps
        return lambda x: F.layer_norm(x, shape, weight, bias, eps)
    if type(part) is RMSNorm and part.weight.dtype is torch.float32 and not part.offset:
        shape, weight, eps = (part.dim,), part.weight, part.eps
        return lambda x: F.rms_norm(x, shape, weight, eps)
    return part.forward


def _feed(part: nn.Module, rows: int) -> Function:
    """A feed-forward of x (B, T, dim), B T rows."""
    if type(part) is MLP:
        up, down, act = _product(part.up, rows), _product(part.down, rows), ACTIVATIONS[part.activation]
        return lambda x: down(act(up(x)))
    if isinstance(part, Gated) and type(part).forward is Gated.forward:
        both, down, gate = _product(part.up, rows), _product(part.down, rows), part.gate

        def feed(x: Tensor) -> Tensor:
            gate_input, value = both(x).chunk(2, -1)
            return down(gate(gate_input) * value)

        return feed
    return part.forward


def _product(part: nn.Module, rows: int) -> Function:
    """The product of a linear layer for x (B, T, in), B T rows."""
    if type(part) is not Linear:
        return part.forward
    weight, bias = part.weight, part.bias
    kernel = F.linear if uses_torch_kernel(rows, weight) else linear
    return lambda x: kernel(x, weight, bias)
