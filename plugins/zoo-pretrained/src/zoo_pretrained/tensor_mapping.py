"""Convert the tensors of a published checkpoint to zoo's names and back: rules of key patterns with transforms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.errors import CheckpointError
from zoo.inference.weight_files import LazyTensors

Tensors = Mapping[str, Tensor]


class Transform:
    """A change of form that can be undone; the base leaves one tensor as it is."""

    def read(self, theirs: list[Tensor]) -> Any:
        """Tensors of a published checkpoint converted to zoo's, a list of them where a rule names several; here one
        tensor, of the same shape.
        """
        return theirs[0]

    def write(self, ours: Any) -> list[Tensor]:
        """A tensor of zoo, or a list of them, converted to the published checkpoint's; here one, of the same shape."""
        return [ours]


SAME = Transform()


class Transposed(Transform):
    """A matrix that they keep the other way around, as GPT-2 does."""

    def read(self, theirs: list[Tensor]) -> Tensor:
        """Their matrix (in, out) to (out, in)."""
        return theirs[0].T.contiguous()

    def write(self, ours: Tensor) -> list[Tensor]:
        """A matrix (out, in) to theirs, (in, out)."""
        return [ours.T.contiguous()]


class Shaped(Transform):
    """The same numbers in the same order, in another shape: without the first dimensions, or with more of them."""

    def __init__(self, theirs: Sequence[int], ours: Sequence[int]) -> None:
        self.theirs, self.ours = tuple(theirs), tuple(ours)

    def read(self, theirs: list[Tensor]) -> Tensor:
        """Their tensor in zoo's shape."""
        return theirs[0].reshape(self.ours)

    def write(self, ours: Tensor) -> list[Tensor]:
        """A tensor of zoo in their shape."""
        return [ours.reshape(self.theirs)]


class Stacked(Transform):
    """Several tensors that we keep as one, below each other; ``sizes`` are their first dimensions."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)

    def read(self, theirs: list[Tensor]) -> Tensor:
        """Their tensors (rows_i, ...) one below the other, (sum of rows_i, ...). Raises ValueError for other rows."""
        rows = [tensor.size(0) for tensor in theirs]
        if rows != self.sizes:
            raise ValueError(f"{rows} rows where the configuration says {self.sizes}")
        return torch.cat(theirs)

    def write(self, ours: Tensor) -> list[Tensor]:
        """A tensor (sum of rows_i, ...) split into theirs, (rows_i, ...)."""
        return [part.contiguous() for part in ours.split(self.sizes)]


class Split(Transform):
    """One tensor of theirs that is several of ours, of one shape each, along its first dimension."""

    def __init__(self, each: Transform = SAME) -> None:
        self.each = each

    def read(self, theirs: list[Tensor]) -> Tensor:
        """Their tensor (N, ...) in zoo's form, (N, ...): the N tensors on top of each other."""
        return torch.stack([self.each.read([tensor]) for tensor in theirs[0]])

    def write(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """N tensors of zoo as one of theirs, (N, ...)."""
        return [torch.stack([self.each.write(tensor)[0] for tensor in ours])]


class Parted(Transform):
    """Tensors below each other, of which each of ours has some rows: row ``rows[i][j]`` is row j of our i-th tensor."""

    def __init__(self, rows: Sequence[Tensor], sizes: Sequence[int]) -> None:
        self.rows, self.stack = list(rows), Stacked(sizes)

    def read(self, theirs: list[Tensor]) -> list[Tensor]:
        """Their tensors (rows_i, ...) as ours, with their rows. Raises ValueError for other rows."""
        whole = self.stack.read(theirs)
        return [whole[rows] for rows in self.rows]

    def write(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of zoo as theirs, (rows_i, ...)."""
        return self.stack.write(torch.cat(list(ours))[torch.cat(self.rows).argsort()])


class Columns(Transform):
    """A matrix of theirs, (out, N * in), that is N of ours, (out, in), beside each other."""

    def __init__(self, count: int) -> None:
        self.count = count

    def read(self, theirs: list[Tensor]) -> list[Tensor]:
        """Their matrix (out, N * in) as N of ours, (out, in)."""
        return [part.contiguous() for part in theirs[0].chunk(self.count, -1)]

    def write(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """N matrices of zoo, (out, in), as one of theirs, (out, N * in)."""
        return [torch.cat(list(ours), -1)]


@dataclass(frozen=True)
class TensorRule:
    """Their keys, our key, and the transform. ``{n}`` and other names in braces stand for numbers."""

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    how: Transform = SAME

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the published tensors, in their order."""
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    @property
    def names(self) -> tuple[str, ...]:
        """The names of zoo's tensors, in their order; several where the transform reads a list."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class MappedTensors:
    """The whole mapping of one checkpoint.

    ``constants`` are keys that hold no weights (masks, position numbers), which our model computes. ``copies`` are keys
    that, where they occur, must equal another: tied matrices that were saved twice.
    """

    rules: Sequence[TensorRule]
    constants: Sequence[str] = ()
    copies: Mapping[str, str] = field(default_factory=dict)


class Origin(NamedTuple):
    """Where one of our tensors comes from, and how its form is changed."""

    keys: tuple[str, ...]
    how: Transform
    row: int | None = None  # of a transform that reads a list

    @property
    def changed(self) -> bool:
        """Whether its form is changed at all."""
        return self.how is not SAME


def pattern(key: str) -> re.Pattern[str]:
    """What a key with numbers in braces matches."""
    pieces = re.split(r"\{(\w+)\}", key)
    text = "".join(rf"(?P<{piece}>\d+)" if odd % 2 else re.escape(piece) for odd, piece in enumerate(pieces))
    return re.compile(text)


class ReadTensors(NamedTuple):
    """Our tensors, where each comes from, and the keys that hold constants or copies."""

    tensors: LazyTensors
    origins: dict[str, Origin]
    constants: list[str]


def read_published(theirs: Tensors, mapping: MappedTensors, source: str) -> ReadTensors:
    """Our tensors, where each comes from, and the keys that hold constants or copies.

    Forms are converted and compared now, numbers when a tensor is read. Raises CheckpointError that names a key that
    nothing is known of, or that is missing from a group.
    """
    stored = {key: key for key in theirs}
    for copy, original in mapping.copies.items():
        if copy in stored and original not in stored:  # a tied matrix that was saved under its second name alone
            stored[original] = stored.pop(copy)
    theirs = LazyTensors.of(theirs).renamed(stored)
    remaining, tensors = set(stored), dict[str, Tensor]()
    origins: dict[str, Origin] = {}
    for rule in mapping.rules:
        first = pattern(rule.keys[0])
        for key in sorted(remaining):
            match = first.fullmatch(key)
            if match is None:
                continue
            keys = tuple(one.format(**match.groupdict()) for one in rule.keys)
            for missing in (one for one in keys if one not in theirs):
                raise CheckpointError(f"{source} lacks {missing}, which belongs to {key}.")
            names = tuple(one.format(**match.groupdict()) for one in rule.names)
            for name in names:
                if name in tensors:
                    raise CheckpointError(
                        f"{source} has both {', '.join(origins[name].keys)} and {key}, which are one tensor."
                    )
            for weight in keys:
                form = theirs.forms[weight]
                if not form.is_floating_point() or form.element_size() == 1:
                    raise CheckpointError(
                        f"{source}: {weight} holds {form.dtype}: quantised weights are not read. Save the "
                        "model in float32, float16 or bfloat16."
                    )
            try:
                result = rule.how.read([theirs.forms[one] for one in keys])
                if not isinstance(rule.ours, str) and len(result) != len(names):
                    raise ValueError(f"{len(result)} where the configuration says {len(names)}")
            except (RuntimeError, ValueError) as error:
                shapes = ", ".join(f"{one} {tuple(theirs.forms[one].shape)}" for one in keys)
                raise CheckpointError(f"{source}: {shapes} does not fit the configuration: {error}.") from error
            tensors |= dict(zip(names, [result] if isinstance(rule.ours, str) else list(result), strict=True))
            origins |= {
                name: Origin(keys, rule.how, None if isinstance(rule.ours, str) else row)
                for row, name in enumerate(names)
            }
            remaining -= set(keys)
    extra = [key for key in sorted(remaining) if any(pattern(one).fullmatch(key) for one in mapping.constants)]
    for copy, original in mapping.copies.items():
        if copy in remaining and original in theirs:
            if not torch.equal(theirs[copy], theirs[original]):
                raise CheckpointError(f"{source}: {copy} differs from {original}, which the configuration ties it to.")
            extra.append(copy)
    unknown = sorted(remaining - set(extra))
    if unknown:
        examples = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        raise CheckpointError(f"{source} has unknown {examples}: no rule of this family speaks of it.")

    def convert(name: str) -> Tensor:
        keys, how, row = origins[name]
        numbers = [theirs[key] for key in keys]
        if isinstance(how, Split) and row is not None:  # the others of them need not be read
            return how.each.read([numbers[0][row]])
        return how.read(numbers) if row is None else how.read(numbers)[row]

    return ReadTensors(LazyTensors(tensors, convert), origins, extra)


def write_published(ours: Tensors, mapping: MappedTensors) -> LazyTensors:
    """The published checkpoint's tensors, the inverse of `read_published`. Raises CheckpointError without a rule."""
    ours = LazyTensors.of(ours)
    tensors: dict[str, Tensor] = {}
    sources: dict[str, tuple[TensorRule, list[str], int]] = {}

    def together(rule: TensorRule, names: list[str], of: Mapping[str, Tensor]) -> Tensor | list[Tensor]:
        return of[names[0]] if isinstance(rule.ours, str) else [of[name] for name in names]

    for name in ours:
        for rule in mapping.rules:
            matches = [match for one in rule.names if (match := pattern(one).fullmatch(name))]
            if not matches:
                continue
            keys = [one.format(**matches[0].groupdict()) for one in rule.keys]
            if len(rule.names) > 1 and keys[0] in tensors:  # written with the first of them
                break
            names = [name] if len(rule.names) == 1 else [one.format(**matches[0].groupdict()) for one in rule.names]
            tensors |= dict(zip(keys, rule.how.write(together(rule, names, ours.forms)), strict=True))
            sources |= {key: (rule, names, number) for number, key in enumerate(keys)}
            break
        else:
            raise CheckpointError(f"{name} has no place in a checkpoint of this family.")

    def convert(key: str) -> Tensor:
        rule, names, number = sources[key]
        return rule.how.write(together(rule, names, ours))[number]

    return LazyTensors(tensors, convert)


def fit_shapes(
    tensors: LazyTensors, shapes: Mapping[str, torch.Size], origins: Mapping[str, Origin], source: str
) -> None:
    """Raise CheckpointError unless these are all the tensors of a model, in its shapes, by their keys."""
    missing = sorted(shapes.keys() - tensors.keys())
    if missing:
        examples = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise CheckpointError(f"{source} has no tensor for {examples} of the model that its configuration describes.")
    for name in sorted(tensors.keys() - shapes.keys()):
        raise CheckpointError(f"{source} has {', '.join(origins[name].keys)}: its configuration has no place for it.")
    for name, shape in shapes.items():
        form = tensors.forms[name]
        if form.shape != shape:
            keys = ", ".join(origins[name].keys)
            sizes = f"{tuple(form.shape)} where the configuration says {tuple(shape)}"
            raise CheckpointError(f"{source}: {keys} is {sizes} ({name}, {math.prod(shape):,} numbers).")
