"""Normalisation over the last dimension."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.value_checks import at_least


class Norm(nn.Module):
    """x of shape (..., dim) to the same shape and dtype."""

    kind = "norm"
    invariant: frozenset[str] = frozenset()  # what of a token it ignores: its "shift", its "scale"

    def __init__(self, dim: int, eps: float):
        super().__init__()
        at_least(0, eps=eps)
        self.dim, self.eps = dim, eps

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape by the formula in plain steps, which ``forward`` must equal.

        NotImplementedError where a norm has none.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """What ``print`` shows of it."""
        return f"{self.dim}, eps={self.eps}"


class LayerNorm(Norm):
    """Zero mean and unit variance: (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., 2016).

    Paper: Layer Normalization, Ba, Kiros and Hinton, 2016.
    """

    invariant = frozenset({"shift", "scale"})

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True):
        """
        Args:
            dim: width of a token.
            eps: added to the variance, so that a constant token is not divided by zero.
            bias: learn a bias beside the weight.
        """
        super().__init__(dim, eps)
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights of one, biases of zero."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def convert_state(self, start: nn.Module, state: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, str]]:
        """The weight (dim,) from that of an RMSNorm that this norm replaces; its bias begins at zero."""
        if not isinstance(start, RMSNorm) or start.dim != self.dim or "weight" not in state:
            return {}
        shift = f" + {start.offset:g}" if start.offset else ""
        return {"weight": (state["weight"] + start.offset, f"weight of RMSNorm{shift}")}

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape and dtype."""
        if x.dtype is self.weight.dtype:
            return F.layer_norm(x, (self.dim,), self.weight, self.bias, self.eps)
        wide = torch.promote_types(x.dtype, self.weight.dtype)
        return F.layer_norm(x.to(wide), (self.dim,), self.weight, self.bias, self.eps).to(x.dtype)

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        centred = x - x.mean(-1, keepdim=True)
        unit = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + self.eps) * self.weight
        return unit if self.bias is None else unit + self.bias


class RMSNorm(Norm):
    """Unit root mean square: x / sqrt(mean(x^2) + eps) * (offset + weight) (Zhang and Sennrich, 2019).

    Paper: Root Mean Square Layer Normalization, Zhang and Sennrich, 2019.
    """

    invariant = frozenset({"scale"})

    def __init__(self, dim: int, eps: float = 1e-6, offset: float = 0.0, joint: bool = False):
        """
        Args:
            dim: width of a token.
            eps: added to the mean square, so that a token of zeros is not divided by zero.
            offset: added to the weight, which begins at 1 - offset: Gemma has 1.
            joint: as a norm of queries and keys, over all heads together instead of each (OLMo 2).
        """
        super().__init__(dim, eps)
        self.offset, self.joint = offset, joint
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights of one, less the offset."""
        nn.init.constant_(self.weight, 1.0 - self.offset)

    def convert_state(self, start: nn.Module, state: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, str]]:
        """The weight (dim,) for this offset, from that of the norm that this one replaces."""
        if not isinstance(start, (LayerNorm, RMSNorm)) or start.dim != self.dim or "weight" not in state:
            return {}
        shift = (start.offset if isinstance(start, RMSNorm) else 0.0) - self.offset
        if isinstance(start, RMSNorm) and not shift:
            return {}  # the same tensor
        formula = f"weight of {type(start).__name__}" + (
            f" {'+' if shift > 0 else '-'} {abs(shift):g}" if shift else ""
        )
        return {"weight": (state["weight"] + shift, formula)}

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape and dtype; the mean of squares is taken in float32."""
        weight = self.weight + self.offset if self.offset else self.weight
        if x.dtype is weight.dtype is torch.float32:
            return F.rms_norm(x, (self.dim,), weight, self.eps)
        # the mean of squares overflows float16 from |x| = 256 on
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), (self.dim,), weight.to(wide), self.eps).to(x.dtype)

    def reference(self, x: Tensor) -> Tensor:
        """x (..., dim) to the same shape, by the formula in plain steps."""
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.eps) * (self.offset + self.weight)
