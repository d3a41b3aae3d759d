"""The contract of a norm."""

from __future__ import annotations

import copy

import torch

from zoo.conformance.check import Inapplicable, require
from zoo.conformance.parameter_checks import WEIGHTS
from zoo.conformance.short_training import TASKS
from zoo.conformance.subject import NormSubject, spread
from zoo.conformance.token_checks import CAP, COMMON, difference, reference, token_by_token


def any_width(subject: NormSubject) -> None:
    """A norm is over the last dimension, of any width, whatever stands in front of it."""
    for dim in (1, 2, 7, 48):
        norm = spread(subject.build(dim))
        for shape in ((dim,), (3, dim), (2, 3, dim), (2, 3, 4, dim)):
            x = torch.randn(shape)
            out = norm(x)
            require(out.shape == x.shape, f"x of shape {shape} came back as {tuple(out.shape)}.")
        x = torch.randn(4, 5, dim)
        alone = norm(x[1, 2])
        gap = difference(alone, norm(x)[1, 2])
        require(gap <= 1e-6, f"one vector differs by {gap:.1e} from itself among others: normalise dim=-1 alone.")


def extreme_sizes(subject: NormSubject) -> None:
    """Zeros, tiny and huge numbers give finite results and gradients, in float16 too."""
    norm = spread(subject.build())
    for scale in (0.0, 1e-20, 1e-8, 300.0, 1e4, 1e15):
        x = (scale * subject.tokens()).requires_grad_()
        out = norm(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        fine = bool(out.isfinite().all() and grad.isfinite().all())
        message = f"numbers of size {scale:g} give results or gradients that are not finite: add eps inside the root."
        require(fine, message)
    half = norm.to(torch.float16)
    exact = copy.deepcopy(half).double()
    for scale in (300.0, 6e4):
        x = torch.full((1, 2, 48), scale, dtype=torch.float16) * torch.linspace(0.5, 1, 48).half()
        gap = difference(half(x), exact(x.double()))  # infinity divided by infinity may well be finite
        require(gap <= CAP[torch.float16], f"float16 numbers of size {scale:g} overflow: square in float32.")


def far_from_zero(subject: NormSubject) -> None:
    """Tokens far from zero are as exact as others, also under bfloat16 autocast."""
    norm = spread(subject.build())
    exact = copy.deepcopy(norm).double()
    x = subject.tokens(4, 8) + 1000
    expected = exact(x.double())
    gap = difference(norm(x), expected)
    require(
        gap <= 2e-3,
        f"features around 1000 with deviation 1 come out {gap:.1e} away from float64: subtract the mean first and "
        "square what is left, since the difference of two large numbers has few digits.",
    )
    with torch.autocast("cpu", torch.bfloat16):
        gap = difference(norm(x), expected)
    require(
        gap <= CAP[torch.bfloat16],
        f"under autocast features around 1000 come out {gap:.1e} away from float64: take means by .mean(), not by a "
        "matrix product, which runs in bfloat16 there.",
    )


def invariance(subject: NormSubject) -> None:
    """What it declares to ignore (``invariant``: the shift, the scale of a token) does not change the result."""
    declared = subject.build().invariant
    if not declared:
        raise Inapplicable("it declares no invariance")
    norm, x = spread(subject.build()).double(), subject.tokens(dtype=torch.float64)
    out = norm(x)
    if "scale" in declared:
        gap = difference(norm(37.0 * x), out)
        require(gap <= 1e-4, f"declared to ignore scale, yet 37 x gives results {gap:.1e} away.")
        gap = difference(norm(0.002 * x), norm(0.004 * x))
        require(gap >= 1e-8 or gap == 0, f"eps seems to be missing (gap {gap:.1e}).")
    if "shift" in declared:
        gap = difference(norm(x + 5.0), out)
        require(gap <= 1e-6, f"declared to ignore a shift, yet x + 5 gives results {gap:.1e} away.")


PROMISES = [*COMMON, token_by_token, any_width, extreme_sizes, far_from_zero, invariance, reference, *WEIGHTS, *TASKS]
