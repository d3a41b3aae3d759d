"""A backend that measures the others once for each kind of call and uses the fastest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from zoo.parts.backend import SDPA, Backend, Naive
from zoo.parts.derivatives import transformed
from zoo.parts.pattern import Pattern
from zoo.system import kernel_choice

log = logging.getLogger(__name__)
CANDIDATES: tuple[type[Backend], ...] = (
    SDPA,
    Naive,
)  # each serves every pattern
LARGEST = 2**28  # bytes of scores up to which backends are measured: Naive keeps several times as much


class Auto(Backend):
    """Whichever of SDPA and Naive is faster here for calls of this size, measured at the first one, and logged.

    Sizes that round up to the same powers of two count as one. The choice may differ between machines and runs, and
    with it the last digits: name a backend where runs are compared.
    """

    fastest_backends: dict[Hashable, Backend] = {}  # noqa: RUF012  (one measurement serves every layer of the process)

    def __call__(self, q, k, v, pattern, dropout=0.0, scale=None):
        self.check_pattern(pattern)
        # compiling comes first: numel() would fix sizes that an export leaves open
        alone = torch.compiler.is_compiling() or transformed() or q.is_meta or q.size(2) == 1
        if alone or q.shape[:-1].numel() * k.size(2) * 4 > LARGEST:
            return SDPA()(q, k, v, pattern, dropout, scale)
        # a call that drops weights is of training, also where its graph comes later (reentrant checkpoints): it must
        # draw the same numbers, by the same backend, both times
        training = dropout > 0 or (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
        training = training and not torch.is_inference_mode_enabled()
        sizes = tuple(1 << (n - 1).bit_length() for n in (q.size(0), q.size(2), k.size(2)))
        key = (*sizes, q.shape[1::2], k.size(1), q.dtype, q.device, pattern.needs, dropout > 0, training)
        if key not in self.fastest_backends:
            self.fastest_backends[key] = fastest(q, k, v, pattern, dropout, scale, training)
        return self.fastest_backends[key](q, k, v, pattern, dropout, scale)


def fastest(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, dropout: float, scale: float | None, training: bool
) -> Backend:
    """The candidate that `kernel_choice` takes for this call, gradients included in training.

    Nothing of the call is touched: neither random numbers, nor what the pattern remembers, nor autocast's cache.
    """
    rivals = {repr(kind()): kind() for kind in CANDIDATES}
    needs = "+".join(sorted(pattern.needs)) or "no mask"
    dtype, place = str(q.dtype).removeprefix("torch."), q.device.type
    autocast = autocast_state(place)

    def prepare() -> dict[str, Callable[[], object]]:
        return {name: partial(run, rival) for name, rival in rivals.items()}

    # a pattern of its own: what the live one remembers is part of the graph that is being built
    own = replace(pattern)

    def run(rival: Backend) -> None:
        with torch.set_grad_enabled(training), autocast():
            query, key, value = (x.detach().requires_grad_(training) for x in (q, k, v))
            out = rival(query, key, value, own, dropout, scale)
            if training:
                torch.autograd.grad(out, (query, key, value), torch.ones_like(out))

    sizes = tuple(1 << (n - 1).bit_length() for n in (q.size(0), q.size(2), k.size(2)))
    what = ("Auto", "training" if training else "evaluation", needs, dtype, place, *["dropout"] * (dropout > 0))
    call = (" ".join(what), *sizes, q.size(1), k.size(1), q.size(3))
    best = rivals[kernel_choice.choose(call, list(rivals), prepare)]
    times = kernel_choice.times(call)
    if not times:
        return best
    figures = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in times.items())
    log.warning(
        "backend Auto: %s for %d x %d, %d heads of %d, %s, %s (%s)",
        best, q.size(2), k.size(2), q.size(1), q.size(3), needs, str(q.dtype).removeprefix("torch."), figures,
    )  # fmt: skip
    return best


def autocast_state(place: str) -> Callable[[], AbstractContextManager]:
    """A context of autocast as it is now on this kind of device, but for its cache, which stays as it is."""
    if not torch.amp.is_autocast_available(place):
        return nullcontext
    dtype, enabled = torch.get_autocast_dtype(place), torch.is_autocast_enabled(place)
    return lambda: torch.autocast(place, dtype, enabled, cache_enabled=False)
