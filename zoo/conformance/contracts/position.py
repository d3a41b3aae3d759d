"""The contract of a position scheme: it uses the positions passed to it, in text and on grids."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from zoo.conformance.check import Broken, Inapplicable, once, require
from zoo.conformance.parameter_checks import WEIGHTS
from zoo.conformance.sequence_checks import SEQUENCE, learns_two_samples
from zoo.conformance.short_training import TASKS
from zoo.conformance.subject import DIM, GRID, HEADS, TEXT, PositionSubject, Refused
from zoo.conformance.token_checks import COMMON, difference, stack_on
from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.parts.attention import MultiHead
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, Position

HEAD = DIM // HEADS


def scores(scheme: Position, q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Scores (B, H, T, S) of queries and keys (B, H, ., D) at positions, as a scheme makes them."""
    if scheme.rotates:
        q, k = scheme.rotate(q, query), scheme.rotate_keys(k, key)
    products = q @ k.mT
    if scheme.biases:
        products = products + scheme.bias(torch.arange(HEADS)[:, None, None], query[:, None], key[None])
    return products


def hooks(subject: PositionSubject) -> None:
    """It overrides embed, rotate or bias, and keeps their shapes, for positions (T,) and (B, T)."""
    scheme = subject.build()
    x, y = torch.randn(2, 5, DIM), torch.randn(2, HEADS, 5, HEAD)
    for pos in (torch.arange(5), torch.arange(5).expand(2, 5)):
        out = scheme.embed(x, pos)
        message = f"embed gives {tuple(out.shape)} for x {tuple(x.shape)} and positions {tuple(pos.shape)}."
        require(out.shape == x.shape, message)
        over_heads = pos if pos.dim() == 1 else pos[:, None]
        out = scheme.rotate(y, over_heads)
        require(out.shape == y.shape, f"rotate gives {tuple(out.shape)} for {tuple(y.shape)}.")
    pos = torch.arange(40, 45)
    for call in (lambda: scheme.embed(x, pos), lambda: scheme.rotate(y, pos)):
        call()
        untouched = torch.equal(pos, torch.arange(40, 45))
        require(untouched, "positions were changed in place: all layers read them. Use out-of-place operations.")
    if scheme.biases:
        out = scheme.bias(torch.arange(HEADS)[:, None, None], torch.arange(5)[:, None], torch.arange(7)[None])
        require(out.shape == (HEADS, 5, 7), f"bias gives {tuple(out.shape)} for {HEADS} heads, 5 queries and 7 keys.")


def positions_are_given(subject: PositionSubject) -> None:
    """A token's position is the number it is given: one token at position 5 is like the sixth of a sequence."""
    scheme = subject.build()
    x, y = torch.randn(1, 9, DIM), torch.randn(1, HEADS, 9, HEAD)
    pos, order = torch.arange(9), torch.randperm(9)
    whole, turned = scheme.embed(x, pos), scheme.rotate(y, pos)
    for t in (0, 5, 8):
        single = scheme.embed(x[:, t : t + 1], torch.tensor([t]))
        message = f"embed of one token at {t} is not that of a sequence: use pos."
        require(difference(single, whole[:, t : t + 1]) <= 1e-6, message)
        single = scheme.rotate(y[:, :, t : t + 1], torch.tensor([t]))
        message = f"rotate of one token at {t} is not that of a sequence: use pos."
        require(difference(single, turned[:, :, t : t + 1]) <= 1e-6, message)
    gap = difference(scheme.embed(x[:, order], pos[order]), whole[:, order])
    require(gap <= 1e-6, "embed of shuffled tokens at their positions differs: use pos, count nothing.")
    both = torch.stack([pos, pos.flip(0)])
    for description, rows, alone in (
        ("embed", scheme.embed(x.expand(2, -1, -1), both), scheme.embed(x, pos.flip(0))),
        ("rotate", scheme.rotate(y.expand(2, -1, -1, -1), both[:, None]), scheme.rotate(y, pos.flip(0))),
    ):
        gap = difference(rows[1:], alone)
        require(gap <= 1e-6, f"{description}: rows of a batch may have positions of their own, and they are ignored.")


def bias_is_elementwise(subject: PositionSubject) -> None:
    """The bias of a table is the bias of each (head, query, key) alone: kernels ask for one at a time."""
    scheme = subject.build()
    if not scheme.biases:
        raise Inapplicable("it has no bias")
    whole = scheme.bias(torch.arange(HEADS)[:, None, None], torch.arange(20)[:, None], torch.arange(25)[None])
    for h, q, k in ((0, 0, 0), (1, 3, 2), (2, 19, 0), (3, 7, 24), (1, 12, 12)):
        single = scheme.bias(torch.tensor(h), torch.tensor(q), torch.tensor(k))
        message = f"bias of head {h}, query {q}, key {k} alone is not that of a table."
        require(difference(single, whole[h, q, k]) <= 1e-6, message)


def heads_have_their_own(subject: PositionSubject) -> None:
    """Each head has a bias of its own; ``heads_alike = True`` declares one for all."""
    scheme = subject.build()
    if not scheme.biases:
        raise Inapplicable("it has no bias")
    whole = scheme.bias(torch.arange(HEADS)[:, None, None], torch.arange(20)[:, None], torch.arange(25)[None])
    alike = [(a, b) for a in range(HEADS) for b in range(a) if difference(whole[a], whole[b]) <= 1e-6]
    if not getattr(subject.part, "heads_alike", False):
        require(not alike, f"heads {alike[:2]} share one bias: give each its own, or declare heads_alike = True.")


def reference(subject: PositionSubject) -> None:
    """``embed``, ``rotate`` and ``bias`` equal ``reference(hook, ...)``, their formula in plain steps, in float64."""
    scheme = subject.build().double()
    if not callable(formula := getattr(scheme, "reference", None)):
        raise Inapplicable("it gives no reference")
    x, y = torch.randn(1, 9, DIM, dtype=torch.float64), torch.randn(1, HEADS, 9, HEAD, dtype=torch.float64)
    pos, far = torch.arange(9), torch.arange(300, 309)
    for here in (pos, far):
        calls: dict[str, tuple[Tensor, ...]] = {"embed": (x, here), "rotate": (y, here), "rotate_keys": (y, here)}
        calls["bias"] = torch.arange(HEADS)[:, None, None], here[:, None], pos[None]
        for hook, arguments in calls.items():
            if getattr(type(scheme), hook) is not getattr(Position, hook):
                gap = difference(getattr(scheme, hook)(*arguments), formula(hook, *arguments))
                advice = "or, where it is another formula, override reference too"
                require(gap <= 1e-6, f"{hook} is {gap:.1e} away from its own formula: change it, {advice}.")


@once
def order_matters(subject: PositionSubject) -> None:
    """A causal stack tells earlier tokens in another order apart, unless it declares that order does not matter."""
    net = stack_on(subject, Extent(TEXT.sizes, causal=True))
    x = subject.tokens(1, 12)
    whole = net(x)
    for a, b in ((0, 1), (3, 4), (2, 9)):
        swap = x.clone()
        swap[:, [a, b]] = x[:, [b, a]]
        change = difference(net(swap)[:, -1], whole[:, -1])
        if getattr(subject.part, "orders", True):
            require(change > 1e-6, f"tokens {a} and {b} can change places, and a later token does not notice.")
        else:
            require(change <= 1e-5, f"it declares orders = False, yet tokens {a} and {b} are told apart.")


def distances(subject: PositionSubject) -> None:
    """A scheme that declares to be relative gives the same scores at the same distances, wherever they are."""
    scheme = subject.build()
    if not scheme.relative:
        raise Inapplicable("it does not declare relative = True")
    q, k = torch.randn(2, HEADS, 6, HEAD), torch.randn(2, HEADS, 8, HEAD)
    query, key = torch.arange(6) + 2, torch.arange(8)
    here = scores(scheme, q, k, query, key)
    for offset, bound in ((1, 5e-4), (1000, 5e-3), (100000, 5e-2)):
        gap = difference(scores(scheme, q, k, query + offset, key + offset), here)
        require(gap <= bound, f"declared relative, yet {offset} places further on scores differ by {gap:.1e}.")
    if not scheme.orders:
        return
    far = scores(scheme, q[:, :, :1].expand(-1, -1, 6, -1), k[:, :, :1].expand(-1, -1, 8, -1), query, key)
    spread = far.std((-1, -2)).max().item()
    require(spread > 1e-4, "scores of equal tokens are equal at every distance: positions change nothing.")


def turning_keeps_lengths(subject: PositionSubject) -> None:
    """``rotate`` is linear and keeps lengths, at position 0 as at 5,000, and turns queries and keys alike."""
    scheme = subject.build()
    if not scheme.rotates:
        raise Inapplicable("it does not turn queries and keys")
    y = torch.randn(2, HEADS, 4, HEAD, dtype=torch.float64)
    for start in (0, 7, 5000):
        pos = torch.arange(start, start + 4)
        out = scheme.rotate(y, pos)
        if getattr(subject.part, "keeps_lengths", True):
            gap = difference(out.norm(dim=-1), y.norm(dim=-1))
            advice = "or declare keeps_lengths = False, as a factor on the scores is"
            require(gap <= 1e-6, f"at position {start} rotate changes lengths by {gap:.1e}: turn them, {advice}.")
        require(difference(scheme.rotate(3 * y, pos), 3 * out) <= 1e-6, "rotate is not linear.")
        alike = y[:, :1].expand_as(y)
        out = scheme.rotate(alike, pos)
        same = difference(out, scheme.rotate(y[:, :1], pos).expand_as(out)) <= 1e-6
        message = "heads are turned differently: queries and keys come as heads of one tensor, turn all heads alike."
        require(same, message)


def low_precision(subject: PositionSubject) -> None:
    """Angles and tables are computed in float32 in a bfloat16 model: position 8,191 is as exact as position 1."""
    scheme, wide = subject.build(Extent((8192,))), subject.build(Extent((8192,))).double()
    scheme = scheme.to(torch.bfloat16)
    wide.load_state_dict({name: tensor.double() for name, tensor in scheme.state_dict().items()}, strict=False)
    for start in (1, 4097, 8188):
        pos = torch.arange(start, start + 4)
        x, y = (torch.randn(1, 4, DIM).bfloat16(), torch.randn(1, HEADS, 4, HEAD).bfloat16())
        for name, value in (("embed", x), ("rotate", y)):
            out, expected = getattr(scheme, name)(value, pos), getattr(wide, name)(value.double(), pos)
            require(out.dtype == torch.bfloat16, f"{name} gives {out.dtype} for bfloat16.")
            gap = difference(out, expected)
            require(gap <= 2e-2, f"{name} at position {start} is {gap:.1e} off in bfloat16: compute angles in float32.")
        with torch.autocast("cpu", torch.bfloat16):
            out = scheme.rotate(y, pos)
        gap = difference(out, wide.rotate(y.double(), pos))
        require(gap <= 2e-2, f"rotate at position {start} is {gap:.1e} off under autocast.")
        if scheme.biases:
            far = torch.cat([pos, torch.arange(0, start, 1 + start // 1000)])
            head, query, key = torch.arange(HEADS)[:, None, None], pos[:, None], far[None]
            gap = difference(scheme.bias(head, query, key), wide.bias(head, query, key))
            require(
                gap <= 2e-2,
                f"the bias at position {start} is {gap:.1e} off in bfloat16: compute distances in integers or float32.",
            )


def every_place_is_its_own(subject: PositionSubject) -> None:
    """A scheme that marks tokens by their place marks no two places alike, far out in a text or anywhere on a grid."""
    if not getattr(subject.part, "orders", True):
        raise Inapplicable("it declares orders = False")
    near, beyond = torch.arange(64), torch.tensor([2**n + m for n in range(7, 17) for m in (-1, 0, 1)])
    x, y = torch.randn(1, 1, DIM), torch.randn(1, 1, 1, HEAD)
    for extent, pos in ((Extent((2**16 + 2,)), torch.cat([near, beyond]).unique()), (GRID, near)):
        try:
            scheme = subject.stack(extent).position
        except Refused:
            continue
        if not scheme.rotates and type(scheme).embed is Position.embed:
            raise Inapplicable("it knows distances, not places")
        marked = scheme.embed(x.expand(1, len(pos), -1), pos)[0], scheme.rotate(y.expand(1, 1, len(pos), -1), pos)[0, 0]
        marks = torch.cat(marked, -1).double()
        apart = torch.cdist(marks, marks, compute_mode="donot_use_mm_for_euclid_dist") + torch.eye(len(pos))
        i, j = divmod(int(apart.argmin()), len(pos))
        sentence = f"positions {pos[i]} and {pos[j]} of {' by '.join(map(str, extent.sizes))} are one place to it"
        require(apart.min().item() > 1e-6, f"{sentence}: count in int64, angles in float32, and use every axis.")


@once
def near_counts_most(subject: PositionSubject) -> None:
    """At initialisation a bias does not favour far keys, on average over heads."""
    for causal in (True, False):
        scheme = subject.build(Extent(TEXT.sizes, causal=causal))
        initialize(scheme)
        if not scheme.biases:
            raise Inapplicable("it has no bias")
        for query, side in ((60, "back"), (0, "ahead")) if not causal else ((60, "back"),):
            key = torch.arange(61)
            bias = scheme.bias(torch.arange(HEADS)[:, None], torch.tensor(query), key[None]).mean(0)
            near, far = ((bias[(key - query).abs() < 8]).mean(), bias[(key - query).abs() > 52].mean())
            require(
                (far - near).item() <= 2,
                f"it favours far tokens: keys 53 to 60 places {side} get {far:+.1f} on average over heads, the nearest "
                f"eight {near:+.1f}. A penalty on distance has a minus.",
            )


def grids(subject: PositionSubject) -> None:
    """On a grid both axes count: moving a patch down is not moving it right, and special tokens stand outside."""
    net = stack_on(subject, GRID)
    x = subject.tokens(1, 64)
    whole = net(x)
    require(whole.shape == x.shape and bool(whole.isfinite().all()), "a grid of 8 by 8 gives no finite result.")
    if not getattr(subject.part, "orders", True):
        return
    for line, patch, partner in (("column", 2 * 8 + 3, 5 * 8 + 3), ("row", 3 * 8 + 2, 3 * 8 + 5)):
        moved = x.clone()
        moved[:, [patch, partner]] = x[:, [partner, patch]]
        change = difference(net(moved)[:, :1], whole[:, :1])
        require(
            change > 1e-6,
            f"two patches of one {line} can change places, and no other patch notices: use every axis of the extent.",
        )
    stack = subject.stack(Extent((4, 4), special=1))
    out = stack(subject.tokens(1, 17))
    require(bool(out.isfinite().all()), "a special token at position -1 gives no finite result.")
    if stack.position.relative and stack.position.biases:
        for query, key in ((-1, 3), (3, -1)):
            none = stack.position.bias(torch.arange(HEADS), torch.tensor(query), torch.tensor(key))
            message = "a special token stands at no place: it has no distance, and its bias must be zero."
            require(not none.any(), message)


def limit(subject: PositionSubject) -> None:
    """``limit`` is the number of positions there are, or None where every position exists."""
    scheme = subject.build(Extent((16,)))
    x = torch.randn(1, 1, DIM)
    if scheme.limit is not None:
        require(scheme.limit == 16, f"made for 16 positions, its limit is {scheme.limit}.")
        scheme.embed(x, torch.tensor([15]))
        return
    try:
        out = scheme.embed(x, torch.tensor([1000]))
        scheme.rotate(torch.randn(1, HEADS, 1, HEAD), torch.tensor([1000]))
        if scheme.biases:
            scheme.bias(torch.arange(HEADS), torch.tensor(1000), torch.tensor(3))
    except Exception as error:
        raise Broken(f"position 1000 raises {type(error).__name__}, and limit is None: set self.limit.") from error
    require(bool(out.isfinite().all()), "position 1000 gives numbers that are not finite.")


@once
def impossible_widths(subject: PositionSubject) -> None:
    """A width that it cannot split is refused by a sentence, when it is built or checked."""
    extent = GRID
    with suppress(UsageError):
        subject.factory(DIM, HEADS, TEXT)
        extent = TEXT  # one that refuses every grid says so, not the width
        subject.factory(DIM, HEADS, GRID)
        extent = GRID
    for heads_dim in (1, 3, 5):
        dim = heads_dim * 2
        try:
            scheme = subject.factory(dim, 2, extent)
            scheme.check(heads_dim)
            net = MultiHead(dim, 2)
            net(scheme.embed(torch.randn(1, 4, dim), torch.arange(4)), pattern=Pattern(), position=scheme)
        except UsageError as refusal:
            message = f"it does not name the width: {refusal}"
            require(str(dim) in str(refusal) or str(heads_dim) in str(refusal), message)
        except Exception as error:
            raise Broken(
                f"heads of width {heads_dim} raise {type(error).__name__}: {error}. Refuse them in check(head_dim)."
            ) from error


PROMISES = [*COMMON, hooks, reference, positions_are_given,
            bias_is_elementwise, heads_have_their_own, order_matters, distances,
            turning_keeps_lengths, every_place_is_its_own, near_counts_most, low_precision, grids, limit,
            impossible_widths, *SEQUENCE, learns_two_samples, *WEIGHTS, *TASKS]  # fmt: skip
