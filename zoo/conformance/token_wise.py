"""Checks of parts that compute each token independently."""

from __future__ import annotations

import torch

from zoo.conformance.check import Inapplicable, require
from zoo.conformance.common import difference
from zoo.conformance.subject import FFNSubject, NormSubject, spread


def token_by_token(subject: NormSubject | FFNSubject) -> None:
    """A token's result depends on that token alone, by perturbation and by gradient."""
    part = spread(subject.build())
    x = subject.tokens(2, 6)
    whole = part(x)
    loud = x.clone()
    loud[:, 1:] = 1e3 * torch.randn_like(loud[:, 1:])
    gap = difference(part(loud)[:, :1], whole[:, :1])
    require(gap <= 1e-6, f"the first token changes by {gap:.1e} with the others: work on the last dimension alone.")
    part, x = part.double(), subject.tokens(1, 5, torch.float64).requires_grad_()
    for t in range(5):
        (grad,) = torch.autograd.grad((part(x)[0, t] ** 2).sum(), x)
        others = [s for s in range(5) if s != t and bool(grad[0, s].any())]
        require(not others, f"token {t} depends on token {others[0] if others else ''}: tokens must not mix.")
        require(bool(grad[0, t].any()), f"token {t} does not depend on itself: is its input detached?")
    flat = part(x.reshape(-1, x.size(-1)))
    require(difference(flat, part(x)[0]) <= 1e-10, "(tokens, dim) gives other numbers than (B, T, dim).")


def reference(subject: NormSubject | FFNSubject) -> None:
    """``forward`` equals ``reference``, the formula in plain steps, values and gradients in float64."""
    part = spread(subject.build()).double()
    x = subject.tokens(2, 5, torch.float64)
    for scale in (1.0, 1e-3):
        one, other = (scale * x).requires_grad_(), (scale * x).requires_grad_()
        try:
            expected = part.reference(other)
        except NotImplementedError:
            raise Inapplicable("it gives no reference") from None
        out = part(one)
        gap = difference(out, expected)
        require(gap <= 1e-10, f"it is {gap:.1e} away from its own formula for inputs of size {scale:g}.")
        probe = torch.randn_like(out)
        (slope,) = torch.autograd.grad((out * probe).sum(), one)
        (truth,) = torch.autograd.grad((expected * probe).sum(), other)
        gap = difference(slope, truth)
        require(gap <= 1e-8, f"its gradient is {gap:.1e} away from its own formula's.")


TOKENS = [token_by_token]
