"""The contract of an attention: the same function however it is computed, masked, cached and visualised."""

from __future__ import annotations

from dataclasses import replace

import torch

from zoo.conformance.check import Inapplicable, in_situations, once, require
from zoo.conformance.kernel_calls import FEATURES, calls, check_hidden_keys, check_rows_without_keys
from zoo.conformance.parameter_checks import WEIGHTS
from zoo.conformance.run_checks import memory_claim
from zoo.conformance.sequence_checks import SEQUENCE, learns_two_samples, no_token_is_special
from zoo.conformance.short_training import TASKS
from zoo.conformance.subject import DIM, HEADS, LENGTH, SHORT_AND_LONG, TEXT, AttentionSubject, Refused, spread
from zoo.conformance.token_checks import COMMON, difference, reference
from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.parts.attention import Attention, TokenMixer
from zoo.parts.backend import RARE, SDPA, Naive, Tiled
from zoo.parts.pattern import Pattern
from zoo.parts.position import RoPE

DRAWS = 40


@in_situations("options")
def claims(subject: AttentionSubject) -> None:
    """``supports`` and ``requires`` are sets of known features, and the part has an attention's three projections."""
    features_of_patterns = {*FEATURES, "dropout", "lse", "places", "rotate", "cross"}
    part = subject.build()
    unknown = sorted((set(part.supports) | set(part.requires)) - features_of_patterns)
    require(
        not unknown,
        f"supports or requires names {', '.join(unknown)}; features are {', '.join(sorted(features_of_patterns))}.",
    )


def weighing(subject: AttentionSubject) -> Attention:
    """The part by itself. Raises Inapplicable where it has no weights to show."""
    part = subject.build()
    if not part.shows_weights:
        raise Inapplicable("it declares shows_weights = False: there are no weights to show")
    if type(part).weigh is Attention.weigh:
        raise Inapplicable("it has no weights to show: it does not define weigh")
    return part


def with_heads(subject: AttentionSubject) -> Attention:
    """The part by itself. Raises Inapplicable for a token mixer, which has no heads."""
    part = subject.build()
    if isinstance(part, TokenMixer):
        raise Inapplicable("it is a token mixer: it has no queries and keys")
    return part


def free(part: Attention) -> Pattern:
    """A causal pattern where the part takes one."""
    return Pattern(causal="causal" in part.supports & part.backend.supports)


@in_situations("options")
def weights_times_values(subject: AttentionSubject) -> None:
    """What ``attend`` gives is what ``weigh`` says: weights times values, for every combination of features."""
    part = weighing(subject).double()
    if part.adds_to_values:
        raise Inapplicable("it declares adds_to_values = True: heads give more than weights times values")
    supports = part.supports & part.backend.supports
    for call in calls(supports, heads=HEADS, width=part.head_dim):
        k, v = (y[:, : part.kv_heads] if y.size(1) > part.kv_heads else y for y in (call.k, call.v))
        if k.size(1) != part.kv_heads:
            continue
        out = part.attend(call.q, k, v, call.make_pattern())
        weights = part.weigh(call.q, k, call.make_pattern())
        message = f"{call.description}: weigh gives {tuple(weights.shape)}, not (B, H, T, S)."
        require(weights.shape == (*call.q.shape[:3], k.size(2)), message)
        expected = weights.double() @ v.repeat_interleave(part.heads // part.kv_heads, 1)
        gap = difference(out, expected)
        message = f"{call.description}: attend is {gap:.1e} away from weigh @ v, which heat maps show: "
        message += "override weigh, or where the heads are no weighted values declare shows_weights = False."
        require(gap <= 1e-6, message)


@in_situations("options")
def weights_are_shares(subject: AttentionSubject) -> None:
    """Weights are not negative, hidden keys have none, and a row sums to one, or to zero where it sees no key."""
    part = weighing(subject).double()
    sums_to_one = getattr(subject.part, "sums_to_one", True)
    supports = part.supports & part.backend.supports
    for call in calls(supports, heads=HEADS, width=part.head_dim):
        k = call.k[:, : part.kv_heads]
        if k.size(1) != part.kv_heads:
            continue
        weights = part.weigh(call.q, k, call.make_pattern())
        require(bool((weights >= 0).all()), f"{call.description}: a weight is negative.")
        S = k.size(2)
        pattern = call.make_pattern()
        query = torch.arange(call.q.size(2)) + pattern.offset
        mask = pattern.mask(query, torch.arange(S) + pattern.start)
        if mask is not None:
            mask = mask if mask.dim() == 4 else mask[None, None]
            hidden_weights = weights.masked_select(~mask.expand_as(weights))
            require(not hidden_weights.any(), f"{call.description}: a hidden key has a weight above zero.")
            # an attention may see fewer keys than it is allowed to, never more
        total = weights.sum(-1)
        fine = ((total - 1).abs() < 1e-6) | (total.abs() < 1e-12) if sums_to_one else total <= 1 + 1e-6
        limit = "to one" if sums_to_one else "to at most one"
        message = f"{call.description}: the weights of a query sum to {total[~fine][:1].tolist()}, not {limit}."
        require(bool(fine.all()), message)


@in_situations("options")
def rows_and_heads(subject: AttentionSubject) -> None:
    """Weights of chosen rows and heads are those rows and heads of all weights."""
    part = weighing(subject)
    for length, rows in ((9, [7, 2, 3]), (90, [85, 2, 3, 70])):
        x = subject.tokens(2, length)
        whole = part.weights(x, pattern=free(part))
        some = part.weights(x, pattern=free(part), rows=rows, heads=[3, 0])
        gap = difference(some, whole[:, [3, 0]][:, :, rows])
        require(gap <= 1e-5, f"weights of chosen rows are {gap:.1e} away: queries stand at pattern.offset, not at 0.")


@in_situations("options")
def backends_agree(subject: AttentionSubject) -> None:
    """It computes the same on every backend that it takes."""
    outs, x = {}, subject.tokens(2, SHORT_AND_LONG[-1])
    for backend in (Naive(), SDPA(), Tiled(4)):
        try:
            part = subject.factory(DIM, HEADS, backend, 0.0)
        except UsageError:
            continue
        if part.unsupported(frozenset()):  # a stack refuses it
            continue
        spread(part)
        outs[repr(backend)] = part(x, pattern=free(part))
    require(bool(outs), "it takes neither Naive nor SDPA nor Tiled.")
    baseline = next(iter(outs))
    for name, out in outs.items():
        gap = difference(out, outs[baseline])
        require(gap <= 1e-5, f"on {name} it is {gap:.1e} away from what it computes on {baseline}.")
    if len(outs) > 1:
        require(part.dot_product, "it takes several backends, so dot_product should be True.")


@in_situations("options")
def projections(subject: AttentionSubject) -> None:
    """Every head and every input counts: queries, keys, values and the output matrix, of self and of a memory."""
    part = with_heads(subject)
    x = subject.tokens(2, 8).requires_grad_()
    out = part(x, pattern=Pattern())
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    require(bool((grad.abs().sum(-1) > 0).all()), "some tokens have no influence at all.")
    silent = []
    for head in range(part.heads):
        trial = spread(subject.factory(DIM, HEADS, None, 0.0))
        with torch.no_grad():
            trial.out.weight[:, head * part.head_dim : (head + 1) * part.head_dim] = 0
        if torch.equal(trial(x, pattern=Pattern()), out):
            silent.append(head)
    require(not silent, f"heads {silent} change nothing.")


@in_situations("options")
def queries_are_turned(subject: AttentionSubject) -> None:
    """With a position that turns queries and keys, the result depends on distances, not on where a sequence begins."""
    part = subject.build().double()
    if "rotate" not in part.supports:
        raise Inapplicable("it does not lower rotate")
    scheme = RoPE(DIM, HEADS, TEXT)
    try:
        scheme.check(part.head_dim)
    except UsageError as refusal:
        raise Inapplicable(f"its heads cannot be turned: {refusal}") from refusal
    x = subject.tokens(2, 6, torch.float64)
    here = part(x, pattern=Pattern(), position=scheme)
    there = part(x, pattern=Pattern(offset=17, start=17), position=scheme)
    gap = difference(there, here)
    require(gap <= 1e-8, f"shifted by 17 places the result differs by {gap:.1e}: turn queries and keys alike.")
    unrotated = part(x, pattern=Pattern())
    message = "positions that turn queries and keys change nothing: are they applied?"
    require(difference(here, unrotated) > 1e-6, message)
    if not free(part).causal:
        return
    whole, cache = part(x, pattern=Pattern(causal=True), position=scheme), part.cache(6)
    steps = [
        part(x[:, t : t + 1], pattern=Pattern(causal=True, offset=t), position=scheme, cache=cache) for t in range(6)
    ]
    gap = difference(torch.cat(steps, 1), whole)
    require(
        gap <= 1e-8,
        f"by steps with a cache it differs by {gap:.1e} from one pass: queries and keys stand at pattern.offset and "
        "on, and keys are turned once, before they are cached.",
    )


@in_situations("options")
def dropout(subject: AttentionSubject) -> None:
    """Attention dropout is on in training, repeatable by seed, right on average, and off in evaluation."""
    probe = subject.build()
    if "dropout" not in probe.supports & probe.backend.supports:
        raise Inapplicable("it does not lower dropout")
    # many small tokens that have much in common: what is dropped matters little to the direction of the rest, and so
    # little to a norm of heads behind it
    part, x = subject.build(dropout=0.3).train(), 0.3 * (subject.tokens(1, 1) + 0.3 * subject.tokens(1, LENGTH))

    def run(seed: int, tokens: torch.Tensor = x, pattern: Pattern | None = None) -> torch.Tensor:
        torch.manual_seed(seed)
        return part(tokens, pattern=pattern or Pattern())

    require(torch.equal(run(1), run(1)), "the same seed drops other weights: draw from torch's generator.")
    require(not torch.equal(run(1), run(2)), "dropout=0.3 in training drops nothing: pass self.dropout on.")
    if "causal" in probe.supports & probe.backend.supports:
        leaf = x.detach().clone().requires_grad_()  # other tokens may be dropped where a hash of the last one changes
        loss = run(1, leaf, Pattern(causal=True))[:, :-1].square().sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        require(not gradient[:, -1].any(), "in training, with dropout, a token sees later ones.")
    mean = torch.stack([run(seed).detach() for seed in range(DRAWS)]).mean(0)
    part.eval()
    whole = run(1)
    require(torch.equal(whole, run(2)), "dropout is on in evaluation.")
    gap = (mean - whole).abs().mean().item() / whole.abs().mean().item()
    require(gap <= 0.1, f"the mean over {DRAWS} draws is {gap:.0%} off: divide what is kept by 1 - rate.")


@in_situations("options")
def memory_is_looked_at_alike(subject: AttentionSubject) -> None:
    """Looking at a memory is the same function as looking at oneself: own tokens as a memory give the same result."""
    part = subject.build()
    across = part.across()
    across = (part if across is part else spread(across)).double()
    if "cross" not in across.supports:
        raise Inapplicable("it does not lower cross")
    if across.requires - RARE or getattr(across, "ordered", False):
        raise Inapplicable("it looks at itself in a way of its own")
    for length in SHORT_AND_LONG:
        x = subject.tokens(2, length, torch.float64)
        for real in (None, torch.arange(length) < torch.tensor([[length], [5]])):
            if real is not None and "valid" not in across.supports & across.backend.supports:
                continue
            gap = difference(across(x, x, pattern=Pattern(valid=real)), across(x, pattern=Pattern(valid=real)))
            require(
                gap <= 1e-8,
                f"of {length} tokens that look at themselves as at a memory the result differs by {gap:.1e}: scale, "
                "mask and join heads there as everywhere.",
            )


@in_situations("options")
def rows_without_keys(subject: AttentionSubject) -> None:
    """A query that may see no key attends to nothing: zeros before the output matrix, and finite gradients."""
    part = with_heads(subject)
    if "valid" not in part.supports & part.backend.supports:
        raise Inapplicable("it does not lower valid")
    check_rows_without_keys(part.attend, part.kv_heads, part.head_dim)


@in_situations("options")
def hidden_keys_do_not_leak(subject: AttentionSubject) -> None:
    """A hidden key does not matter however well it fits and however large its value is."""
    part = with_heads(subject)
    words = part.supports & part.backend.supports & {"causal", "valid"}
    check_hidden_keys(part.attend, words, part.kv_heads, part.head_dim)


@in_situations("options")
def order_of_keys(subject: AttentionSubject) -> None:
    """Without a pattern, keys are a set: another order of keys and values changes nothing."""
    part = with_heads(subject)
    if getattr(part, "ordered", False):
        raise Inapplicable("it declares ordered = True: it knows the order of tokens by itself")
    if part.requires - RARE or not getattr(subject.part, "sees_all", True):
        raise Inapplicable("it declares a pattern of its own")
    for keys in (6, 80):
        q = torch.randn(2, HEADS, 6, part.head_dim)
        k, v = (torch.randn(2, part.kv_heads, keys, part.head_dim) for _ in range(2))
        order = torch.randperm(keys)
        gap = difference(part.attend(q, k[:, :, order], v[:, :, order], Pattern()), part.attend(q, k, v, Pattern()))
        require(gap <= 1e-5, f"another order of keys changes the result by {gap:.1e}.")


@in_situations("options")
def same_by_chunks(subject: AttentionSubject) -> None:
    """Queries in chunks, at their offsets, give what all queries give at once."""
    part = with_heads(subject)
    q = torch.randn(2, HEADS, 80, part.head_dim)
    k, v = (torch.randn(2, part.kv_heads, 80, part.head_dim) for _ in range(2))
    pattern = free(part)
    whole = part.attend(q, k, v, pattern)
    chunks = ((0, 4), (4, 5), (5, 9), (9, 70), (70, 80))
    parts = [part.attend(q[:, :, a:b], k, v, replace(pattern, offset=a)) for a, b in chunks]
    gap = difference(torch.cat(parts, 2), whole)
    require(gap <= 1e-5, f"queries in chunks differ by {gap:.1e}: use pattern.offset.")


@once
def sizes(subject: AttentionSubject) -> None:
    """At initialisation an attention gives a token nothing more than five times its size."""
    part = subject.build()
    initialize(part)
    for length in (1, 16):
        size = part(subject.tokens(16, length), pattern=free(part)).std().item()
        message = f"unit tokens, {length} in a row, give standard deviation {size:.2g}: scale the initial weights."
        require(size <= 5, message)


@once
def impossible_sizes(subject: AttentionSubject) -> None:
    """Heads that do not divide the width are refused by a sentence with both numbers."""
    with_heads(subject)
    try:
        subject.factory(50, 4, None, 0.0)
    except UsageError as refusal:
        require("50" in str(refusal) and "4" in str(refusal), f"the refusal does not name both numbers: {refusal}")
    except Exception as error:
        require(False, f"dim=50 with 4 heads raises {type(error).__name__}: raise UsageError with both numbers.")
    else:
        require(False, "dim=50 with 4 heads is accepted: part of the width would be lost.")


@once
def builds(subject: AttentionSubject) -> None:
    """A stack takes it for everything that it claims."""
    part = subject.build()
    for causal in (False, True) if "causal" in part.supports else (False,):
        try:
            subject.layer(causal)
        except Refused as refusal:
            require(False, f"it claims causal={causal}, yet a stack refuses it: {refusal}")


PROMISES = [*COMMON, reference, claims, builds, impossible_sizes, weights_times_values, weights_are_shares,
            rows_and_heads, backends_agree, projections, queries_are_turned, dropout,
            memory_is_looked_at_alike, rows_without_keys,
            hidden_keys_do_not_leak, sizes, order_of_keys, same_by_chunks,
            memory_claim, no_token_is_special, *SEQUENCE, learns_two_samples, *WEIGHTS, *TASKS]  # fmt: skip
