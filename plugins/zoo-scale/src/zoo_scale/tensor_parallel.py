"""Tensor parallelism: each process computes its share of the heads and of the hidden units (Shoeybi et al., 2019).

A part says what can be divided, ``tensor_parallel = {"up": "columns", "down": "rows"}``: its matrices by name, and how.
``heads`` divides queries, keys and values, ``columns`` what a matrix gives, ``rows`` what it takes. The sums of rows
are added up over processes. A network says so of its ``vocabulary``: embeddings, and what turns states into logits, of
which no process has all in training. Everything else of a model is computed by each process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.errors import UsageError
from zoo.models.initialization import MuP
from zoo.models.loss import IGNORED, ROWS
from zoo.models.seq2seq import TokenBias
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
    vocabulary: bool = False

    def part(self, whole: Tensor, rank: int, count: int) -> Tensor:
        """The part of a whole tensor that process ``rank`` of ``count`` has, shaped as it but for ``dim``."""
        sections = whole.split(self.sections, self.dim)
        return torch.cat([section.tensor_split(count, self.dim)[rank] for section in sections], self.dim)

    def sizes(self, rank: int, count: int) -> list[int]:
        """The sizes of the sections in the part of process ``rank`` of ``count``; the first ones have what is over."""
        return [size // count + (rank < size % count) for size in self.sections]

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole tensor from the parts of all processes, shaped as these but for ``dim``."""
        own = [part.split(self.sizes(rank, len(parts)), self.dim) for rank, part in enumerate(parts)]
        pieces = zip(*own, strict=True)  # of each section, all processes'
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


class Gathered(torch.autograd.Function):
    """The whole of what each process has a part of, and goes on with in the same way: its gradient is cut to parts."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, division: Division, group: Any) -> Tensor:
        """A part of any shape to the whole."""
        ctx.division, ctx.group = division, group
        return gather_whole(own, division, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The part of the gradient, shaped as that of the whole."""
        own = ctx.division.part(grads[0], dist.get_rank(ctx.group), dist.get_world_size(ctx.group))
        return own.contiguous(), None, None


class RowLinear(Linear):
    """x W^T + b of which a process has some columns of W, and some features of x: products are added up."""

    packs = True
    group: Any

    def forward(self, input: Tensor) -> Tensor:
        """x (..., own share of in) to (..., out)."""
        out = cast(Tensor, Summed.apply(linear(input, self.weight), self.group))
        return out if self.bias is None else out + self.bias


class VocabularyEmbedding(nn.Embedding):
    """An embedding of which a process has the rows of some tokens; rows of zeros for others are added up."""

    group: Any

    def forward(self, input: Tensor) -> Tensor:
        """Tokens (...) to (..., dim)."""
        if len(self.weight) == self.num_embeddings:  # in an evaluation
            return super().forward(input)
        place, outside = own_place(input, self.num_embeddings, self.group)
        rows = super().forward(place).masked_fill(outside[..., None], 0.0)
        return cast(Tensor, Summed.apply(rows, self.group))


def own_place(tokens: Tensor, vocabulary: int, group: Any) -> tuple[Tensor, Tensor]:
    """Where tokens (...) stand among those of this process, 0 for others; and which are others, both shaped alike."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    size, more = divmod(vocabulary, count)
    place = tokens - rank * size - min(rank, more)
    outside = (place < 0) | (place >= size + (rank < more))
    return place.masked_fill(outside, 0), outside


class VocabularyOutput:
    """A network of which a process has some rows of the matrix that gives logits, of ``vocabulary`` tokens."""

    group: Any
    vocabulary: int
    reads_own = False  # whether ``output`` is the own part at present

    @property
    def output(self) -> Tensor:
        """The matrix (vocabulary, dim) for whatever reads it, and for ``own_logits`` its own part."""
        own = cast(Tensor, super().output)  # type: ignore[misc]
        return own if self.reads_own else self._whole(own, 0)

    def _whole(self, own: Tensor, dim: int) -> Tensor:
        if own.size(dim) == self.vocabulary:  # in an evaluation
            return own
        return cast(Tensor, Gathered.apply(own, Division(dim, (self.vocabulary,)), self.group))

    def own_logits(self, states: Tensor) -> Tensor:
        """States (..., dim) to logits (..., own part of vocabulary)."""
        self.reads_own = True
        try:
            return cast(Tensor, super().logits(states))  # type: ignore[misc]
        finally:
            self.reads_own = False

    def logits(self, states: Tensor) -> Tensor:
        """States (..., dim) to logits (..., vocabulary)."""
        return self._whole(self.own_logits(share(states, self.group)), -1)

    def token_loss(self, states: Tensor, targets: Tensor, *smoothing: float) -> Tensor:
        """The sum of -log p(target), (), over states (..., dim) and targets (...), -100 for none.

        Some rows of logits are computed at a time, and again for the gradient.
        """
        if len(super().output) == self.vocabulary:  # type: ignore[misc]
            return cast(Tensor, super().token_loss(states, targets, *smoothing))  # type: ignore[misc]
        states, targets = share(states, self.group).flatten(0, -2), targets.flatten()
        losses = [checkpoint(self._loss, *rows, *smoothing, use_reentrant=False)
                  for rows in zip(states.split(ROWS), targets.split(ROWS), strict=True)]  # fmt: skip
        return torch.stack(losses).sum()

    def _loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        real = targets != IGNORED
        logits = self.own_logits(torch.where(real[:, None], states, 0.0))  # a row of padding may hold anything
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        place, outside = own_place(targets, self.vocabulary, self.group)
        own = logits.gather(1, place[:, None])[:, 0].masked_fill(outside, 0.0)
        sums = torch.stack([(logits - largest[:, None]).exp().sum(-1), own, logits.sum(-1)])
        weight, target, every = Summed.apply(sums, self.group)
        losses = weight.log() + largest - target * (1.0 - smoothing) - every / self.vocabulary * smoothing
        return torch.where(real, losses, 0.0).sum()


def divide_vocabulary(net: nn.Module, group: Any) -> dict[str, Division]:
    """Leave each process its share of the vocabulary of networks that declare how; how, by names of parameters.

    A network whose matrices are shared with others, or are no plain ones, keeps them whole.
    """
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    parameters = [*net.named_parameters(remove_duplicate=False)]
    divisions: dict[str, Division] = {}
    for network in [*net.modules()]:
        names = [name for name, way in plan_of(network).items() if way == "vocabulary"]
        modules = [module for name in names if (module := getattr(network, name)) is not None]
        own = {id(parameter) for module in modules for parameter in module.parameters()}
        elsewhere = {id(parameter) for module in net.modules() if module not in modules
                     for parameter in module.parameters(recurse=False)}  # fmt: skip
        if not own or own & elsewhere or not all(map(is_plain, modules)):
            continue
        sizes = {name: len(parameter) for name, parameter in parameters if id(parameter) in own}
        if min(sizes.values()) < count:
            continue
        divided = cast(Any, network)
        divided.vocabulary, divided.group = len(divided.output), group
        divided.__class__ = type(type(network).__name__, (VocabularyOutput, type(network)), {})
        for module in modules:
            if type(module) is nn.Embedding:
                module.__class__, module.group = VocabularyEmbedding, group
        divisions |= {name: Division(0, (size,), vocabulary=True) for name, size in sizes.items()}
    for name, parameter in net.named_parameters():
        if name in divisions:
            parameter.data = divisions[name].part(parameter.data, rank, count).clone()
    return divisions


def is_plain(module: nn.Module) -> bool:
    """Whether a module of a vocabulary has a row for each token and no code that would have to know of parts."""
    if type(module) is nn.Embedding:
        return module.padding_idx is None and module.max_norm is None and not module.sparse
    return type(module) in (nn.Linear, Linear, TokenBias)


class Divider:
    """Leaves each process its share of a network, one module of it after another."""

    def __init__(self, net: nn.Module, group: Any) -> None:
        """Raises UsageError for what cannot be divided."""
        check_network(net)
        self.net, self.group = net, group
        self.divisions: dict[str, Division] = {}  # of parameters, by their names in the network
        parts = {name: part for name, part in net.named_modules() if isinstance(part, (Attention, FFN))}
        # a part in another one, such as an expert, belongs to that
        self.parts = {name: part for name, part in parts.items()
                      if not any(name.startswith(f"{above}.") for above in parts)}  # fmt: skip
        owners: dict[int, str] = {}
        for name, part in self.parts.items():
            check_part(part, dist.get_world_size(group))
            for matrix in plan_of(part):
                weight = getattr(part, matrix).weight
                if owners.setdefault(id(weight), name) != name:
                    raise refusal(f"{name}.{matrix}, whose weights are also those of {owners[id(weight)]}")

    def divide(self, module: nn.Module) -> None:
        """Divide what is in a module, once; with the whole network also the vocabulary."""
        inside = {id(member) for member in module.modules()}
        for name in [name for name, part in self.parts.items() if id(part) in inside]:
            part = self.parts.pop(name)
            for matrix, way in plan_of(part).items():
                for parameter, division in divide_matrix(part, matrix, way, self.group).items():
                    self.divisions[f"{name}.{matrix}.{parameter}"] = division
            if isinstance(part, Attention):
                count = dist.get_world_size(self.group)
                part.heads, part.kv_heads = part.heads // count, part.kv_heads // count
            part.register_forward_pre_hook(lambda _, inputs: tuple(share(x, self.group) for x in inputs))
        if module is self.net:
            self.divisions |= divide_vocabulary(module, self.group)


def share(x: Any, group: Any) -> Any:
    """A tensor that every process has and computes its part from; other values as they are."""
    return Shared.apply(x, group) if isinstance(x, Tensor) and x.is_floating_point() else x


def plan_of(part: nn.Module) -> dict[str, str]:
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
        else:  # as many side by side as matrices would give what the next one takes, which comes behind it in a plan
            width = getattr(part, rows[0]).in_features if rows else out
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


def gather_whole(own: Tensor, division: Division | None, group: Any) -> Tensor:
    """The whole of a tensor of any shape of which this process has a part; every process must call it."""
    if division is None:
        return own
    count = dist.get_world_size(group)
    sizes = [sum(division.sizes(rank, count)) for rank in range(count)]
    first = own.movedim(division.dim, 0)
    filled = torch.cat([first, first.new_zeros(sizes[0] - len(first), *first.shape[1:])])  # parts of one size
    parts = [torch.empty_like(filled) for _ in range(count)]
    dist.all_gather(parts, filled, group=group)
    return division.whole([part[:size].movedim(0, division.dim) for part, size in zip(parts, sizes, strict=True)])
