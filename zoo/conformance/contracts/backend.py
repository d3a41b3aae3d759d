"""The contract of a backend: it equals textbook attention for all features that it supports, and rejects the others."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from zoo.conformance.check import Broken, Inapplicable, in_situations, require
from zoo.conformance.kernel_calls import (
    FEATURES,
    Call,
    calls,
    check_hidden_keys,
    check_rows_without_keys,
    compared_queries,
    features,
    long_calls,
    reference_lse,
    reference_result,
)
from zoo.conformance.parameter_checks import WEIGHTS
from zoo.conformance.run_checks import memory_claim
from zoo.conformance.sequence_checks import SEQUENCE, learns_two_samples, no_token_is_special
from zoo.conformance.short_training import TASKS
from zoo.conformance.subject import HEADS, BackendSubject
from zoo.conformance.token_checks import COMMON, difference
from zoo.errors import UsageError
from zoo.parts.backend import CASES, Backend, Naive
from zoo.parts.pattern import Pattern


@in_situations("options")
def claims(subject: BackendSubject) -> None:
    """``supports`` is a set of known features."""
    names = {*FEATURES, *CASES, "dropout", "lse", "places"}
    unknown = sorted(set(subject.supports) - names)
    require(not unknown, f"supports names {', '.join(unknown)}; features are {', '.join(sorted(names))}.")


def distance_to_reference(backend: Backend, call: Call, out: Tensor) -> float:
    """The distance of a result (B, H, T, D of v) from Naive's in float64, at the queries that count."""
    counts = compared_queries(backend, call)
    return difference(out * counts, reference_result(call) * counts)


@in_situations("options")
def values(subject: BackendSubject) -> None:
    """It equals Naive for every combination of the features it claims, shared heads and cached prefixes included."""
    backend = subject.build()
    for dtype, bound in ((torch.float32, 5e-6), (torch.float64, 1e-11)):
        for call in calls(subject.supports, dtype):
            try:
                out = backend(call.q, call.k, call.v, call.make_pattern())
            except UsageError:
                if dtype is torch.float64:  # a fused kernel may have no float64
                    continue
                raise
            shape = (*call.q.shape[:3], call.v.size(-1))
            require(out.shape == shape, f"{call.description}: it gives {tuple(out.shape)}, not (B, H, T, D) = {shape}.")
            gap = distance_to_reference(backend, call, out)
            message = f"{call.description}: {gap:.1e} away from Naive in {dtype}. Compare with zoo.parts.backend.Naive."
            require(gap <= bound, message)


@in_situations("options")
def long_sequences(subject: BackendSubject) -> None:
    """It equals Naive over hundreds of keys, which a kernel takes in more than one tile."""
    backend = subject.build()
    for call in long_calls(subject.supports):
        out = backend(call.q, call.k, call.v, call.make_pattern())
        gap = distance_to_reference(backend, call, out)
        require(gap <= 1e-5, f"{call.description}: {gap:.1e} away from Naive. Is each tile of keys added, and once?")


@in_situations("options")
def gradients(subject: BackendSubject) -> None:
    """Gradients of queries, keys, values and the bias equal Naive's."""
    backend, naive = subject.build(), Naive()
    for call in calls(subject.supports, torch.float32):
        faults = []
        for kernel in (backend, naive):
            table = torch.linspace(0.1, 0.4, 4).requires_grad_()
            leaves: list[Any] = [tensor.detach().clone().requires_grad_() for tensor in (call.q, call.k, call.v)]
            fields = dict(call.pattern)
            if "bias" in fields:
                fields["bias"] = lambda head, query, key, table=table: table[head] * (query - 2 * key)
                leaves.append(table)
            out = kernel(leaves[0], leaves[1], leaves[2], Pattern(**fields))
            probe = torch.arange(out.numel(), dtype=out.dtype).sin().view(out.shape) * compared_queries(backend, call)
            faults.append(torch.autograd.grad((out * probe).sum(), leaves, allow_unused=True, materialize_grads=True))
        for name, gradient, expected in zip(("queries", "keys", "values", "the bias"), *faults, strict=False):
            gap = difference(gradient, expected)
            require(gap <= 3e-5, f"{call.description}: the gradient of {name} is {gap:.1e} away from Naive's.")


@in_situations("options")
def log_sum_exp(subject: BackendSubject) -> None:
    """``with_lse`` gives what a call gives, and ln sum exp(score) of each query: -inf without keys."""
    backend = subject.build()
    if "lse" not in subject.supports:
        raise Inapplicable("it does not claim lse")
    for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 5e-6), (torch.bfloat16, 2e-2)):
        for call in [*calls(subject.supports, dtype), *(long_calls(subject.supports) if bound == 5e-6 else ())]:
            out, lse = backend.with_lse(call.q, call.k, call.v, call.make_pattern())
            message = f"{call.description}: the result beside the log-sum-exp differs from that of a plain call."
            require(torch.equal(out, backend(call.q, call.k, call.v, call.make_pattern())), message)
            shape, wide = tuple(call.q.shape[:3]), torch.promote_types(dtype, torch.float32)
            require(
                lse.shape == shape and lse.dtype == wide,
                f"{call.description}: the log-sum-exp is {tuple(lse.shape)} {lse.dtype}, "
                f"not (B, H, T) = {shape} {wide}.",
            )
            right = reference_lse(call, call.q, call.k)
            dead = right == float("-inf")
            message = f"{call.description}: the log-sum-exp of a query is -inf where it sees no key, and nowhere else."
            require(torch.equal(lse == float("-inf"), dead), message)
            gap = difference(lse[~dead], right[~dead]) if not dead.all() else 0.0
            doubt = "Natural logarithm, of scores with scale, cap and bias, before dropout?"
            require(gap <= bound, f"{call.description}: the log-sum-exp is {gap:.1e} off in {dtype}. {doubt}")


@in_situations("options")
def log_sum_exp_gradients(subject: BackendSubject) -> None:
    """Gradients through the log-sum-exp are right, and finite where a query sees no key: a sink learns through them."""
    backend = subject.build()
    if "lse" not in subject.supports:
        raise Inapplicable("it does not claim lse")
    sinks = torch.linspace(-1, 1, 4)[:, None]
    for call in calls(subject.supports, torch.float32):
        grads = []
        for right in (False, True):
            q, k, v = (tensor.detach().clone().requires_grad_() for tensor in (call.q, call.k, call.v))
            kernel = Naive() if right else backend
            out, lse = kernel.with_lse(q, k, v, call.make_pattern())
            lse = reference_lse(call, q, k) if right else lse
            heads = out * (lse - sinks).sigmoid().unsqueeze(-1).to(out.dtype)
            probe = torch.arange(out.numel(), dtype=out.dtype).sin().view(out.shape)
            grads.append(torch.autograd.grad((heads * probe).sum(), (q, k, v)))
        for name, gradient, expected in zip(("queries", "keys", "values"), *grads, strict=True):
            message = f"{call.description}: the gradient of {name} through the log-sum-exp is not finite."
            require(bool(gradient.isfinite().all()), message)
            gap = difference(gradient, expected)
            message = f"{call.description}: through the log-sum-exp the gradient of {name} is {gap:.1e} off."
            require(gap <= 3e-5, message)


@in_situations("options")
def scale_and_widths(subject: BackendSubject) -> None:
    """A given scale is used, and head widths that are no power of two work."""
    backend, pattern = subject.build(), Pattern(causal="causal" in subject.supports)
    for width in (1, 3, 20, 64):
        q, k, v = (torch.randn(1, 2, 5, width) for _ in range(3))
        for scale in (None, 0.3, 2.0):
            out = backend(q, k, v, pattern, scale=scale)
            expected = Naive()(q.double(), k.double(), v.double(), pattern, scale=scale)
            gap = difference(out, expected)
            require(gap <= 1e-5, f"head width {width} and scale={scale}: {gap:.1e} away from Naive.")


@in_situations("options")
def more_keys_than_queries(subject: BackendSubject) -> None:
    """The scale is the same where queries and keys differ in number, as with a memory, and where heads share keys."""
    backend = subject.build()
    for T, S in ((5, 9), (9, 5), (1, 70), (70, 3), (40, 72)):
        for groups in (4, 2, 1):
            q, k, v = torch.randn(2, 4, T, 12), torch.randn(2, groups, S, 12), torch.randn(2, groups, S, 12)
            for scale in (None, 0.3):
                gap = difference(
                    backend(q, k, v, Pattern(), scale=scale), reference_result(Call(q, k, v, {}, ""), scale)
                )
                require(
                    gap <= 1e-5,
                    f"{T} queries, {S} keys, 4 heads sharing {groups} and scale={scale}: {gap:.1e} away from Naive.",
                )


@in_situations("options")
def width_of_values(subject: BackendSubject) -> None:
    """Values may be wider or narrower than queries and keys; or they are refused by a sentence."""
    backend = subject.build()
    everything = frozenset(subject.supports) & frozenset(FEATURES)
    for width, (T, S, offset) in itertools.product((24, 5, 1), ((7, 7, 0), (3, 9, 6), (70, 70, 0))):
        for words in {frozenset(), everything & {"causal"}, everything}:
            q, k = torch.randn(2, 4, T, 12), torch.randn(2, 2, S, 12)
            v = torch.randn(2, 2, S, width)
            call = Call(q, k, v, features(words, S, 4) | {"offset": offset}, "")
            description = f"values {width} wide for queries 12 wide, {T} queries and {S} keys"
            try:
                out = backend(q, k, v, call.make_pattern())
            except UsageError as refusal:
                raise Inapplicable(f"it refuses values of another width: {refusal}") from refusal
            shape = (2, 4, T, width)
            require(out.shape == shape, f"{description}: it gives {tuple(out.shape)}, not (B, H, T, D of v) = {shape}.")
            gap = distance_to_reference(backend, call, out)
            require(gap <= 1e-5, f"{description}: {gap:.1e} away from Naive.")


@in_situations("options")
def low_precision(subject: BackendSubject) -> None:
    """In bfloat16 and float16 its error is at most twice that of Naive in the same dtype; the dtype is kept."""
    backend = subject.build()
    for dtype in (torch.bfloat16, torch.float16):
        for call in calls(subject.supports, dtype):
            out = backend(call.q, call.k, call.v, call.make_pattern())
            require(out.dtype == dtype, f"{dtype} came back as {out.dtype}: end with .to(v.dtype).")
            textbook = Naive()(call.q, call.k, call.v, call.make_pattern())
            error, allowed = (distance_to_reference(backend, call, result) for result in (out, textbook))
            message = f"{call.description}: in {dtype} the error is {error:.1e}, more than twice Naive's {allowed:.1e}."
            require(error <= 2 * allowed + 1e-5 or error <= 1e-3, message)


@in_situations("options")
def rows_without_keys(subject: BackendSubject) -> None:
    """A query that may see no key gets exact zeros, and gradients stay finite."""
    if "valid" not in subject.supports:
        raise Inapplicable("it does not lower valid")
    backend = subject.build()
    for causal in {False, "causal" in subject.supports}:
        check_rows_without_keys(backend, HEADS, 12, causal)


@in_situations("options")
def hidden_keys_do_not_leak(subject: BackendSubject) -> None:
    """A hidden key does not matter however well it fits and however large its value is."""
    check_hidden_keys(subject.build(), subject.supports & {"causal", "valid", "window", "sparse"}, HEADS, 12)


@in_situations("options")
def large_scores(subject: BackendSubject) -> None:
    """Scores of ten thousand give finite results and gradients near Naive's: subtract the maximum first."""
    backend = subject.build()
    q, k, v = (torch.randn(2, 4, 7, 12) for _ in range(3))
    q, k, v = (60 * q).requires_grad_(), (60 * k).requires_grad_(), v.requires_grad_()
    out = backend(q, k, v, Pattern())
    expected = Naive()(q.double(), k.double(), v.double(), Pattern())
    gap = difference(out, expected)
    require(gap <= 1e-3, f"with large scores it is {gap:.1e} away from Naive: subtract the maximum first.")
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    require(all(bool(g.isfinite().all()) for g in grads), "with large scores gradients are not finite.")


@in_situations("options")
def refusal(subject: BackendSubject) -> None:
    """What it does not claim is refused, when a stack is built and when it is called."""
    backend = subject.build()
    q = torch.randn(2, 4, 6, 12)
    for feature in sorted(set(FEATURES) - set(subject.supports)):
        pattern = Pattern(**features(frozenset({feature}), 6, 4))
        try:
            backend(q, q, q, pattern)
        except UsageError as sentence:
            require(feature in str(sentence), f"the refusal of {feature} does not name it: {sentence}")
            continue
        except Exception as error:
            raise Broken(
                f"{feature} is not claimed, and raises {type(error).__name__} when asked for: raise UsageError that "
                "names it."
            ) from error
        raise Broken(
            f"{feature} is not claimed, yet taken without a word: a mask would be lost. Refuse it, or claim it."
        )
    if "places" not in subject.supports:
        place = torch.tensor([[0, 2, 3, 5, 6, 9], [1, 2, 4, 5, 7, 8]])
        try:
            backend(q, q, q, Pattern(places=(place, place)))
        except UsageError as sentence:
            require("places" in str(sentence), f"the refusal of places does not name it: {sentence}")
    if "lse" not in subject.supports:
        try:
            backend.with_lse(q, q, q, Pattern())
        except UsageError as sentence:
            require("lse" in str(sentence), f"the refusal of with_lse does not name lse: {sentence}")


@in_situations("options")
def dropout(subject: BackendSubject) -> None:
    """Dropout falls on the weights: repeatable by seed, right on average, and not at all at rate 0."""
    if "dropout" not in subject.supports:
        raise Inapplicable("it does not lower dropout")
    backend = subject.build()
    q, k, v = (torch.randn(1, 4, 6, 12) for _ in range(3))

    def run(seed: int, rate: float = 0.3) -> Tensor:
        torch.manual_seed(seed)
        return backend(q, k, v, Pattern(), rate)

    whole = backend(q, k, v, Pattern())
    require(torch.equal(run(1), run(1)), "the same seed drops other weights: draw from torch's generator.")
    require(not torch.equal(run(1), whole), "dropout is claimed, and nothing is dropped.")
    require(not torch.equal(run(1), run(2)), "it drops the same weights each time: draw from torch's generator.")
    sums = backend(q, k, torch.ones_like(v), Pattern(), 0.3)
    whole_keys = difference(sums, sums[..., :1].expand_as(sums)) <= 1e-6
    require(whole_keys, "dropout falls on features of the result: drop whole keys, by their weights.")
    message = "dropout falls in front of the softmax: it falls on the weights."
    require(difference(sums, torch.ones_like(sums)) > 1e-3, message)
    hiding = {"causal": Pattern(causal=True), "valid": Pattern(valid=torch.arange(6)[None] < 5)}
    for feature in sorted(hiding.keys() & subject.supports):
        outs = []
        for last in (0.0, 1.0):
            torch.manual_seed(1)
            values = torch.cat([v[..., :-1, :], v[..., -1:, :] + last], -2)
            outs.append(backend(q, k, values, hiding[feature], 0.3)[..., :-1, :])
        require(difference(*outs) <= 1e-5, f"with dropout a hidden key is seen: {feature} is lost.")
    require(torch.equal(run(1, 0.0), whole), "rate 0 changes the result.")
    mean = torch.stack([run(seed) for seed in range(600)]).mean(0)
    gap = (mean - whole).abs().mean().item() / whole.abs().mean().item()
    require(gap <= 0.1, f"the mean over 600 draws is {gap:.0%} away from no dropout: divide what is kept by 1 - rate.")


@in_situations("options")
def leaves_inputs_alone(subject: BackendSubject) -> None:
    """Queries, keys, values and the mask of valid keys are not changed, and views of them work."""
    backend: Backend = subject.build()
    q, k, v = (torch.randn(2, 6, 4, 12).transpose(1, 2) for _ in range(3))
    valid = torch.tensor([[False, True, True, True, False, False]] * 2)
    copies = [tensor.clone() for tensor in (q, k, v, valid)]
    pattern = Pattern(valid=valid if "valid" in subject.supports else None)
    out = backend(q, k, v, pattern)
    same = all(torch.equal(a, b) for a, b in zip((q, k, v, valid), copies, strict=True))
    require(same, "an input was changed in place.")
    gap = difference(out, backend(q.contiguous(), k.contiguous(), v.contiguous(), pattern))
    require(gap <= 1e-5, f"views give results {gap:.1e} away from copies.")


PROMISES = [*COMMON, claims, values, long_sequences, gradients, log_sum_exp, log_sum_exp_gradients, scale_and_widths,
            more_keys_than_queries, width_of_values, low_precision, rows_without_keys, hidden_keys_do_not_leak,
            large_scores, refusal, dropout, leaves_inputs_alone, memory_claim, no_token_is_special, *SEQUENCE,
            learns_two_samples, *WEIGHTS, *TASKS]  # fmt: skip
