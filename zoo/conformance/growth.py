"""How what is kept for the backward pass grows with length, against what a part declares."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.subject import DIM, Refused, Subject
from zoo.parts.position import Extent

SHORT, LONG = 256, 1024
MOST = {"linear": 1.25, "quadratic": 2.25}


@once
def memory_claim(subject: Subject) -> None:
    """What is kept for the backward pass grows with length as declared (``memory``: linear or quadratic)."""
    declared = str(getattr(subject.part, "memory", "quadratic"))
    require(declared in MOST, f"memory must be one of {', '.join(MOST)}, got {declared!r}.")
    sizes = [saved_bytes(subject, length) for length in (SHORT, LONG)]
    exponent = math.log(sizes[1] / sizes[0]) / math.log(LONG / SHORT)
    require(
        exponent <= MOST[declared],
        f"declared {declared}, yet what it keeps grows with length to the power {exponent:.2f} "
        f"({sizes[0] / 2**20:.1f} MB at {SHORT}, {sizes[1] / 2**20:.1f} MB at {LONG}).",
    )


def saved_bytes(subject: Subject, length: int) -> int:
    """Bytes that one training step of a layer keeps for its backward pass."""
    net = None
    for extent in (Extent((length,), causal=True), Extent((length,))):
        try:
            net = subject.stack(extent).train()
            break
        except Refused as refusal:
            reason = str(refusal)
    if net is None:
        raise Inapplicable(f"it refuses: {reason}")
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(torch.randn(1, length, DIM, requires_grad=True))
    return sum(storages.values())
