"""Gated cross-attention, put in front of the blocks of a language model that knows nothing of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.compatibility import check_supported
from zoo.models.stack import Stack
from zoo.parts.attention import Attention
from zoo.parts.block import Block, Context
from zoo.parts.cache import LayerCache
from zoo.parts.ffn import FFN
from zoo.parts.norm import Norm


class Gate(nn.Module):
    """tanh(a) x, a learned and zero at first: at the start nothing passes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Closed: zero."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """tanh(weight) x, shaped like x."""
        return self.weight.tanh() * x


class Look(nn.Module):
    """y = x + tanh(a) attention(norm(x), memory), then y + tanh(b) ffn(norm(y)) (Alayrac et al., 2022).

    Its attention, feed-forward and norms are of the same parts and sizes as those of the block it stands in front of.
    """

    def __init__(self, block: Block, norm: Norm):
        super().__init__()
        if block.attend is None or block.ffn is None:
            raise UsageError(f"block {type(block).__name__} lacks an attention or a feed-forward to look with.")
        self.attention = cast(Attention, copy.deepcopy(block.attend.part))
        self.ffn = cast(FFN, copy.deepcopy(block.ffn.part))
        self.attention_norm, self.ffn_norm = copy.deepcopy(norm), copy.deepcopy(norm)
        self.attention_gate, self.ffn_gate = Gate(), Gate()
        check_supported(self.attention, {"cross": "this model looks at images"})

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x (B, T, dim) to the same shape."""
        x = x + self.attention_gate(context.look(self.attention, self.attention_norm(x)))
        return x + self.ffn_gate(context.feed(self.ffn, self.ffn_norm(x)))


class Seeing(Block):
    """A block of a language model that looks at the memory first, where there is one."""

    def __init__(self, block: Block, norm: Norm):
        nn.Module.__init__(self)  # not Block's: its branches are those of the block within
        self.look, self.block = Look(block, norm), block

    def cache(self, capacity: int, window: int | None = None) -> LayerCache:
        """The decoding state of the block within, and that of the memory."""
        return self.block.cache(capacity, window)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x (B, T, dim) to the same shape: it looks at the images, where there are any, in front of the block."""
        return self.block(x if context.memory is None else self.look(x, context), context)


def open_eyes(stack: Stack, every: int) -> None:
    """Let block 0, every, 2 every, … of a stack look at a memory. Raises UsageError for blocks that cannot."""
    if every < 1:
        raise UsageError(f"every must be at least 1, got {every}.")
    norm = next(module for module in stack.modules() if isinstance(module, Norm))
    for number in range(0, len(stack.blocks), every):
        block = stack.blocks[number]
        assert isinstance(block, Block)
        if type(block).through.__func__ is not Block.through.__func__:  # type: ignore[attr-defined]
            raise UsageError(f"block {type(block).__name__} runs all layers at once: nothing can stand between them.")
        stack.blocks[number] = Seeing(block, norm)


def looks(stack: Stack) -> Iterator[Look]:
    """What was put into a stack."""
    return (block.look for block in stack.blocks if isinstance(block, Seeing))


def renamed(name: str, stack: Stack, prefix: str = "stack.") -> str:
    """What a tensor of the language model is called since its blocks see."""
    for number, block in enumerate(stack.blocks):
        old = f"{prefix}blocks.{number}."
        if isinstance(block, Seeing) and name.startswith(old):
            return f"{old}block.{name.removeprefix(old)}"
    return name
