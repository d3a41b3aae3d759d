"""Copy trained weights into a model by name and shape, and report what happened to each tensor."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.parameter_roles import HEADS
from zoo.models.seq2seq import TokenBias

Shape = tuple[int, ...]


@dataclass
class Transfer:
    """What happened to every tensor of the model and of the file, by name."""

    copied: dict[str, Shape] = field(default_factory=dict)
    extended: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)  # copied, with rows for new tokens
    moved: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)  # each row to the place that it stood for
    converted: dict[str, tuple[Shape, Shape, str]] = field(default_factory=dict)  # by the formula that a part declares
    # tensors of another shape, newly initialised
    reshaped: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    new: dict[str, Shape] = field(default_factory=dict)
    unused: dict[str, Shape] = field(default_factory=dict)
    partly_new: set[str] = field(default_factory=set)  # extended or moved ones with newly initialised rows
    origin: Mapping[str, Any] = field(default_factory=dict)  # what the file's own import says of its model
    swaps: bool = False  # whether tensors of a part are not those of the file

    @property
    def fresh(self) -> set[str]:
        """The names of newly initialised tensors."""
        return {*self.new, *self.reshaped}

    def rows(self) -> list[tuple[str, str, str]]:
        """(what happened, name, shape) of every tensor."""
        rows = [("kept", name, format_shape(shape)) for name, shape in self.copied.items()]
        rows += [
            (fate, name, f"{format_shape(old)} → {format_shape(new)}")
            for fate, tensors in (("extended", self.extended), ("moved", self.moved))
            for name, (old, new) in tensors.items()
        ]
        rows += [
            ("converted", name, f"{format_shape(new)} = {formula}, was {format_shape(old)}")
            for name, (old, new, formula) in self.converted.items()
        ]
        rows += [("new", name, format_shape(shape)) for name, shape in self.new.items()]
        rows += [
            ("new", name, f"{format_shape(new)}, was {format_shape(old)}") for name, (old, new) in self.reshaped.items()
        ]
        return rows + [("left out", name, format_shape(shape)) for name, shape in self.unused.items()]

    def table(self) -> str:
        """The report as text: a line per kind of change, and below it the tensors, those of equal blocks together."""
        rows, lines = self.rows(), []
        for fate in ("kept", "extended", "moved", "converted", "new", "left out"):
            mine = [(name, shape) for row_fate, name, shape in rows if row_fate == fate]
            if mine:
                lines.append(f"  {fate:<9} {len(mine)} tensor{'s' if len(mine) > 1 else ''}")
                lines += [f"            {name}  {shape}" for name, shape in fold_names(mine)]
        return "\n".join(lines)


def format_shape(shape: Shape) -> str:
    """A shape as text: ``128 × 64``; ``1`` for a scalar."""
    return " × ".join(map(str, shape)) or "1"


def fold_names(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names that differ only in the block's number, combined: ``stack.blocks.{0-3}.norm.weight``."""
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
def transfer_weights(
    net: nn.Module, tensors: Mapping[str, Tensor], source: object, start: nn.Module | None = None,
    others: Collection[str] = (),
) -> Transfer:  # fmt: skip
    """Copy into ``net`` every tensor of the same name and shape, and report all tensors.

    A tensor with a row per token that has more rows than the file's keeps the additional rows as they are. In a table
    of positions or distances each row comes from the row that stood for the same place in ``start``, the network that
    the file belongs to; where that is not known, a table of another length is newly initialised. A part with a method
    ``convert_state`` computes its tensors from those of the part of ``start`` in its place. ``others`` are tensors
    whose rows mean something else, which are not copied. Raises UsageError if no matrix fits.
    """
    own, result = net.state_dict(), Transfer()
    words, places = token_tensors(net), place_tables(net)
    theirs = {} if start is None else place_tables(start)
    conversions = {} if start is None else convert_parts(net, start, tensors)
    for name, tensor in own.items():
        loaded = tensors.get(name)
        if name in conversions:
            value, formula, sources = conversions[name]
            tensor.copy_(value)
            old = tensors[sources[0]] if sources else tensor if loaded is None else loaded
            result.converted[name] = tuple(old.shape), tuple(tensor.shape), formula
        elif loaded is None or (name in others and loaded.shape == tensor.shape):
            result.new[name] = tuple(tensor.shape)
        elif name in places and name in theirs:
            moved_rows = _move_rows(tensor, loaded, places[name], theirs[name])
            if 0 < moved_rows < tensor.size(-2):
                result.partly_new.add(name)
            if not moved_rows:
                result.reshaped[name] = tuple(loaded.shape), tuple(tensor.shape)
            elif loaded.equal(tensor.to(loaded)):
                result.copied[name] = tuple(tensor.shape)
            else:
                result.moved[name] = tuple(loaded.shape), tuple(tensor.shape)
        elif loaded.shape == tensor.shape:
            tensor.copy_(loaded)
            result.copied[name] = tuple(tensor.shape)
        elif name in words and loaded.shape[1:] == tensor.shape[1:] and len(loaded) < len(tensor):
            tensor[: len(loaded)] = loaded.to(tensor)
            result.extended[name] = tuple(loaded.shape), tuple(tensor.shape)
            result.partly_new.add(name)
        else:
            result.reshaped[name] = tuple(loaded.shape), tuple(tensor.shape)
    origins = {source for *_, names in conversions.values() for source in names}
    used = {*own, *origins}
    result.unused = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name not in used}
    trees = [tree for tree in (net, start) if tree is not None]
    parts = tuple(f"{name}." for tree in trees for name, part in tree.named_modules() if name and hasattr(part, "kind"))
    changes = (*result.converted, *origins, *result.fresh, *result.unused)
    result.swaps = any(name.startswith(parts) for name in changes)
    matrices = [name for name in (*result.copied, *result.extended, *result.converted) if own[name].dim() > 1]
    if not matrices:
        raise UsageError(
            f"nothing of {source} fits this model: no matrix has the same name and shape.\n{result.table()}\n"
            "Give the model the sizes and parts of the one it starts from."
        )
    return result


def convert_parts(
    net: nn.Module, start: nn.Module, tensors: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, str, list[str]]]:  # fmt: skip
    """By name, the tensors that parts of ``net`` compute from those of the parts of ``start`` in their places, with the
    formula, and the names of the tensors that it uses where they are others.

    A part declares this by ``convert_state(start, state)``: ``start`` is the old part without memory for its tensors,
    ``state`` its tensors by their names in it; the result has a tensor and its formula under each converted name, of
    the shape in the new part, and behind these the names of the old part's tensors that became it, where they are
    others. Raises UsageError for another name or shape.
    """
    parts, conversions = dict(start.named_modules(remove_duplicate=False)), {}
    for name, part in net.named_modules(remove_duplicate=False):
        if name not in parts or not callable(getattr(part, "convert_state", None)):
            continue
        prefix, own = f"{name}." if name else "", part.state_dict()
        state = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        for key, (tensor, formula, *sources) in part.convert_state(parts[name], state).items():
            if key not in own or own[key].shape != tensor.shape:
                right = format_shape(tuple(own[key].shape)) if key in own else f"one of {', '.join(own)}"
                raise UsageError(
                    f"{type(part).__name__}.convert_state gives {key} of shape {format_shape(tuple(tensor.shape))} for "
                    f"{name}; right would be {right}."
                )
            conversions[prefix + key] = tensor, formula, [prefix + source for source in sources]
    return conversions


def _move_rows(tensor: Tensor, loaded: Tensor, part: Any, start: Any) -> int:
    """Fill the rows of a table of places, whose other sizes must agree; how many of them the file has."""
    if type(part) is not type(start) or tensor.dim() != loaded.dim():
        return 0
    if (*tensor.shape[:-2], tensor.shape[-1]) != (*loaded.shape[:-2], loaded.shape[-1]):
        return 0
    rows, there = part.convert_rows(start, loaded.to(tensor))
    tensor[..., there, :] = rows[..., there, :]
    return int(there.sum())


def place_tables(net: nn.Module) -> dict[str, Any]:
    """The names of tables with a row per position or distance, and the part that knows what a row stands for."""
    return {
        f"{name}.{table}": module
        for name, module in net.named_modules(remove_duplicate=False)
        for table in getattr(module, "place_tables", ())
    }


def token_tensors(net: nn.Module) -> set[str]:
    """The names of tensors with a row per token: embeddings outside of parts, under every name of a tied one, and as
    long tensors of modules that give logits and of biases of tokens.
    """
    modules = list(net.named_modules(remove_duplicate=False))
    parts = tuple(f"{name}." for name, module in modules if name and hasattr(module, "kind"))
    tables = {
        f"{name}.weight": module.num_embeddings
        for name, module in modules
        if isinstance(module, nn.Embedding) and not name.startswith(parts)
    }
    biases = tuple(f"{name}." for name, part in modules if isinstance(part, TokenBias))
    rows = {name: tensor.size(0) for name, tensor in net.state_dict().items() if tensor.dim()}
    names = {name for name in rows if name.startswith(biases) or set(name.split(".")[:-1]) & set(HEADS)}
    return tables.keys() | {name for name in names if rows[name] in tables.values()}
