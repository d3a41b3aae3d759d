"""The options of a class from its signature, and which of them are slots that hold another class."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import functools
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.config.jsonargparse_internals import get_signature_parameters
from zoo.errors import PluginError, UsageError
from zoo.plugins.description import PLACE_PARAMETERS

PLAIN_MODULES = tuple("builtins inspect typing datetime pathlib os enum collections types jsonargparse".split())
PLAIN_CLASSES = ("torch.Tensor", "torch.device", "torch.dtype")  # configured by numbers and texts


@dataclass(frozen=True)
class Slot:
    """A parameter that holds a class: its base class, and how many leading arguments the owner passes itself."""

    base: type
    owner_arguments: int = 0
    many: bool = False  # lists are accepted too
    loose: bool = False  # text that is not a class is accepted too, such as the strategy 'ddp'
    optional: bool = False

    @property
    def record(self) -> bool:
        """Whether the base is a dataclass or named tuple, configured by its fields without a class name."""
        return dataclasses.is_dataclass(self.base) or (issubclass(self.base, tuple) and hasattr(self.base, "_fields"))

    @property
    def kind(self) -> str | None:
        """The registry's kind of this slot; None for classes without one."""
        return registry.kind_of(self.base)

    @property
    def word(self) -> str:
        """The word for a class of this slot in messages."""
        return self.kind or self.base.__name__.lower()


@dataclass(frozen=True)
class Param:
    """One parameter of a class."""

    name: str
    annotation: Any
    default: Any
    slot: Slot | None
    owner: type | None

    @property
    def required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is inspect.Parameter.empty


@functools.cache
def parameters(cls: type, skipped: int = 0) -> dict[str, Param]:
    """The options of a class by name, including those behind `**kwargs`, without the first ``skipped`` ones.

    Raises PluginError for a part with an option that has no name.
    """
    refuse_hidden_packages()
    params = get_signature_parameters(cls)[skipped:]
    by_place = [item.name for item in params if item.kind is inspect.Parameter.POSITIONAL_ONLY]
    if by_place and registry.kind_of(cls):
        raise PluginError(f"{cls.__name__} takes {by_place[0]!r} by its place alone: remove the / behind it.")
    return {
        item.name: Param(item.name, item.annotation, item.default, slot_of(item.annotation), _owner(item.parent))
        for item in params
        if item.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and not (skipped and item.name in PLACE_PARAMETERS)
    }


@functools.cache
def refuse_hidden_packages() -> None:
    """Raise UsageError for a file beside a script that hides a package which signatures are read with.

    jsonargparse takes such a package for missing, and then finds fewer options.
    """
    beside = Path(sys.path[0] or ".").resolve()
    if sys.flags.safe_path:  # no folder of a script is searched; the first may be of PYTHONPATH, with another copy
        return
    for name in ("attr", "attrs", "docstring_parser"):
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin and Path(spec.origin).resolve().parent in (beside, beside / name):
            raise UsageError(f"{spec.origin} hides the package {name}, which options are read with. Rename it.")


def _owner(parent: object) -> type | None:
    """The class that declares a parameter; the first of several if `**kwargs` reach more than one."""
    owner = parent[0] if isinstance(parent, tuple) and parent else parent
    return owner if isinstance(owner, type) else None


@functools.cache
def option_names(cls: type, skipped: int) -> tuple[str, ...]:
    """The names of the first ``skipped`` parameters, which the owner of a part passes itself."""
    return tuple(item.name for item in get_signature_parameters(cls)[:skipped])


def slot_of(annotation: Any) -> Slot | None:
    """The slot that an annotation describes, or None for a plain value."""
    members = members_of(annotation)
    values = [member for member in members if _direct(member) is None and not _is_list(member)]
    loose = any(member is str or typing.get_origin(member) is typing.Literal for member in values)
    optional = type(None) in members
    for member in members:
        many = _is_list(member)
        inner = members_of(typing.get_args(member)[0]) if many else [member]
        for candidate in inner:
            slot = _direct(candidate)
            if slot:
                several = many or any(_is_list(member) for member in members)
                return Slot(slot.base, slot.owner_arguments, several, loose, optional)
    return None


def members_of(annotation: Any) -> list[Any]:
    """The alternatives of a union, or the annotation alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [deep for member in typing.get_args(annotation) for deep in members_of(member)]
    if typing.get_origin(annotation) is typing.Annotated:
        return members_of(typing.get_args(annotation)[0])
    return [annotation]


def takes_code(annotation: Any) -> bool:
    """Whether a value of this type may be a function or class, named by its path."""
    origin = typing.get_origin(annotation)
    if annotation in (collections.abc.Callable, Callable, typing.Callable, type) or origin is type:
        return True
    return origin is collections.abc.Callable or any(
        takes_code(argument) for argument in typing.get_args(annotation) if not isinstance(argument, list)
    )


def _is_list(annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    ordered = (list, collections.abc.Sequence, collections.abc.Iterable)
    return origin in ordered and len(typing.get_args(annotation)) == 1


def _direct(annotation: Any) -> Slot | None:
    """The slot of an annotation that is neither a union nor a list."""
    if typing.get_origin(annotation) in (collections.abc.Callable, Callable):
        arguments, result = typing.get_args(annotation) or ([], None)
        bases = [member for member in members_of(result) if _is_part(member)]
        return Slot(bases[0], len(arguments) if isinstance(arguments, list) else 0) if bases else None
    return Slot(annotation) if _is_part(annotation) else None


def _is_part(annotation: Any) -> bool:
    return (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and not issubclass(annotation, (enum.Enum, str, int, float))
        and annotation.__module__.partition(".")[0] not in PLAIN_MODULES
        and f"{annotation.__module__}.{annotation.__qualname__}" not in PLAIN_CLASSES
    )
