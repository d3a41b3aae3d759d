"""A backend that measures the others once for each kind of call and uses the fastest."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from zoo.parts.backend import SDPA, Backend, Naive
from zoo.parts.derivatives import transformed
from zoo.parts.pattern import Pattern

log = logging.getLogger(__name__)
CANDIDATES: tuple[type[Backend], ...] = (
    SDPA,
    Naive,
)  # each serves every pattern
REPEATS = 3
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
    """The candidate with the least median time for this call, gradients included in training.

    Nothing of the call is touched: neither random numbers, nor what the pattern remembers, nor autocast's cache.
    """
    times = {}
    rivals = [kind() for kind in CANDIDATES]
    cuda = [q.device] if q.is_cuda else []
    # hooks on tensors that are saved for the backward pass must not see those of a measurement
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with torch.random.fork_rng(cuda), hooks, torch.set_grad_enabled(training), uncached_autocast(q.device.type):
        for rival in rivals:
            times_of_call = []
            # a pattern of its own: what the live one remembers is part of the graph that is being built
            own = replace(pattern)
            for _ in range(REPEATS + 1):
                one, two, three = (x.detach().requires_grad_(training) for x in (q, k, v))
                start = _now(q)
                out = rival(one, two, three, own, dropout, scale)
                if training:
                    torch.autograd.grad(out, (one, two, three), torch.ones_like(out))
                times_of_call.append(_now(q) - start)
            times[rival] = statistics.median(times_of_call[1:])  # the first one warms up, and computes the mask
    best = min(rivals, key=lambda rival: times[rival])
    figures = ", ".join(f"{rival} {times[rival] * 1e3:.2f} ms" for rival in rivals)
    needs = "+".join(sorted(pattern.needs)) or "no mask"
    log.warning(
        "backend Auto: %s for %d x %d, %d heads of %d, %s, %s (%s)",
        best, q.size(2), k.size(2), q.size(1), q.size(3), needs, str(q.dtype).removeprefix("torch."), figures,
    )  # fmt: skip
    return best


def uncached_autocast(place: str) -> AbstractContextManager:
    """Autocast as it is now on this kind of device, but for its cache, which stays as it is."""
    if not torch.amp.is_autocast_available(place):
        return nullcontext()
    dtype, enabled = torch.get_autocast_dtype(place), torch.is_autocast_enabled(place)
    return torch.autocast(place, dtype, enabled, cache_enabled=False)


def _now(x: Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()
