"""Tensor parallelism: each process computes its share of the heads and of the hidden units (Shoeybi et al., 2019).

A part says what can be divided, ``tensor_parallel = {"up": "columns", "down": "rows"}``: its matrices by name, and how.
``heads`` divides queries, keys and values, ``columns`` what a matrix gives, ``rows`` what it takes. The sums of rows
are added up over processes; everything else of a model is computed by each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.initialization import MuP
from zoo.parts.attention import Attention
from zoo.parts.few_row_linear import Linear, linear
from zoo.parts.ffn import FFN
from zoo.parts.packing import declared
from zoo.parts.position import Position

PLAN = "tensor_parallel"


@dataclass(frozen=True)
class Division:
    """How a tensor is divided along a dimension: every section of it, such as queries and keys, by itself."""

    dim: int
    sections: tuple[int, ...]  # sizes in the whole tensor

    def part(self, whole: Tensor, rank: int, count: int) -> Tensor:
        """The part of a whole tensor that process ``rank`` of ``count`` has, shaped as it but for ``dim``."""
        sections = whole.split(self.sections, self.dim)
        return torch.cat([section.chunk(count, self.dim)[rank] for section in sections], self.dim)

    def whole(self, parts: list[Tensor]) -> Tensor:
        """The whole tensor from the parts of all processes, shaped as these but for ``dim``."""
        sizes = [size // len(parts) for size in self.sections]
        pieces = zip(*(part.split(sizes, self.dim) for part in parts), strict=True)  # of each section, all processes'
        return torch.cat([torch.cat(section, self.dim) for section in pieces], self.dim)


class Shared(torch.autograd.Function):
    """What every process computes and then uses for its part: gradients are added up over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """x of any shape to itself."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The sum of the gradients of all processes, shaped as each."""
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """The sum of what the processes give, which each of them goes on with: its gradient is that of every part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """x of any shape to the sum over processes."""
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient itself, of any shape."""
        return grads[0], None


class RowLinear(Linear):
    """x W^T + b of which a process has some columns of W, and some features of x: products are added up."""

    packs = True
    group: Any

    def forward(self, input: Tensor) -> Tensor:
        """x (..., own share of in) to (..., out)."""
        out = cast(Tensor, Summed.apply(linear(input, self.weight), self.group))
        return out if self.bias is None else out + self.bias


def divide(net: nn.Module, group: Any) -> dict[str, Division]:
    """Leave each process its share of the parts of a network; how its parameters are divided, by their names.

    Raises UsageError for what cannot be divided, before anything is changed.
    """
    count = dist.get_world_size(group)
    parts = {name: part for name, part in net.named_modules() if isinstance(part, (Attention, FFN))}
    # a part in another one, such as an expert, belongs to that
    outer = {name: part for name, part in parts.items() if not any(name.startswith(f"{above}.") for above in parts)}
    check_network(net)
    owners: dict[int, str] = {}
    for name, part in outer.items():
        check_part(part, count)
        for matrix in plan_of(part):
            weight = getattr(part, matrix).weight
            if owners.setdefault(id(weight), name) != name:
                raise refusal(f"{name}.{matrix}, whose weights are also those of {owners[id(weight)]}")
    divisions: dict[str, Division] = {}
    for name, part in outer.items():
        for matrix, way in plan_of(part).items():
            for parameter, division in divide_matrix(part, matrix, way, group).items():
                divisions[f"{name}.{matrix}.{parameter}"] = division
        if isinstance(part, Attention):
            part.heads, part.kv_heads = part.heads // count, part.kv_heads // count
        part.register_forward_pre_hook(lambda _, inputs: tuple(share(x, group) for x in inputs))
    return divisions


def share(x: Any, group: Any) -> Any:
    """A tensor that every process has and computes its part from; other values as they are."""
    return Shared.apply(x, group) if isinstance(x, Tensor) and x.is_floating_point() else x


def plan_of(part: Attention | FFN) -> dict[str, str]:
    """What a part declares about itself; a subclass with code of its own has to declare it again."""
    return cast(dict[str, str], declared(type(part), PLAN) or {})


def check_network(net: nn.Module) -> None:
    """Raise UsageError for a network with what depends on the number of a head or the width of the whole."""
    for module in net.modules():
        if isinstance(module, Position) and module.biases:
            raise refusal(f"position {type(module).__name__}, whose bias depends on the number of a head. Take RoPE")
        if isinstance(getattr(module, "init_rule", None), MuP):
            raise refusal("init MuP, whose rates depend on the widths of whole matrices. Take another")


def check_part(part: Attention | FFN, count: int) -> None:
    """Raise UsageError for a part that cannot be divided among ``count`` processes."""
    name, plan = type(part).__name__, plan_of(part)
    if not plan:
        raise refusal(f"{part.kind} {name}, which declares no {PLAN}. Take another, or the strategy fsdp2")
    matrices = {matrix: getattr(part, matrix) for matrix in plan}
    for matrix, module in matrices.items():
        if type(module) not in (nn.Linear, Linear):
            raise refusal(f"{name}.{matrix}, which is a {type(module).__name__} and no Linear")
    sizes: dict[str, int] = {}
    if isinstance(part, Attention):
        if part.dropout:
            raise refusal("attention_dropout, since all processes would drop the weights of the same places. Take 0")
        if not isinstance(part.query_norm, nn.Identity):
            raise refusal(f"attention {name} with a qk_norm, which all heads share. Leave it out")
        sizes |= {"heads": part.heads, "kv_heads": part.kv_heads}
    hidden = {matrix: module.in_features for matrix, module in matrices.items() if plan[matrix] == "rows"}
    sizes |= {f"the width of {matrix}": width for matrix, width in hidden.items()}
    for what, size in sizes.items():
        if size % count:
            raise refusal(f"{name}: {what}={size} is not divisible by the {count} processes. Take another size")


def refusal(what: str) -> UsageError:
    """The error about what tensor parallelism cannot divide."""
    error = UsageError(f"trainer.strategy tp cannot divide {what}.")
    error.everywhere = True
    return error


def divide_matrix(part: Attention | FFN, matrix: str, way: str, group: Any) -> dict[str, Division]:
    """Leave this process its share of one matrix of a part, and of its bias."""
    module = getattr(part, matrix)
    out, rows = module.out_features, [m for m, w in plan_of(part).items() if w == "rows"]
    if way == "rows":
        divisions = {"weight": Division(1, (module.in_features,))}
        module.__class__, module.group = RowLinear, group
    else:
        if way == "heads":
            attention = cast(Attention, part)
            queries, keys = attention.heads * attention.query_matrix, attention.kv_heads
            sections = tuple(heads * attention.head_dim for heads in (queries, keys, keys))
        else:  # as many side by side as matrices would give what the next one takes
            width = hidden_width(part, rows, group) if rows else out
            sections = (width,) * (out // width)
        divisions = {"weight": Division(0, sections)}
        if module.bias is not None:
            divisions["bias"] = Division(0, sections)
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    for name, division in divisions.items():
        parameter = getattr(module, name)
        parameter.data = division.part(parameter.data, rank, count).contiguous()
    module.out_features, module.in_features = module.weight.shape
    return divisions


def hidden_width(part: Attention | FFN, rows: Iterable[str], group: Any) -> int:
    """What the matrix that is divided by rows takes, of all processes together."""
    module = getattr(part, next(iter(rows)))
    own = module.in_features
    return own * dist.get_world_size(group) if isinstance(module, RowLinear) else own


def gather_whole(own: Tensor, division: Division | None, group: Any) -> Tensor:
    """The whole of a tensor of any shape of which this process has a part; every process must call it."""
    if division is None:
        return own
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own.contiguous(), group=group)
    return division.whole(parts)
