"""Matrices in eight bits for writing on a CPU: a quarter of the bytes that each token has to read."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from zoo.errors import UsageError
from zoo.parts.few_row_linear import Packed, can_serve, pack_once

ENGINE = "fbgemm"  # twice as fast as oneDNN's at one row


class Int8(Packed):
    """W (out, in) as round(W / s) with a scale s = max |W| / 127 per output; x is rounded too, in each product.

    x becomes 8 bits with one scale and zero point for all of its rows; products are added up as integers.
    """

    def serves(self, rows: int) -> bool:
        """Whether its product is used for so many rows: for any number, since 8 bits are an option."""
        return True

    @staticmethod
    def lay(weight: Tensor) -> Any:
        """The matrix W (out, in) in eight bits, as fbgemm stores it."""
        scale, zero = scales(weight), torch.zeros(len(weight), dtype=torch.long)
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = ENGINE
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch announces to move it to another package
                rounded = torch.quantize_per_channel(weight, scale.double(), zero, 0, torch.qint8)
                return torch.ops.quantized.linear_prepack(rounded, None)
        finally:
            torch.backends.quantized.engine = before

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., in) to x W^T + b, (..., out)."""
        # without VNNI the products of two neighbours are added up in 16 bits, which only 7 bits of x do not overflow
        has_vnni = torch.cpu.get_capabilities().get("avx512_vnni", False)
        out = torch.ops.quantized.linear_dynamic(x.contiguous(), self.matrix, not has_vnni)
        return out if bias is None else out.add_(bias)


def scales(weight: Tensor) -> Tensor:
    """What one step of an integer stands for, per output: (out,)."""
    return weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny * 128) / 127


@torch.no_grad()
def quantize(weights: Iterable[Tensor]) -> list[Packed]:
    """Matrices whose products are computed in eight bits for as long as the result is held.

    Raises UsageError where that cannot be: another device or type, a torch without these kernels, no matrix at all.
    """
    every = list(weights)
    if not every:
        raise UsageError("int8: this model has no matrix that eight bits would serve. Leave --int8 out.")
    if ENGINE not in torch.backends.quantized.supported_engines or not hasattr(torch.ops.quantized, "linear_dynamic"):
        raise UsageError("int8: this build of torch has no 8-bit products (fbgemm, on x86 CPUs). Leave --int8 out.")
    for weight in every:
        if not can_serve(weight) or weight.dtype is not torch.float32:
            dtype, device = str(weight.dtype).removeprefix("torch."), weight.device.type
            raise UsageError(f"int8: it serves float32 on a CPU, and the model is {dtype} on {device}: --device cpu")
        if not bool(weight.isfinite().all()):
            raise UsageError("int8: a weight of this model is not finite, so that it has no scale.")
    return [pack_once(weight, Int8) for weight in every]
