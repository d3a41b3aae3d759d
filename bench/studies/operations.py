"""What one block computes, in order: the shape, work and memory traffic of every operation, and what bounds it.

Counted on the meta device: nothing is computed. An operation is bound by memory where its FLOPs per byte are fewer than
what this machine computes while it moves a byte, by computing otherwise. Every operand is counted as read and every
result as written once, as without fusion and caches; an elementwise operation is one FLOP per number, which is too few
for a softmax or a norm and decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bench.ceilings import bandwidth, matrix
from bench.study import Options, Table
from zoo.models.stack import Stack
from zoo.parts.backend import Naive
from zoo.parts.block import PreNorm
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm
from zoo.parts.position import Extent, NoPosition

DIM, HEADS, LENGTH = 768, 12, 512
FREE = ("_unsafe_view", "empty", "arange")  # no work and no traffic, though their schemas do not say so


class Operation(NamedTuple):
    """An operation: in which module, what, the shape of its result, and what it costs."""

    where: str
    name: str
    shape: tuple[int, ...]
    flops: int
    traffic: int  # bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.traffic

    def bound(self, balance: float) -> str:
        """Which resource bounds it on a machine of so many FLOPs per byte."""
        return "computing" if self.intensity >= balance else "memory"


class Recorder(TorchDispatchMode):
    """Writes every operation down that computes something or moves it: views are neither."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.inside: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        results = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        if results and not _is_view(func):
            tensors = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, Tensor)]
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=out) if count else results[0].numel()
            traffic = sum(one.nbytes for one in (*tensors, *results))
            name = func.overloadpacket.__name__.removeprefix("_")
            where = self.inside[-1] if self.inside else ""
            self.operations.append(Operation(where, name, tuple(results[0].shape), int(flops), traffic))
        return out


def _is_view(func: Any) -> bool:
    aliases = (one.alias_info for one in func._schema.arguments)
    free = func.overloadpacket.__name__ in FREE
    return free or any(alias is not None and not alias.is_write for alias in aliases)


def operations(net: nn.Module, run: Callable[[], object]) -> list[Operation]:
    """Those of ``run``, which calls ``net``, in their order."""
    with Recorder() as recorder, ExitStack() as hooks, torch.no_grad():
        for name, module in net.named_modules():
            if not name:
                continue
            enter = module.register_forward_pre_hook(lambda *_, name=name: recorder.inside.append(name))
            leave = module.register_forward_hook(lambda *_: _after_module(recorder.inside))
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        run()
    return recorder.operations


def _after_module(inside: list[str]) -> None:
    inside.pop()


def block(length: int = LENGTH, dim: int = DIM, heads: int = HEADS) -> Stack:
    """The block of the papers, without weights, in a stack of one."""
    with torch.device("meta"):
        return Stack(
            Extent((length,), causal=True), dim=dim, depth=1, heads=heads, backend=Naive, position=NoPosition,
            block=PreNorm, norm=LayerNorm, ffn=MLP,
        ).eval()  # fmt: skip


def whole(length: int = LENGTH, dim: int = DIM, heads: int = HEADS) -> list[Operation]:
    """A sequence at once, as in training."""
    net = block(length, dim, heads)
    return operations(net.blocks[0], lambda: net(torch.empty(1, length, dim, device="meta")))


def step(length: int = LENGTH, dim: int = DIM, heads: int = HEADS) -> list[Operation]:
    """The last of ``length`` tokens, the others in a cache, as in writing."""
    net = block(length, dim, heads)
    caches = net.caches(length)
    with torch.no_grad():
        net(torch.empty(1, length - 1, dim, device="meta"), caches=caches)
    return operations(net.blocks[0], lambda: net(torch.empty(1, 1, dim, device="meta"), caches=caches))


def study(options: Options) -> list[Table]:
    """A sequence of 512 tokens, and the last of them alone."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    balance = matrix(torch.float32) / bandwidth()
    tables = []
    for title, recorded in ((f"{LENGTH} tokens at once", whole()), (f"the last of {LENGTH} tokens", step())):
        table = Table(
            f"Operations of one block of width {DIM}, float32: {title}",
            ["in", "operation", "shape", "MFLOP", "MB", "FLOP per byte", "bound by"],
        )
        for one in recorded:
            shape = " × ".join(map(str, one.shape))
            costs = one.flops / 1e6, one.traffic / 1e6, one.intensity
            table.rows.append([one.where, one.name, shape, *costs, one.bound(balance)])
        table.notes.append(f"This machine computes {balance:.1f} FLOPs while it moves a byte.")
        tables.append(table)
    return tables
