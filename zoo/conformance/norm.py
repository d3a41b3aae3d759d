"""The contract of a norm."""

from __future__ import annotations

import torch

from zoo.conformance.check import Inapplicable, require
from zoo.conformance.common import COMMON, apart
from zoo.conformance.subject import NormSubject, spread
from zoo.conformance.tasks import TASKS
from zoo.conformance.tokens import TOKENS, reference
from zoo.conformance.weights import WEIGHTS


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
        gap = apart(alone, norm(x)[1, 2])
        require(gap <= 1e-6, f"one vector differs by {gap:.1e} from itself among others: normalise dim=-1 alone.")


def extreme_sizes(subject: NormSubject) -> None:
    """Zeros, tiny and huge numbers give finite results and gradients, in float16 too."""
    norm = spread(subject.build())
    for scale in (0.0, 1e-20, 1e-8, 300.0, 1e4, 1e15):
        x = (scale * subject.tokens()).requires_grad_()
        out = norm(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        fine = bool(out.isfinite().all() and grad.isfinite().all())
        require(
            fine, f"numbers of size {scale:g} give results or gradients that are not finite: add eps inside the root."
        )
    half = norm.to(torch.float16)
    for scale in (300.0, 6e4):
        out = half(torch.full((1, 2, 48), scale, dtype=torch.float16) * torch.linspace(0.5, 1, 48).half())
        require(bool(out.isfinite().all()), f"float16 numbers of size {scale:g} overflow: square in float32.")


def invariance(subject: NormSubject) -> None:
    """What it declares to ignore (``invariant``: the shift, the scale of a token) does not change the result."""
    declared = subject.build().invariant
    if not declared:
        raise Inapplicable("it declares no invariance")
    norm, x = spread(subject.build()).double(), subject.tokens(dtype=torch.float64)
    out = norm(x)
    if "scale" in declared:
        gap = apart(norm(37.0 * x), out)
        require(gap <= 1e-4, f"declared to ignore scale, yet 37 x gives results {gap:.1e} away.")
        gap = apart(norm(0.002 * x), norm(0.004 * x))
        require(gap >= 1e-8 or gap == 0, f"eps seems to be missing (gap {gap:.1e}).")
    if "shift" in declared:
        gap = apart(norm(x + 5.0), out)
        require(gap <= 1e-6, f"declared to ignore a shift, yet x + 5 gives results {gap:.1e} away.")


PROMISES = [*COMMON, *TOKENS, any_width, extreme_sizes, invariance, reference, *WEIGHTS, *TASKS]
