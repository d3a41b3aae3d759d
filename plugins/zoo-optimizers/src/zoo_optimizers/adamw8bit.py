"""AdamW whose moments take 8 bits a number."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from zoo.value_checks import above_zero, at_least
from zoo_optimizers import check

BLOCK = 256  # numbers that share a scale
CHUNK = 2**20  # numbers that are in 32 bits at a time
MOMENTS = (("state1", "absmax1", True), ("state2", "absmax2", False))  # codes, scales, and whether they have a sign


class AdamW8bit(Optimizer):
    """AdamW with both moments in 8 bits (Dettmers et al., 2022): 2 bytes a parameter in place of 8.

    Each block of 256 numbers has a scale of its own. Zero is kept exactly: a number without gradient stays. Tensors
    with fewer numbers than ``smallest``, and those in float64, keep moments of their full width.
    """

    tried_options: ClassVar[tuple[dict[str, Any], ...]] = ({"smallest": 1},)
    width_exponents: ClassVar[dict[str, float]] = {}  # the size of steps is that of Adam
    whole_tensors = "keeps its state in blocks of whole tensors"  # why no strategy may divide them

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        smallest: int = 4096,
    ):
        """
        Args:
            betas: decay of both moments.
            eps: added to the root of the second moment.
            weight_decay: of matrices, times lr per step.
            smallest: numbers of the smallest tensor whose moments take 8 bits.
        """
        check(betas, weight_decay)
        above_zero(**{"optimizer.eps": eps})
        at_least(1, **{"optimizer.smallest": smallest})
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "smallest": smallest}
        super().__init__(params, options)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state as ``state_dict`` gives it; torch alone would make float32 numbers of the 8-bit moments."""
        super().load_state_dict(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, copy=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; the loss of ``closure``, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Step a parameter of any shape, some numbers at a time."""
        state = self.state[parameter]
        if not state:
            state.update(new_state(parameter, group["smallest"]))
        state["step"] += 1
        flat, slope = parameter.contiguous().view(-1), gradient.reshape(-1)
        for start in range(0, flat.numel(), CHUNK):
            part = slice(start, start + CHUNK)
            weights = flat[part].to(state["state1"].dtype if "absmax1" not in state else torch.float32)
            flat[part] = updated(weights, slope[part].to(weights.dtype), state, part, group)
        if not parameter.is_contiguous():
            parameter.copy_(flat.view_as(parameter))


def new_state(parameter: Tensor, smallest: int) -> dict[str, Any]:
    """Moments of zero for a parameter of any shape: codes (numel,) and scales (blocks,), or numbers (numel,)."""
    size, wide = parameter.numel(), torch.promote_types(parameter.dtype, torch.float32)
    if size < smallest or wide == torch.float64:
        return {"step": 0} | {name: parameter.new_zeros(size, dtype=wide) for name, _, _ in MOMENTS}
    state: dict[str, Any] = {"step": 0}
    for name, scale, signed in MOMENTS:
        zero = int((code_values(signed, parameter.device) == 0).nonzero())
        state[name] = parameter.new_full((size,), zero, dtype=torch.uint8)
        state[scale] = parameter.new_zeros(-(-size // BLOCK), dtype=torch.float32)
    return state


def updated(weights: Tensor, gradient: Tensor, state: dict[str, Any], part: slice, group: dict[str, Any]) -> Tensor:
    """The weights (N,) after a step of AdamW, whose moments it replaces in ``state``."""
    (slow, fast), eight = group["betas"], "absmax1" in state
    blocks = slice(part.start // BLOCK, -(-part.stop // BLOCK))
    moments = [
        decode(state[name][part], state[scale][blocks], signed) if eight else state[name][part]
        for name, scale, signed in MOMENTS
    ]
    mean = moments[0].lerp_(gradient, 1 - slow)
    square = moments[1].mul_(fast).addcmul_(gradient, gradient, value=1 - fast)
    square.clamp_(max=torch.finfo(square.dtype).max)
    count = state["step"]
    root = (square / (1 - fast**count)).sqrt_().add_(group["eps"])
    result = weights.mul(1 - group["lr"] * group["weight_decay"]).addcdiv_(
        mean, root, value=-group["lr"] / (1 - slow**count)
    )
    if eight:
        for moment, (name, scale, signed) in zip(moments, MOMENTS, strict=True):
            state[name][part], state[scale][blocks] = encode(moment, signed)
    return result


@functools.cache
def code_values(signed: bool, device: torch.device) -> Tensor:
    """The values of the 256 codes (256,), rising: 0, 1, and seven powers of ten, each cut finer than the one below."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1.0, 2 ** (exponent + (not signed)) + 1)
        sizes = (10.0 ** (exponent - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
        values += [*sizes, *(-size for size in sizes if signed)]
    return torch.tensor(sorted(values), device=device)


@functools.cache
def nearest_codes(signed: bool, device: torch.device) -> Tensor:
    """The nearest code (2**18,) by the first 18 bits of a float32: sign, exponent and 9 bits of the fraction.

    A table is five times as fast as a binary search, and differs from it within 0.1 % of where two codes meet.
    """
    middles = (torch.arange(2**18, dtype=torch.int32) << 14 | 1 << 13).view(torch.float32)
    values = code_values(signed, torch.device("cpu"))
    codes = torch.bucketize(middles, (values[:-1] + values[1:]) / 2)
    if not signed:
        codes[1:].clamp_(min=1)  # steps divide by the root of this moment: zero is for numbers without gradient alone
    return codes.to(device, torch.uint8)


def decode(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """Codes (N,) with a scale per block as numbers (N,)."""
    values = code_values(signed, codes.device).index_select(0, codes.int())
    return values.mul_(scales.repeat_interleave(BLOCK)[: len(values)])


def encode(numbers: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """The nearest codes (N,) of numbers (N,), and the scale of each block: its largest size."""
    blocks = F.pad(numbers, (0, -len(numbers) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    shares = blocks / scales.clamp(min=torch.finfo(scales.dtype).tiny)[:, None]
    bits = shares.view(-1)[: len(numbers)].view(torch.int32) >> 14 & 2**18 - 1
    return nearest_codes(signed, numbers.device).index_select(0, bits), scales
