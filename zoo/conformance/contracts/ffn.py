"""The contract of a feed-forward."""

from __future__ import annotations

import copy
from typing import cast

import torch

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.parameter_checks import WEIGHTS
from zoo.conformance.sequence_checks import learns_two_samples, pad
from zoo.conformance.short_training import TASKS
from zoo.conformance.subject import FFNSubject, spread
from zoo.conformance.token_checks import CAP, COMMON, difference, rates_of_dropping, reference, token_by_token
from zoo.models.initialization import initialize
from zoo.parts.ffn import aux_losses


@once
def budget(subject: FFNSubject) -> None:
    """``hidden`` is a budget: two matrices of that width, ``copies`` times, within five percent."""
    dim, hidden = 48, 192
    part = subject.build(dim, hidden)
    count = sum(parameter.numel() for parameter in part.parameters() if parameter.dim() > 1)
    times = float(getattr(part, "copies", 1))
    share = count / (2 * dim * hidden * times)
    sentence = f"{count:,} weights in matrices are {share:.2f} times the budget {times}·2·dim·hidden"
    require(0.95 <= share <= 1.05, f"{sentence}: a swap would change the model's size. Gated parts use 2/3 of hidden.")


def any_size(subject: FFNSubject) -> None:
    """Any width and any budget work."""
    for dim, hidden in ((1, 3), (8, 7), (48, 1), (5, 33)):
        part, x = spread(subject.build(dim, hidden)), torch.randn(2, 3, dim)
        require(part(x).shape == x.shape, f"dim={dim}, hidden={hidden}: the shape (B, T, dim) is not kept.")


def no_token_is_dropped(subject: FFNSubject) -> None:
    """Every token is computed, also when all are alike: none comes back as zeros."""
    part = spread(subject.changed(**dict.fromkeys(rates_of_dropping(subject), 0.0)).build()).train()
    same, state = subject.tokens(1, 1).expand(1, 64, -1).contiguous(), torch.get_rng_state()
    out = part(same)
    require(bool((out != 0).any(-1).all()), "some of 64 equal tokens come back as zeros: they were dropped.")
    gap = difference(out, out[:, :1].expand_as(out))
    # what draws random numbers may move tokens apart, by less than a rate of dropping of 0.8 does
    slight = not torch.equal(torch.get_rng_state(), state) and bool(out.std(1).norm() <= 2 * out.mean(1).norm())
    require(gap <= 1e-5 or slight, "equal tokens get different results.")


def aux_loss(subject: FFNSubject) -> None:
    """A loss of its own is one finite number with a gradient, left in training only: the mean of calls until taken."""
    part, batches, losses = spread(subject.build()).train(), [subject.tokens(2, 8), subject.tokens(2, 8)], []
    for batch in batches:
        torch.manual_seed(3)
        part(batch)
        loss, part.aux_loss = part.aux_loss, None
        if loss is None:
            return
        require(isinstance(loss, torch.Tensor) and loss.dim() == 0, "aux_loss must be a tensor without dimensions.")
        require(bool(loss.isfinite()), "aux_loss is not finite.")
        require(loss.requires_grad, "aux_loss has no gradient: it is detached, and teaches nothing.")
        losses.append(loss)
    for batch in batches:
        torch.manual_seed(3)
        part(batch)
    mean, right = cast(torch.Tensor, part.aux_loss), (losses[0] + losses[1]) / 2
    require(
        difference(mean, right) <= 1e-6,
        "aux_loss is not the mean over its calls until it is taken: leave each by zoo.parts.ffn.leave_loss.",
    )
    loss = part.aux_loss
    part.eval()(subject.tokens(2, 8))
    require(part.aux_loss is loss or part.aux_loss is None, "aux_loss is computed in evaluation.")


def side_loss_of_real_tokens(subject: FFNSubject) -> None:
    """What stands at padding changes no side loss."""
    net = subject.stack().train()
    rows, losses = [subject.tokens(1, length) for length in (6, 3)], []
    for rubbish in (0.0, 10.0):
        net(*pad(rows, True, rubbish))
        losses.append(sum(aux_losses(net), torch.zeros(())))
    if not losses[0].requires_grad:
        raise Inapplicable("it has no side loss")
    gap = difference(losses[1], losses[0])
    require(gap <= 1e-6, f"what stands at padding changes the side loss by {gap:.1e}: set real_tokens = True.")


def many_tokens(subject: FFNSubject) -> None:
    """Of a thousand tokens in low precision each is near float64: what decides is computed in float32."""
    x = subject.tokens(1, 1024)
    for dtype in (torch.bfloat16, torch.float16, None):
        part = spread(subject.build()).to(dtype or torch.float32)
        exact = copy.deepcopy(part).double()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is None):
            out = part(x.to(dtype or torch.float32))
        gap = difference(out, exact(x.to(dtype or torch.float32).double()))
        require(
            gap <= CAP[dtype or torch.bfloat16],
            f"in {dtype or 'autocast'} one of 1,024 tokens is {gap:.1e} away from float64: what chooses between ways "
            "must decide in float32, outside of autocast.",
        )


def nonlinear(subject: FFNSubject) -> None:
    """It is no linear map of its input: two layers of one would be one."""
    part = spread(subject.build()).double()
    initialize(part)
    x, y = subject.tokens(1, 3, torch.float64), subject.tokens(1, 3, torch.float64)
    zero = part(torch.zeros_like(x))
    bent = difference(part(x + y) - zero, part(x) - zero + part(y) - zero)
    require(bent > 1e-6, "it is linear in its input: is the activation missing?")


PROMISES = [*COMMON, token_by_token, any_size, budget, nonlinear, no_token_is_dropped, many_tokens, aux_loss,
            side_loss_of_real_tokens, reference, learns_two_samples, *WEIGHTS, *TASKS]  # fmt: skip
