"""What one block computes, in order: the shape, work and memory traffic of every operation, and what bounds it.

Counted on the meta device by `zoo.explain.trace`, as `zoo explain` does: nothing is computed.
"""

from __future__ import annotations

import os

import torch

from bench.study import Options, Table
from zoo.explain.ceilings import measure
from zoo.explain.trace import Operation, trace
from zoo.models.stack import Stack
from zoo.parts.backend import Naive
from zoo.parts.block import PreNorm
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm
from zoo.parts.position import Extent, NoPosition

DIM, HEADS, LENGTH = 768, 12, 512


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
    x = torch.empty(1, length, dim, device="meta")
    return trace(net.blocks[0], call=lambda: net(x)).operations


def step(length: int = LENGTH, dim: int = DIM, heads: int = HEADS) -> list[Operation]:
    """The last of ``length`` tokens, the others in a cache, as in writing."""
    net = block(length, dim, heads)
    caches = net.caches(length)
    with torch.no_grad():
        net(torch.empty(1, length - 1, dim, device="meta"), caches=caches)
    x = torch.empty(1, 1, dim, device="meta")
    return trace(net.blocks[0], call=lambda: net(x, caches=caches)).operations


def study(options: Options) -> list[Table]:
    """A sequence of 512 tokens, and the last of them alone."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    ceilings = measure()
    tables = []
    for title, recorded in ((f"{LENGTH} tokens at once", whole()), (f"the last of {LENGTH} tokens", step())):
        table = Table(
            f"Operations of one block of width {DIM}, float32: {title}",
            ["in", "operation", "shape", "MFLOP", "MB", "FLOP per byte", "bound by"],
        )
        for one in recorded:
            shape = " × ".join(map(str, one.shape))
            costs = one.flops / 1e6, one.traffic / 1e6, one.intensity
            table.rows.append([one.module, one.name, shape, *costs, ceilings.bound(one)])
        table.notes.append(f"This machine computes {ceilings.balance:.1f} FLOPs while it moves a byte.")
        tables.append(table)
    return tables
