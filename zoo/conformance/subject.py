"""A part under test, built and called as a model builds and calls it."""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.conformance.options import candidates, option_text
from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.models.language import LanguageModel
from zoo.models.parameter_roles import parameter_roles
from zoo.models.stack import Stack
from zoo.parts.attention import Attention
from zoo.parts.backend import Backend, Naive
from zoo.parts.block import Memory
from zoo.parts.ffn import FFN
from zoo.parts.norm import Norm
from zoo.parts.packing import Packing
from zoo.parts.position import Extent, NoPosition, Position
from zoo.plugins.description import CLASS_PARAMETERS
from zoo.tasks.optimizers import name_groups, parameter_groups
from zoo.tasks.schedule import Schedule

if TYPE_CHECKING:  # they import Lightning, which takes longer than the checks of a norm
    from zoo.data.data import Data
    from zoo.tasks.task import Task

DIM, HEADS = 48, 4  # heads of 12: no power of two, and enough for a scheme that splits them over two axes
HIDDEN = 40
LENGTH = 96  # tokens of the longest sequence
SHORT_AND_LONG = (7, 72)  # tokens: mistakes of tiles, tables and windows begin behind 32 or 64
TEXT, GRID = Extent((LENGTH,)), Extent((8, 8))


MOST_VALUES = 2  # values of one option that are tried


class Refused(Exception):  # noqa: N818
    """The part refuses to be built like this; the message is its own sentence."""


class Subject:
    """A part with options. ``layer`` is what most checks call: (B, T, dim), and which of them are real, to (B, T, dim).

    A norm or a feed-forward is a layer by itself; another part is put into a stack of one block whose other parts are
    the plainest there are.
    """

    kind = ""
    crosses = False  # whether a part of this kind is tried in stacks that look at a memory, too
    looks = False  # whether its stacks look at a memory

    def __init__(self, part: type, options: dict[str, Any]):
        self.part, self.options = part, options
        self._variants: list[tuple[str, Subject]] | None = None  # those of `other_options`, which all checks try

    @property
    def name(self) -> str:
        """The name of the part's class."""
        return self.part.__name__

    @property
    def factory(self) -> Callable[..., Any]:
        """The part as a slot of a stack takes it: options are bound, what the stack gives is open."""
        return partial(self.part, **self.options)

    def changed(self, **options: Any) -> Self:
        """The part with other options."""
        subject = copy.copy(self)
        subject.options, subject._variants = self.options | options, None
        return subject

    def missing_options(self) -> list[str]:
        """The options without a default that it is not given."""
        options = list(inspect.signature(self.part).parameters.values())[CLASS_PARAMETERS.get(self.kind, 0) :]
        loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        needed = [option.name for option in options if option.default is option.empty and option.kind not in loose]
        return [name for name in needed if name not in self.options]

    def other_options(self) -> Iterator[tuple[str, Subject]]:
        """The part with one option changed at a time, to values that it takes; and how that is written."""
        if self._variants is None:
            places = self.places() - {"grid"}
            variants: list[tuple[str, Subject]] = []
            for name, values in candidates(self.part, self.options).items():
                changed = [(value, self.changed(**(value if isinstance(value, dict) else {name: value})))
                           for value in values]  # fmt: skip
                fitting = (
                    (option_text(name, value), subject) for value, subject in changed if subject.places() >= places
                )
                variants += itertools.islice(fitting, MOST_VALUES)
            self._variants = variants
        yield from self._variants

    def places(self) -> set[str]:
        """Where it can be used with its options: in a causal stack or not, and on a grid.

        Raises whatever a part raises instead of UsageError or ValueError.
        """
        places = set()
        for place, extent in (("text", TEXT), ("causal", Extent(TEXT.sizes, causal=True)), ("grid", GRID)):
            with suppress(UsageError, ValueError):
                self.plain_stack(extent)
                places.add(place)
        return places

    def with_memory(self) -> Subject | None:
        """The part in stacks that look at a memory; None where it makes no sense there."""
        if not self.crosses or self.looks:
            return None
        subject = self.changed()
        subject.looks = True
        return subject if subject.places() else None

    def plain_stack(self, extent: Extent, **options: Any) -> Stack:
        """A stack with this part, not initialised."""
        usual: dict[str, Any] = {"dim": DIM, "heads": HEADS, "hidden": HIDDEN, "depth": 1, "position": NoPosition}
        usual |= {"backend": Naive} if self.kind not in ("attention", "backend") else {}
        cls: type[Stack] = Looking if self.looks else Stack
        return cls(extent, **usual | {self.kind: self.factory} | options)

    def stack(self, extent: Extent = TEXT, **options: Any) -> Stack:
        """A stack with this part, its weights moved off zeros and ones, which hide mistakes. Raises Refused."""
        try:
            return spread(self.plain_stack(extent, **options))
        except UsageError as error:
            raise Refused(str(error)) from error

    def layer(self, causal: bool = False, dropout: float = 0.0) -> nn.Module:
        """What is called with x (B, T, dim) and valid (B, T). Raises Refused."""
        return self.stack(Extent(TEXT.sizes, causal=causal), dropout=dropout, attention_dropout=dropout)

    def tokens(self, batch: int = 2, length: int = 7, dtype: torch.dtype | None = None) -> Tensor:
        """Random x (B, T, dim)."""
        return torch.randn(batch, length, DIM, dtype=torch.float64).to(dtype or torch.get_default_dtype())


class TokenSubject(Subject):
    """A part that computes each token by itself, as the layer itself."""

    def layer(self, causal: bool = False, dropout: float = 0.0) -> nn.Module:
        """The part alone as a layer; ``causal`` and ``dropout`` change nothing."""
        return spread(Alone(self.build()))  # type: ignore[attr-defined]


class NormSubject(TokenSubject):
    """A norm, as the layer itself."""

    kind = "norm"

    def build(self, dim: int = DIM) -> Norm:
        """A norm of width DIM."""
        return self.factory(dim)


class FFNSubject(TokenSubject):
    """A feed-forward, as the layer itself."""

    kind = "ffn"

    def build(self, dim: int = DIM, hidden: int = HIDDEN) -> FFN:
        """A feed-forward of width DIM."""
        return self.factory(dim, hidden)


class AttentionSubject(Subject):
    """An attention in a stack of one block, and by itself."""

    kind = "attention"
    crosses = True

    def build(self, backend: Backend | None = None, dropout: float = 0.0) -> Attention:
        """The part by itself."""
        return cast(Attention, spread(self.factory(DIM, HEADS, backend, dropout)))

    @property
    def supports(self) -> frozenset[str]:
        """The features that the attention supports."""
        return self.build().supports


class BackendSubject(Subject):
    """A backend below plain attention, and by itself."""

    kind = "backend"
    crosses = True

    def build(self) -> Backend:
        """A backend."""
        return self.factory()

    @property
    def supports(self) -> frozenset[str]:
        """The features that the backend supports."""
        return self.build().supports


class PositionSubject(Subject):
    """A position scheme of a stack, and by itself."""

    kind = "position"

    def build(self, extent: Extent = TEXT, heads: int = HEADS) -> Position:
        """The scheme by itself."""
        return cast(Position, spread(self.factory(DIM, heads, extent)))


class BlockSubject(Subject):
    """A block around the plainest parts."""

    kind = "block"
    crosses = True


class Unstacked(Subject):
    """A part that no stack holds."""

    def trial(self) -> object:
        """Build it for a small case."""
        return self.build()  # type: ignore[attr-defined]

    def places(self) -> set[str]:
        """A run where the part takes its options, otherwise nothing."""
        try:
            self.trial()
        except (UsageError, ValueError):
            return set()
        return {"a run"}


class TaskSubject(Unstacked):
    """A task with small sizes."""

    kind = "task"

    def other_options(self) -> Iterator[tuple[str, Subject]]:
        """The task with one option changed at a time, without the sizes that data fills in."""
        sizes = cast("type[Task]", self.part).data_sizes
        return (pair for pair in super().other_options() if not set(pair[1].options) & set(sizes) - set(self.options))

    def build(self) -> Task:
        """The task with small sizes, in evaluation."""
        small = {"dim": DIM, "depth": 1, "heads": HEADS, "hidden": HIDDEN}
        parameters = inspect.signature(self.part).parameters
        loose = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        sizes = {name: value for name, value in small.items() if name in parameters or loose}
        task_class = cast("type[Task]", self.part)
        try:
            return task_class(**{**sizes, **task_class.small_sizes(self.options), **self.options}).eval()
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            return task_class(**{**task_class.small_sizes(self.options), **self.options}).eval()


class DataSubject(Subject):
    """A data module, loaded; from small files of its own making where it needs some that were not named."""

    kind = "data"

    def __init__(self, part: type, options: dict[str, Any]):
        super().__init__(part, options)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        """A folder for files and caches, which lives as long as this."""
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="zoo-check-")
        return Path(self._folder.name)

    def files(self, seed: int = 0, place: str = "files") -> dict[str, Any] | None:
        """Options that name files which are written here; None where it reads none, or those of its options."""
        if not super().missing_options():
            return None
        folder = self.folder / place
        folder.mkdir(parents=True)
        try:
            return cast("type[Data]", self.part).sample_files(folder, seed)
        except NotImplementedError:
            folder.rmdir()
            return None

    @cached_property
    def file_options(self) -> dict[str, Any]:
        """The options of files that every check reads."""
        return self.files() or {}

    def missing_options(self) -> list[str]:
        """Options without a default, beside those that its sample files give."""
        return [name for name in super().missing_options() if name not in self.file_options]

    def other_options(self) -> Iterator[tuple[str, Subject]]:
        """The subject with one option changed at a time, to the first candidate, and the option as text."""
        for name, values in candidates(self.part, self.file_options | self.options).items():
            for value in values[:1]:
                subject = self.changed(**(value if isinstance(value, dict) else {name: value}))
                yield option_text(name, value), subject

    def build(self, **options: Any) -> Data:
        """The data, loaded."""
        every = self.file_options | self.options | options
        # what is made of files that are soon gone does not belong into the cache
        cache = {"ZOO_CACHE": str(self.folder / "cache")} if self.file_options else {}
        with mock.patch.dict(os.environ, cache):
            data = cast("type[Data]", self.part)(**every)
            data.ready()
        return data


class OptimizerSubject(Unstacked):
    """An optimizer of a small network with parameters of every role, two of which are frozen."""

    kind = "optimizer"

    def other_options(self) -> Iterator[tuple[str, Subject]]:
        """The optimizer with one option changed at a time, without those that choose how torch runs its loops."""
        loops = {"maximize", "capturable", "differentiable", "foreach", "fused"}
        return (pair for pair in super().other_options() if not set(pair[1].options) & loops - set(self.options))

    def trial(self) -> object:
        """Build it for a small case."""
        return self.build(self.network())

    @staticmethod
    def network() -> nn.Module:
        """Random parameters: an embedding, two hidden matrices, a gain, a head with its bias, and a frozen layer."""
        net = nn.ModuleDict(
            {
                "embedding": nn.Embedding(11, 8),
                "blocks": nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 8)]),
                "norm": nn.LayerNorm(8),
                "head": nn.Linear(8, 11),
                "frozen": nn.Linear(8, 8).requires_grad_(False),
            }
        )
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.normal_()
        return net

    def build(self, net: nn.Module, lr: float = 1e-2) -> Optimizer:
        """An optimizer of a network's parameters, in the groups of a task."""
        groups = parameter_groups(net.named_parameters(), lr, {}, parameter_roles(net))
        return self.factory(name_groups(groups, net.named_parameters(), parameter_roles(net)), lr)


class ScheduleSubject(Unstacked):
    """A schedule of a run of some steps."""

    kind = "schedule"

    def trial(self) -> object:
        """Build it for a small case."""
        return self.build(100)

    def option_names(self) -> list[str]:
        """The names of its options."""
        return list(inspect.signature(self.part).parameters)[CLASS_PARAMETERS[self.kind] :]

    def build(self, total: int) -> Schedule:
        """The schedule of a run of ``total`` steps."""
        return self.factory(total)


class InitSubject(Unstacked):
    """An initialisation rule of a small language model whose output has a matrix of its own."""

    kind = "init"

    def build(self, seed: int = 0, **options: Any) -> LanguageModel:
        """The model, initialised from a seed."""
        sizes = {"dim": DIM, "depth": 2, "heads": HEADS, "hidden": HIDDEN, "tie": False}
        return LanguageModel(23, 16, seed=seed, init=self.factory, **sizes | options)


class Independent(Unstacked):
    """A part of another kind, which takes nothing but its options: a callback, or what no model has, a command."""

    def build(self) -> Any:
        """A new object of the part."""
        return self.factory()


class Looking(Stack):
    """A stack with a memory of its own, where none is given: what a token says of itself, read backwards.

    In a causal stack that memory would show the future: there it is the same states for every row.
    """

    def __init__(self, extent: Extent, **options: Any):
        super().__init__(extent, **{**options, "cross": True})
        self.states = 2 * torch.randn(1, 5, self.dim, generator=torch.Generator().manual_seed(1), device="cpu")

    def forward(self, x, valid=None, memory=None, caches=None, packing=None):
        """The output (B, T, dim) of the stack with cross-attention to a memory."""
        return super().forward(x, valid, memory or self.memory_of(x, valid, packing), caches, packing)

    def memory_of(self, x: Tensor, valid: Tensor | None, packing: Packing | None) -> Memory:
        """What the tokens x (B, T, dim) look at."""
        if self.causal:
            return Memory(self.states.to(x).expand(x.size(0), -1, -1))
        return Memory(x.flip(-1) if packing is None else packing.pack(x.flip(-1)), valid, packing)


class Alone(nn.Module):
    """A part that computes each token by itself, behind the signature of a stack."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.part = part

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """The output of the part alone, of the shape of its input."""
        return self.part(x)


def spread(module: nn.Module, seed: int = 0) -> Any:
    """Initialise as a model is, in evaluation; then move every parameter away from zeros and ones."""
    initialize(module, seed)
    make = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_meta and (parameter.is_floating_point() or parameter.is_complex()):
                noise = torch.randn(parameter.shape, generator=make, dtype=torch.float32)
                parameter.add_(noise.to(parameter), alpha=0.2)
    return module.eval()


def subject_classes() -> list[type[Subject]]:
    """The class of each kind, in the order above."""
    classes = [value for value in globals().values() if isinstance(value, type) and issubclass(value, Subject)]
    return [value for value in classes if value.kind]
