"""Promises of parts through which tokens see each other: causality, padding, decoding, order, length."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from zoo.conformance.check import Broken, Inapplicable, once, require, tried
from zoo.conformance.common import any_layer, apart, built, takes_padding
from zoo.conformance.subject import LENGTH, Refused, Subject
from zoo.errors import UsageError
from zoo.models.init import initialise
from zoo.models.stack import Stack
from zoo.parts.block import Memory
from zoo.parts.position import Extent

CAUSAL = Extent((LENGTH,), causal=True)


def stacked(subject: Subject, **options: object) -> Stack:
    """A causal stack. Raises Inapplicable where the part refuses."""
    try:
        return subject.stack(CAUSAL, **options)
    except Refused as refusal:
        raise Inapplicable(f"it refuses: {refusal}") from refusal


def causality_by_perturbation(subject: Subject) -> None:
    """In a causal stack no token changes when later ones do."""
    layer, x = built(subject, causal=True), subject.tokens(1, 9)
    whole = layer(x)
    for t in range(9):
        other = x.clone()
        other[:, t + 1 :] = 1e3 * torch.randn_like(other[:, t + 1 :])
        gap = apart(layer(other)[:, : t + 1], whole[:, : t + 1])
        require(gap <= 1e-6, f"tokens up to {t} change by {gap:.1e} when later ones do: they see the future.")


def causality_by_gradient(subject: Subject) -> None:
    """In a causal stack a token's gradient is exactly zero for later tokens, and not for earlier ones it may see."""
    layer = built(subject, causal=True).double()
    x = subject.tokens(1, 8, torch.float64).requires_grad_()
    out = layer(x)
    reached = torch.zeros(8, 8, dtype=torch.bool)
    for t in range(8):
        (grad,) = torch.autograd.grad((out[0, t] * torch.linspace(-1, 2, out.size(-1))).sum(), x, retain_graph=True)
        reached[t] = grad[0].abs().sum(-1) > 0
    future = reached.triu(1).nonzero().tolist()
    require(
        not future, f"token {future[0][0] if future else 0} depends on a later one, {future[:3]}: it sees the future."
    )
    require(bool(reached.diagonal().all()), "a token does not depend on itself: is its input detached?")
    if not getattr(subject.part, "sees_all", True):
        return
    missing = (~reached).tril(-1).nonzero().tolist()
    require(not missing, f"token {missing[0] if missing else ''} (query, key) should see an earlier one and does not.")


def padding(subject: Subject) -> None:
    """Padding on the left or on the right, whatever it holds, changes no real token."""
    tried = 0
    for causal in (False, True):
        try:
            layer = subject.layer(causal)
        except Refused:
            continue
        if not takes_padding(layer):
            continue
        tried += 1
        rows = [subject.tokens(1, length) for length in (6, 4)]
        for left in (True, False):
            for rubbish in (0.0, 1e3):
                x, valid = pad(rows, left, rubbish)
                out = layer(x, valid)
                for number, row in enumerate(rows):
                    gap = apart(out[number][valid[number]], layer(row)[0])
                    side = "left" if left else "right"
                    told = f"padding on the {side}{', causal' if causal else ''}"
                    require(
                        gap <= 1e-5,
                        f"{told}: a real token differs by {gap:.1e} from the same sequence without padding. "
                        "Mask padding before the softmax, and take positions as they are given.",
                    )
    if not tried:
        raise Inapplicable("it does not lower valid")


def pad(rows: list[Tensor], left: bool, rubbish: float, width: int = 7) -> tuple[Tensor, Tensor]:
    """Rows (1, T, dim) as one batch, and which tokens are real."""
    x = rubbish * torch.randn(len(rows), width, rows[0].size(-1), dtype=rows[0].dtype)
    valid = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(width - row.size(1), width) if left else slice(0, row.size(1))
        x[number, place], valid[number, place] = row[0], True
    return x, valid


def decoding(subject: Subject) -> None:
    """Token by token and in chunks, with a cache, a causal stack gives what one pass gives."""
    net, x = stacked(subject, depth=2), subject.tokens(2, 9)
    whole = net(x)
    for sizes in ((1,) * 9, (4, 1, 3, 1), (8, 1)):
        caches, begin, steps = net.caches(9), 0, []
        for size in sizes:
            steps.append(net(x[:, begin : begin + size], caches=caches))
            begin += size
        gap = apart(torch.cat(steps, 1), whole)
        require(
            gap <= 1e-5,
            f"decoded in steps of {sizes} it differs by {gap:.1e} from one pass. Queries stand at pattern.offset, keys "
            "at pattern.start: use positions as they are given, never count tokens.",
        )


def decoding_reordered(subject: Subject) -> None:
    """Rows of a cache can be reordered and dropped in the middle of decoding, as beam search does."""
    net, x = stacked(subject, depth=2), subject.tokens(3, 7)
    caches = net.caches(7)
    net(x[:, :5], caches=caches)
    order = torch.tensor([2, 0])
    for cache in caches:
        cache.own.select(order)
        cache.memory.select(order)
    out = net(x[order, 5:], caches=caches)
    gap = apart(out, net(x)[order, 5:])
    require(gap <= 1e-5, f"after rows were reordered it differs by {gap:.1e}: keep nothing per row outside the cache.")


def decoding_padded(subject: Subject) -> None:
    """Prompts of different lengths, padded on the left, decode as each does alone."""
    net = stacked(subject, depth=2)
    if not takes_padding(net):
        raise Inapplicable("it does not lower valid")
    rows = [subject.tokens(1, length) for length in (6, 4)]
    x, valid = pad(rows, left=True, rubbish=10.0)
    caches, steps = net.caches(7), []
    for begin, end in ((0, 5), (5, 6), (6, 7)):
        steps.append(net(x[:, begin:end], valid[:, :end], caches=caches))
    out = torch.cat(steps, 1)
    for number, row in enumerate(rows):
        gap = apart(out[number][valid[number]], net(row)[0])
        require(gap <= 1e-5, f"a prompt padded on the left decodes with a difference of {gap:.1e} to the same alone.")


@tried("options")
def memory(subject: Subject) -> None:
    """A stack looks at a memory, at its real tokens only, in one pass and step by step."""
    try:
        net = subject.stack(CAUSAL, cross=True)
    except Refused as refusal:
        raise Inapplicable(f"it refuses: {refusal}") from refusal
    x, states = subject.tokens(2, 5), subject.tokens(2, 6)
    valid = torch.arange(6) < torch.tensor([[6], [4]])
    rubbish = torch.where(valid[..., None], states, torch.tensor(1e3))
    whole = net(x, memory=Memory(rubbish, valid))
    for row, size in enumerate((6, 4)):
        alone = net(x[row : row + 1], memory=Memory(states[row : row + 1, :size]))
        gap = apart(whole[row : row + 1], alone)
        require(gap <= 1e-5, f"padding of a memory changes the result by {gap:.1e}.")
    moved = net(x, memory=Memory(states + 1, valid))
    require(apart(moved, whole) > 1e-6, "the memory does not matter: is it looked at?")
    exact, wide = copy.deepcopy(net).double(), states.double()
    whole = exact(x.double(), memory=Memory(wide))
    for s in range(6) if getattr(subject.part, "sees_all", True) else ():
        other = wide.clone()
        other[:, s] += 0.1
        change = (exact(x.double(), memory=Memory(other)) - whole).abs().amax((0, 2))
        require(
            bool((change > 0).all()),
            f"token {change.argmin().item()} does not see state {s} of a memory of 6: a memory has no order in time, "
            "so that no causality and no offset apply to it.",
        )
    whole = net(x, memory=Memory(rubbish, valid))
    caches = net.caches(5)
    steps = [net(x[:, t : t + 1], memory=Memory(rubbish, valid), caches=caches) for t in range(5)]
    gap = apart(torch.cat(steps, 1), whole)
    require(gap <= 1e-5, f"with a memory, decoding step by step differs by {gap:.1e} from one pass.")


@tried("options")
def beyond_the_longest(subject: Subject) -> None:
    """A sequence longer than the stack was made for is right, or refused by a sentence with both lengths."""
    try:
        net = subject.stack(Extent((16,), causal=True))
    except Refused:
        try:
            net = subject.stack(Extent((16,)))
        except Refused as refusal:
            raise Inapplicable(f"it refuses: {refusal}") from refusal
    x = subject.tokens(1, 48)
    try:
        out = net(x)
    except UsageError as refusal:
        told = str(refusal)
        require("48" in told, f"a sequence of 48 tokens is refused without naming its length: {told}")
        return
    except Exception as error:
        raise Broken(
            f"48 tokens in a stack made for 16 raise {type(error).__name__}: {error}. Set `limit`: it makes a sentence."
        ) from error
    require(
        out.shape == x.shape and bool(out.isfinite().all()), "beyond its length it gives numbers that are not finite."
    )
    if net.causal:
        gap = apart(out[:, :16], net(x[:, :16]))
        require(gap <= 1e-5, f"the first 16 tokens differ by {gap:.1e} when 32 more follow.")


def offsets(subject: Subject) -> None:
    """Positions are taken as given: a window's cache, which forgets old keys, gives what one pass gives."""
    net, x = stacked(subject, window=3), subject.tokens(2, 12)
    whole, caches = net(x), net.caches(12)
    steps = torch.cat([net(x[:, t : t + 1], caches=caches) for t in range(12)], 1)
    gap = apart(steps, whole)
    require(gap <= 1e-5, f"with a window of 3 decoding differs by {gap:.1e}: keys start at pattern.start, not at 0.")
    near = x.clone()
    near[:, :6] += 1
    seen = apart(net(near)[:, 8:], whole[:, 8:])
    require(seen <= 1e-6, f"with a window of 3 a token changes by {seen:.1e} with one six places away.")


@tried("options")
def no_token_is_special(subject: Subject) -> None:
    """Without positions, tokens in another order give the results in that order."""
    layer, x = any_layer(subject), subject.tokens(2, 7)
    if isinstance(layer, Stack) and layer.causal:
        raise Inapplicable("it is causal, and so has an order")
    if getattr(subject.part, "asks", None):
        raise Inapplicable("it declares a pattern of its own")
    order = torch.randperm(7)
    gap = apart(layer(x[:, order]), layer(x)[:, order])
    require(gap <= 1e-5, f"another order of tokens changes results by {gap:.1e}, although there are no positions.")


@once
def learns_two_samples(subject: Subject) -> None:
    """Trained alone, all else frozen, its weights learn two random samples in 150 steps: six tenths of the loss go."""
    try:
        net = subject.stack(Extent((16,), causal=True))
    except Refused:
        try:
            net = subject.stack(Extent((16,)))
        except Refused as refusal:
            raise Inapplicable(f"it refuses: {refusal}") from refusal
    initialise(net)
    mine = [
        m for m in net.modules() if isinstance(m, subject.part) or isinstance(getattr(m, "backend", 0), subject.part)
    ]
    learned = {id(p): p for m in mine for p in m.parameters()} if subject.kind != "position" else {}
    x, target = subject.tokens(2, 8), torch.randn(2, 8, 48)
    head = initialise(torch.nn.Linear(48, 48))
    optimiser = torch.optim.Adam(learned.values() or net.parameters(), 1e-2)
    losses = []
    for _ in range(150):
        loss = (head(net.train()(x)) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    first, last = losses[0], losses[-1]
    told = f"after 150 steps of its weights alone on two samples the loss fell from {first:.3g} to {last:.3g} only"
    require(last <= 0.4 * first, f"{told}: is its gradient right, of a useful size, and free of noise?")


SEQUENCE = [causality_by_perturbation, causality_by_gradient, padding, decoding, decoding_reordered, decoding_padded,
            memory, offsets, beyond_the_longest]  # fmt: skip
