"""Checks of how a part runs: recomputed, compiled, in many layers, in several processes, and its memory use."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.conformance.check import Broken, Inapplicable, once, require
from zoo.conformance.subject import DIM, SHORT_AND_LONG, Refused, Subject
from zoo.conformance.token_checks import any_layer, build_part, difference, need_parameters, stack_on
from zoo.console import format_bytes
from zoo.models.initialization import initialize
from zoo.models.stack import Stack
from zoo.parts.position import Extent
from zoo.system.torch_internals import raised_by_compiler


def activation_checkpointing(subject: Subject) -> None:
    """Computed again in the backward pass, with the same random numbers, it has the same gradients."""
    layer = any_layer(subject, dropout=0.3).train()
    for length in SHORT_AND_LONG:
        x = subject.tokens(2, length).requires_grad_()
        results = []
        for again in (False, True):
            torch.manual_seed(3)
            layer.zero_grad()
            out = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            grads = torch.autograd.grad(
                (out**2).sum(), [x, *(p for p in layer.parameters() if p.requires_grad)], allow_unused=True
            )
            results.append((out, [g for g in grads if g is not None]))
        (output, gradients), (output_again, gradients_again) = results
        require(difference(output_again, output) <= 1e-6, "with activation checkpointing the output differs.")
        fine = all(difference(b, a) <= 1e-5 for a, b in zip(gradients, gradients_again, strict=True))
        require(fine, "with activation checkpointing gradients differ: random numbers from a generator of its own?")


@once
def compiles(subject: Subject) -> None:
    """torch.compile takes it as one graph, for several lengths, and it computes the same."""
    layer = any_layer(subject)
    torch.compiler.reset()
    try:
        fast = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=None)
        for length in (7, 5, 9):
            x = subject.tokens(2, length)
            try:
                out = fast(x)
            except Exception as error:
                if not raised_by_compiler(error):
                    raise
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                raise Broken(f"torch.compile breaks its graph: {lines[0] if lines else error!r}") from error
            require(difference(out, layer(x)) <= 1e-5, f"compiled, it gives other numbers at length {length}.")
    finally:
        torch.compiler.reset()


@once
def signals_keep_their_size(subject: Subject) -> None:
    """At initialisation a signal keeps its size within 0.05 to 5, or a branch is shut; gradients survive 12 blocks."""
    try:
        net = subject.stack(depth=12)
    except Refused:
        raise Inapplicable("it cannot be stacked by itself") from None
    initialize(net, 0)
    layer = any_layer(subject)
    initialize(layer, 0)
    if isinstance(layer, Stack):
        layer.norm = nn.Identity()  # it would hide the size
    size = layer(subject.tokens(8, 16)).std().item()
    message = f"a unit signal comes out with standard deviation {size:.2g}: scale the initial weights."
    shut = size == 0 and subject.kind == "ffn"  # what is added to the stream may start at zero
    require(shut or 0.05 <= size <= 5, message)
    x = subject.tokens(4, 16).requires_grad_()
    (net(x) * torch.randn(4, 16, x.size(-1))).sum().backward()

    def gradient(number: int, least: int) -> float:
        """Root mean square over the parameters of a block that have at least so many dimensions."""
        grads = [
            p.grad.square().mean()
            for n, p in net.named_parameters()
            if f"blocks.{number}." in n and p.grad is not None and p.dim() >= least
        ]
        require(bool(grads), f"no gradient reaches block {number} of 12.")
        return torch.stack(grads).mean().sqrt().item()

    # behind a gain that starts at zero (ReZero) all matrices wait for the first step: there the gains are compared
    least = 2 if gradient(0, 2) or gradient(11, 2) else 0
    ratio = gradient(0, least) / max(gradient(11, least), 1e-30)
    require(
        1e-2 <= ratio <= 1e2,
        f"gradients of the first of 12 blocks are {ratio:.1e} times those of the last: scale the initial weights, and "
        "keep a path around the part.",
    )


@once
def processes_agree(subject: Subject) -> None:
    """Two processes that share a batch (DDP) learn what one learns."""
    from zoo.conformance.two_processes import descend, together

    layer = build_part(subject) if subject.kind in ("norm", "ffn") else any_layer(subject)
    need_parameters(layer)
    x = subject.tokens(4, 6)
    target = torch.randn_like(x)
    alone = copy.deepcopy(layer).train()
    state = torch.get_rng_state()
    alone(x)
    if not torch.equal(torch.get_rng_state(), state):
        raise Inapplicable("it draws random numbers in training, other ones in each process")
    alone = copy.deepcopy(layer).train()
    descend(alone, x, target)
    shared = together(layer, x, target)
    for name, parameter in alone.named_parameters():
        gap = difference(shared[name], parameter.detach())
        require(gap <= 1e-5, f"after three steps {name} differs by {gap:.1e} between one process and two.")


RUNNING = [activation_checkpointing, compiles, signals_keep_their_size, processes_agree]


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
        f"({format_bytes(sizes[0])} at {SHORT}, {format_bytes(sizes[1])} at {LONG}).",
    )


def saved_bytes(subject: Subject, length: int) -> int:
    """Bytes that one training step of a layer keeps for its backward pass."""
    net = stack_on(subject, Extent((length,), causal=True), Extent((length,))).train()
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(torch.randn(1, length, DIM, requires_grad=True))
    return sum(storages.values())
