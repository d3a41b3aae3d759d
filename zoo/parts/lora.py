"""Low-rank adapters: a linear layer that stays as it is, and a small one beside it that learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.disentangled import KeylessBias

LINEAR = (nn.Linear, KeylessBias)  # x W^T + b


class LowRank(nn.Module):
    """y = x (W + (alpha / r) B A)^T + b, in which only A (r, in) and B (out, r) learn (Hu et al., 2022).

    B is zero at first, so that an adapted model begins as what it was.
    """

    packs = True

    def __init__(self, linear: nn.Linear | KeylessBias, rank: int, alpha: float = 16.0):
        super().__init__()
        width, out = linear.weight.shape[1], linear.weight.shape[0]
        if not 1 <= rank <= min(width, out):
            raise UsageError(f"rank is {rank}: a matrix of {out} × {width} has a rank between 1 and {min(width, out)}.")
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.in_features, self.out_features = width, out
        self.down = nn.Parameter(linear.weight.new_empty(rank, width))
        self.up = nn.Parameter(linear.weight.new_empty(out, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A is drawn, B is zero: an adapter starts as no change."""
        nn.init.normal_(self.down, std=1 / math.sqrt(self.down.size(1)))
        nn.init.zeros_(self.up)

    @property
    def weight(self) -> Tensor:
        """W + (alpha / r) B A, (out, in), for parts that read the matrix themselves."""
        return self.linear.weight + self.scale * (self.up @ self.down)

    @property
    def bias(self) -> Tensor | None:
        """The adapted layer's own bias (out,), or None."""
        return self.linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) to (..., out)."""
        return self.linear(x) + self.scale * F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The adapted layer itself, of its own class, with the adapter in its matrix."""
        self.linear.weight = nn.Parameter(self.weight, requires_grad=False)
        return self.linear


def adapt(net: nn.Module, selects: Callable[[str], bool], rank: int, alpha: float) -> list[str]:
    """Put an adapter around every linear layer whose name is ``selects``; their names."""
    names = [name for name, module in net.named_modules() if isinstance(module, LINEAR) and selects(name)]
    for name in names:
        try:
            replace(net, name, LowRank(net.get_submodule(name), rank, alpha))  # type: ignore[arg-type]
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
    return names


def merge(net: nn.Module) -> nn.Module:
    """Make every adapted layer of ``net`` a plain one again, with the adapter in its matrix."""
    for name, module in list(net.named_modules()):
        if isinstance(module, LowRank):
            replace(net, name, module.merged())
    return net


def merge_tensors(tensors: Mapping[str, Tensor], rank: int, alpha: float) -> dict[str, Tensor]:
    """The tensors of a model with adapters, of any shape, by the names of one whose layers are plain: each matrix (out,
    in) of an adapted layer is W + (alpha / r) B A.
    """
    layers = [name.removesuffix(".down") for name in tensors if name.endswith(".down")]
    adapted = {f"{name}.linear.": name for name in layers if f"{name}.linear.weight" in tensors}
    result = {}
    for name, tensor in tensors.items():
        inside = next((prefix for prefix in adapted if name.startswith(prefix)), "")
        own, field = adapted.get(inside, ""), name.removeprefix(inside)
        if inside and field == "weight":
            tensor = tensor + alpha / rank * (tensors[f"{own}.up"] @ tensors[f"{own}.down"])
        if name.rpartition(".")[0] not in adapted.values() or not name.endswith((".up", ".down")):
            result[f"{own}.{field}" if inside else name] = tensor
    return result


def replace(net: nn.Module, name: str, module: nn.Module) -> None:
    """Put another module in the place of that name."""
    parent, _, last = name.rpartition(".")
    setattr(net.get_submodule(parent), last, module)
