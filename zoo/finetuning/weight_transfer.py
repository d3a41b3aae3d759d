"""Start from trained weights: which tensors were kept, extended, newly initialised or left out, each of them told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from zoo.errors import UsageError

Shape = tuple[int, ...]


@dataclass
class Transfer:
    """What became of every tensor, by name: of the net, and of those in the file."""

    kept: dict[str, Shape] = field(default_factory=dict)
    extended: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)  # rows of new tokens were added
    reshaped: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)  # another shape: newly initialised
    new: dict[str, Shape] = field(default_factory=dict)
    left: dict[str, Shape] = field(default_factory=dict)

    @property
    def fresh(self) -> set[str]:
        """The names of tensors that hold nothing of the file."""
        return {*self.new, *self.reshaped}

    def rows(self) -> list[tuple[str, str, str]]:
        """(what became of it, name, shape) of every tensor."""
        rows = [("kept", name, transfer_table(shape)) for name, shape in self.kept.items()]
        rows += [
            ("extended", name, f"{transfer_table(old)} → {transfer_table(new)}")
            for name, (old, new) in self.extended.items()
        ]
        rows += [("new", name, transfer_table(shape)) for name, shape in self.new.items()]
        rows += [
            ("new", name, f"{transfer_table(new)}, was {transfer_table(old)}")
            for name, (old, new) in self.reshaped.items()
        ]
        return rows + [("left out", name, transfer_table(shape)) for name, shape in self.left.items()]

    def table(self) -> str:
        """One line for what became of them, and below it their names, those of equal blocks together."""
        rows, lines = self.rows(), []
        for fate in ("kept", "extended", "new", "left out"):
            mine = [(name, shape) for row_fate, name, shape in rows if row_fate == fate]
            if mine:
                lines.append(f"  {fate:<9} {len(mine)} tensor{'s' if len(mine) > 1 else ''}")
                lines += [f"            {name}  {shape}" for name, shape in fold_names(mine)]
        return "\n".join(lines)


def transfer_table(shape: Shape) -> str:
    """128 × 64; 1 for a number."""
    return " × ".join(map(str, shape)) or "1"


def fold_names(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names that differ in the number of their block alone, as one: ``stack.blocks.{0-3}.norm.weight``."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name, shape in rows:
        number = re.search(r"blocks\.(\d+)\.", name)
        pattern = name if number is None else name[: number.start(1)] + "{}" + name[number.end(1) :]
        groups.setdefault((pattern, shape), []).extend([] if number is None else [int(number[1])])
    return [
        (pattern.replace("{}", _span(numbers)) if numbers else pattern, shape)
        for (pattern, shape), numbers in groups.items()
    ]


def _span(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return "{" + (f"{numbers[0]}-{numbers[-1]}" if whole else ",".join(map(str, numbers))) + "}"


@torch.no_grad()
def transfer(net: nn.Module, tensors: Mapping[str, Tensor], source: object) -> Transfer:
    """Copy into ``net`` every tensor of the same name and shape, and say what became of all others.

    An embedding with more rows than the file's keeps the new rows for new tokens, and so does what has one number for
    each token. Raises UsageError where nothing fits: it is another model.
    """
    own, result = net.state_dict(), Transfer()
    words = vocabulary(net)
    for name, tensor in own.items():
        given = tensors.get(name)
        if given is None:
            result.new[name] = tuple(tensor.shape)
        elif given.shape == tensor.shape:
            tensor.copy_(given)
            result.kept[name] = tuple(tensor.shape)
        elif name in words and given.shape[1:] == tensor.shape[1:] and len(given) < len(tensor):
            tensor[: len(given)] = given.to(tensor)
            result.extended[name] = tuple(given.shape), tuple(tensor.shape)
        else:
            result.reshaped[name] = tuple(given.shape), tuple(tensor.shape)
    result.left = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name not in own}
    matrices = [name for name in (*result.kept, *result.extended) if own[name].dim() > 1]
    if not matrices:
        raise UsageError(
            f"nothing of {source} fits this model: no matrix has the same name and shape.\n{result.table()}\n"
            "Give the model the sizes and parts of the one it starts from."
        )
    return result


def vocabulary(net: nn.Module) -> set[str]:
    """The names of tensors with a row for each token: embeddings, and what is as long in a head called ``head``."""
    sizes = {module.num_embeddings for module in net.modules() if isinstance(module, nn.Embedding)}
    tables = {f"{name}.weight" for name, module in net.named_modules() if isinstance(module, nn.Embedding)}
    heads = {name for name, tensor in net.state_dict().items() if name.startswith("head.") and len(tensor) in sizes}
    return tables | heads
