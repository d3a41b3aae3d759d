"""Blocks whose inputs follow from their outputs, so that a stack keeps no activations but its last."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from zoo.parts.block import Block, Branch, Call, Context
from zoo.parts.derivatives import first_derivatives_only
from zoo.parts.ffn import OwnsLoss, leave_loss, losses_apart
from zoo.parts.recompute import without_traces
from zoo_efficient.precision import widened


class Reversible(Block):
    """Two streams, x1 = x2 = x: y1 = x1 + attention(norm(x2)), y2 = x2 + ffn(norm(y1)); a stack gives the mean of its
    last two (Gomez et al., 2017; Kitaev et al., 2020).

    Each branch reads one stream and is added to the other, (a, b) to (b, a + f(b)); a cross-attention is one more
    branch between the two. The backward pass finds the inputs again, a = c - f(b), with the random numbers and the
    autocast of the forward pass. Streams are at least float32. There are no second derivatives, and torch.compile
    leaves the stack as it is.
    """

    packs = True
    known_failures: ClassVar[dict[str, str]] = {"compiles": "torch.compile skips it: its backward pass runs modules"}

    def forward(self, x, context):
        """x (B, T, dim) to the same shape."""
        return self.through([self], x, [context])

    @classmethod
    @torch.compiler.disable
    def through(cls, blocks: Sequence[Block], x: Tensor, contexts: Sequence[Context]) -> Tensor:
        """x (B, T, dim) through all blocks to the same shape; two streams and no other activation are saved."""
        cast = autocast_of(x)
        steps = [
            Step(branch, call, context, x.dtype, cast)
            for block, context in zip(blocks, contexts, strict=True)
            for branch, call in block.steps(context)
        ]
        wide = widened(x)
        leaves = list({id(leaf): leaf for step in steps for leaf in step.leaves}.values())
        caches = any(context.cache is not None for context in contexts)  # what is cached must not be cached again
        if torch.is_grad_enabled() and not caches and any(leaf.requires_grad for leaf in (x, *leaves)):
            a, b, *sides = Run.apply(steps, wide, *leaves)
            owners = [owner for step in steps for owner in step.owners]
            for owner, side in zip(owners, sides, strict=True):
                leave_loss(owner, side)
        else:
            a = b = wide
            for step in steps:
                a, b = b, a + step(b)
        return ((a + b) / 2).to(x.dtype)


@dataclass(eq=False)
class Step:
    """One branch in one forward, and what it takes to run it again."""

    branch: Branch
    call: Call
    context: Context
    dtype: torch.dtype
    cast: Callable[[], AbstractContextManager]
    owners: list[OwnsLoss] = field(default_factory=list)  # parts that left a side loss
    leaves: list[Tensor] = field(init=False)  # what gets a gradient besides the stream
    state: tuple[Tensor, Tensor | None] = field(init=False)  # of the random numbers of CPU and GPU

    def __post_init__(self) -> None:
        self.leaves = self.trainable_tensors()

    def __call__(self, x: Tensor) -> Tensor:
        """What is added to the other stream."""
        branch = self.branch
        return branch.dropout(self.call(self.context, branch.part, branch.norm(x.to(self.dtype))))

    def trainable_tensors(self) -> list[Tensor]:
        """Parameters of the branch and of the position scheme, and the memory, of any shape, as they are now."""
        context = self.context
        tensors: list[Tensor] = list(self.branch.parameters())
        if context.position is not None:
            tensors += context.position.parameters()
        if context.memory is not None:
            tensors.append(context.memory.states)
        return [tensor for tensor in tensors if tensor.requires_grad]

    def record(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The branch of x (B, T, dim), shaped like x, without a graph, and auxiliary losses (); called once."""
        self.state = torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if x.is_cuda else None
        with losses_apart(self.branch) as owners, self.cast():
            out = self(x)
            self.owners = [owner for owner in owners if owner.aux_loss is not None]
            return out, [owner.aux_loss for owner in self.owners if owner.aux_loss is not None]

    def again(self, x: Tensor) -> list[Tensor]:
        """The branch of x (B, T, dim), the same shape, and the auxiliary losses, each (), with a graph.

        Random numbers, buffers and auxiliary losses stay as they are.
        """
        if [*map(id, self.trainable_tensors())] != [*map(id, self.leaves)]:
            raise RuntimeError("block Reversible runs again in backward(), and its parameters have been replaced.")
        if self.context.pattern.bias is not None:  # a pattern remembers its bias, which so far has no graph
            self.context = self.context._replace(pattern=replace(self.context.pattern))
        host, device = self.state
        forked = torch.random.fork_rng([x.device] if x.is_cuda else [])
        with forked, without_traces(self.branch), self.cast(), torch.enable_grad():
            torch.set_rng_state(host)
            if device is not None:
                torch.cuda.set_rng_state(device, x.device)
            out = self(x)
            return [out, *(owner.aux_loss for owner in self.owners if owner.aux_loss is not None)]


class Run(torch.autograd.Function):
    """All steps, from x to both streams and the side losses; keeps the two streams and no other activation."""

    @staticmethod
    def forward(ctx, steps, x, *leaves):
        """x (B, T, dim) to both streams, each shaped like x, and the auxiliary losses."""
        a, b, sides = x, x, []
        for step in steps:
            out, side_losses = step.record(b)
            a, b = b, a + out
            sides += side_losses
        ctx.steps, ctx.numbers = steps, {id(leaf): number for number, leaf in enumerate(leaves)}
        ctx.save_for_backward(a, b)
        return a, b, *sides

    @staticmethod
    @first_derivatives_only("block Reversible")
    def backward(ctx, grad_a, grad_b, *grad_sides):
        """The gradients of x and of the leaves; each step is inverted and run again."""
        (a, b), sides, grads = ctx.saved_tensors, list(grad_sides), [None] * len(ctx.numbers)
        for step in reversed(ctx.steps):
            x = a.detach().requires_grad_()
            outs = step.again(x)
            out_grads = [grad_b, *reversed([sides.pop() for _ in step.owners])]
            pairs = [(out, grad.to(out.dtype)) for out, grad in zip(outs, out_grads, strict=True) if out.requires_grad]
            ends, slopes = zip(*pairs, strict=True)
            felt, *leaf_grads = torch.autograd.grad(ends, [x, *step.leaves], slopes, allow_unused=True)
            for leaf, grad in zip(step.leaves, leaf_grads, strict=True):
                if grad is not None:
                    number = ctx.numbers[id(leaf)]
                    grads[number] = grad if grads[number] is None else grads[number] + grad
            a, b = b - outs[0].detach(), a
            grad_a, grad_b = grad_b, grad_a if felt is None else grad_a + felt
        return None, grad_a + grad_b, *grads


def autocast_of(x: Tensor) -> Callable[[], AbstractContextManager]:
    """Makes the autocast that is on for the device of x, without its cache, which would keep weights without graph."""
    device = x.device.type
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return partial(torch.autocast, device, dtype=dtype, enabled=enabled, cache_enabled=False)
