"""The contract of a block: every branch contributes, the residual stream is preserved, no information leaks."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import nn

from zoo.conformance.check import Inapplicable, in_situations, require
from zoo.conformance.parameter_checks import WEIGHTS
from zoo.conformance.run_checks import memory_claim
from zoo.conformance.sequence_checks import CAUSAL, SEQUENCE, learns_two_samples, no_token_is_special, pad
from zoo.conformance.short_training import TASKS
from zoo.conformance.subject import BlockSubject
from zoo.conformance.token_checks import COMMON, difference, reference, stack_on
from zoo.models.initialization import initialize
from zoo.models.stack import Stack
from zoo.parts.attention import Attention
from zoo.parts.block import SLOTS, Memory
from zoo.parts.ffn import FFN, MLP, leave_loss
from zoo.parts.position import ALiBi, Extent, RoPE


def uses(subject: BlockSubject, slot: str) -> bool:
    """Whether the block uses the part of a slot: attention, cross or ffn."""
    return slot in getattr(subject.part, "slots", SLOTS)


def branches(subject: BlockSubject) -> list[tuple[str, type, bool | None]]:
    """Those of BRANCHES whose part the block uses."""
    slots = ("attention", "cross", "ffn")
    return [branch for slot, branch in zip(slots, BRANCHES, strict=True) if uses(subject, slot)]


BRANCHES: list[tuple[str, type, bool | None]] = [
    ("attention", Attention, False),
    ("cross-attention", Attention, True),
    ("feed-forward", FFN, None),
]


def silenced(net: Stack, kind: type, cross: bool | None = None, factor: float = 0.0) -> Stack:
    """The stack with the last matrix of some parts at zero, or times a factor: their branches give little."""
    with torch.no_grad():
        for name, module in net.named_modules():
            if isinstance(module, kind) and (cross is None or ("cross" in name) == cross):
                last = module.out if isinstance(module, Attention) else cast(MLP, module).down
                for parameter in last.parameters():
                    parameter.mul_(factor)
    return net


@in_situations("options")
def every_branch_counts(subject: BlockSubject) -> None:
    """Attention, cross-attention and feed-forward each change the result, and each is run once per pass."""
    x, states = subject.tokens(), subject.tokens(2, 5)
    looks = uses(subject, "cross")
    memory = Memory(states) if looks else None
    whole = subject.stack(CAUSAL, cross=looks, depth=2)(x, memory=memory)
    for sentence, kind, cross in branches(subject):
        out = silenced(subject.stack(CAUSAL, cross=looks, depth=2), kind, cross)(x, memory=memory)
        require(difference(out, whole) > 1e-6, f"the {sentence} changes nothing: its branch is not added.")
    net, runs = subject.stack(CAUSAL, cross=looks, depth=2), []
    for name, module in net.named_modules():
        if isinstance(module, (Attention, MLP)):
            module.register_forward_hook(lambda *args, name=name: runs.append(name))
    net(x, memory=memory)
    count = 2 * len(branches(subject))
    sentence = f"in a stack of two blocks {len(runs)} parts ran instead of {count}, each once: {', '.join(runs)}"
    message = f"{sentence}. Run attention, cross-attention and feed-forward of each block that has them in slots."
    require(len(runs) == len(set(runs)) == count, message)


@in_situations("options")
def the_stream_is_kept(subject: BlockSubject) -> None:
    """With branches that give nothing, a token still tells what it was: there is a residual path."""
    net = stack_on(subject, CAUSAL, depth=2)
    silenced(silenced(net, Attention), FFN)
    x = subject.tokens(1, 5)
    out = net(x)
    require(bool(out.isfinite().all()), "without branches the stream is not finite.")
    require(out.std().item() > 1e-3, "without branches nothing is left of a token: add the branch to its input.")
    a, b = out[0, 0], net(-x)[0, 0]
    message = "without branches two different tokens come out alike: add the branch to its input."
    require(difference(a, b) > 1e-3, message)
    if getattr(subject.part, "closes", True):
        net.norm = nn.Identity()
        growth = net(100 * x).std().item() / net(x).std().item()
        require(
            growth > 5,
            f"without branches tokens a hundred times as large come out {growth:.1f} times as large: the stream is "
            "normalised. Add branches to the stream itself, or set closes = False, since the stack normalises its end.",
        )


@in_situations("options")
def context_is_passed_on(subject: BlockSubject) -> None:
    """Attention gets the position scheme and its bias; a feed-forward that wants real tokens gets no padding."""
    x = subject.tokens(16, 6)  # a block that selects tokens computes the last one of some rows
    swap = x[:, [1, 0, 2, 3, 4, 5]]
    schemes = (("the position scheme", RoPE), ("the bias of a position scheme", ALiBi))
    for sentence, position in schemes if uses(subject, "attention") else ():
        net = stack_on(subject, CAUSAL, position=position)
        change = difference(net(swap)[:, -1], net(x)[:, -1])
        require(change > 1e-6, f"{sentence} does not reach attention: call it by context.attend(part, x).")
    shapes: list[tuple[int, ...]] = []

    class Counts(MLP):
        real_tokens = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(x.shape[:-1]))
            return super().forward(x)

    if not uses(subject, "ffn"):
        return
    net = stack_on(subject, CAUSAL, ffn=Counts)
    net(*pad([subject.tokens(1, 6), subject.tokens(1, 4)], True, 1.0))
    sentence = f"a feed-forward that wants the 10 real tokens of two rows of 7 gets {shapes}"
    some = not getattr(subject.part, "computes_all", True) and len(shapes) == 1 and len(shapes[0]) == 1
    fine = shapes == [(10,)] or (some and shapes[0][0] < 10)
    require(fine, f"{sentence}: call it by context.feed(part, x).")


@in_situations("options")
def parts_are_those_given(subject: BlockSubject) -> None:
    """The attention and the feed-forward that a stack gives are in the block, where they can be watched."""
    net = subject.stack(CAUSAL, cross=uses(subject, "cross"), depth=2)
    attentions, count = net.attentions(), 2 * (uses(subject, "attention") + uses(subject, "cross"))
    require(len(attentions) == count, f"two blocks hold {len(attentions)} attentions, not {count}.")
    feeds, count = [module for module in net.modules() if isinstance(module, FFN)], 2 * uses(subject, "ffn")
    require(len(feeds) == count, f"two blocks hold {len(feeds)} feed-forwards, not {count}.")


@in_situations("options")
def side_losses_survive(subject: BlockSubject) -> None:
    """The side loss of a feed-forward still has a gradient after the stack has run."""

    if not uses(subject, "ffn"):
        raise Inapplicable("it has no feed-forward")

    class AddsSideLoss(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            leave_loss(self, out.square().mean())
            return out

    net = subject.stack(CAUSAL, ffn=AddsSideLoss, depth=2).train()
    out = net(subject.tokens())
    losses = [m.aux_loss for m in net.modules() if isinstance(m, FFN)]
    require(all(loss is not None for loss in losses), "a feed-forward's side loss is lost.")
    (out.sum() * 0 + sum(loss for loss in losses if loss is not None)).backward()
    feeds = [m for m in net.modules() if isinstance(m, FFN)]
    grads = [any(p.grad is not None and bool(p.grad.any()) for p in feed.parameters()) for feed in feeds]
    require(all(grads), "a feed-forward's side loss has no gradient.")


@in_situations("options")
def dropout(subject: BlockSubject) -> None:
    """Dropout falls on every branch in training, and on none in evaluation."""
    net = stack_on(subject, CAUSAL, dropout=0.5)
    x = subject.tokens()
    reference = net(x)
    require(torch.equal(net(x), reference), "dropout is on in evaluation.")
    drops = [m for m in net.modules() if isinstance(m, nn.Dropout) and m.p == 0.5]
    least = 1 + uses(subject, "attention") + uses(subject, "ffn")
    require(len(drops) >= least, f"a block with dropout=0.5 holds {len(drops) - 1} dropouts, fewer than its branches.")
    ran: list[int] = []
    for drop in drops:
        drop.register_forward_hook(lambda module, *args: ran.append(id(module)))
    net.train()(x)
    require(len(set(ran)) == len(drops), "a dropout is made and never used.")
    initialize(net)
    silenced(silenced(net, Attention), FFN)
    net.dropout.p = 0.0  # dropout of the embedding
    gap = difference(net.train()(x), net.eval()(x))
    require(gap <= 1e-6, "without branches dropout changes tokens: it falls on the stream itself, not on branches.")


@in_situations("options")
def dropout_on_average(subject: BlockSubject) -> None:
    """A branch with dropout gives on average what it gives without, whichever branch it is."""
    looks, x = uses(subject, "cross"), subject.tokens(64, 5, torch.float64)
    memory = Memory(subject.tokens(64, 5, torch.float64)) if looks else None
    for description, kind, cross in branches(subject):
        # a causal block that selects tokens does so by another rule in training
        extent = CAUSAL if getattr(subject.part, "computes_all", True) else Extent(CAUSAL.sizes)
        net = subject.stack(extent, cross=looks, dropout=0.5).double()
        net.norm, net.dropout.p = nn.Identity(), 0.0
        for branch, place in ((branch, place) for _, branch, place in BRANCHES if (branch, place) != (kind, cross)):
            silenced(net, branch, place)
        silent = silenced(copy.deepcopy(net), kind, cross)(x, memory=memory)
        silenced(net, kind, cross, 1e-3)  # so small that what is behind the branch is linear in it
        whole = net(x, memory=memory) - silent
        net.train()
        draws = [net(x, memory=memory).detach() - silent for _ in range(DRAWS)]
        share = ((torch.stack(draws).mean(0) * whole).sum() / whole.square().sum()).item()
        require(
            0.9 <= share <= 1.1,
            f"with dropout=0.5 the {description} gives on average {share:.2f} times what it gives without: what is "
            "kept is divided by 1 - rate, once.",
        )


DRAWS = 40
PROMISES = [*COMMON, reference, every_branch_counts, the_stream_is_kept, context_is_passed_on, parts_are_those_given,
            side_losses_survive, dropout, dropout_on_average, no_token_is_special, memory_claim, *SEQUENCE,
            learns_two_samples, *WEIGHTS, *TASKS]  # fmt: skip
