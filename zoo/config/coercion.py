"""Give each plain value its type, one key at a time, so that a wrong one is named with its key and origin."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import math
import types
import typing
from typing import Any

from jsonargparse import ArgumentParser

from zoo.config.layers import Node, where
from zoo.config.signatures import members_of
from zoo.errors import UsageError
from zoo.registry import suggest

WORDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null",
    list: "a list", tuple: "a list", dict: "a mapping", set: "a list",
}  # fmt: skip
MANY = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}
LARGEST_INT = 2**63 - 1  # what torch counts with
SEQUENCES = (list, tuple, set, collections.abc.Sequence, collections.abc.Iterable)


def coerce(key: str, annotation: Any, node: Node, optional: bool = False) -> object:
    """The value of a node as its annotation wants it. Raises UsageError that says what was expected.

    `optional` admits null beside what the annotation says, as a default of None does.
    """
    value = node.plain()
    if annotation in (inspect.Parameter.empty, Any, object):
        return _guess(value) if not node.typed else value
    if str(value).lower() in ("nan", ".nan"):
        raise _wrong(key, annotation, value, node.origin)
    _check_texts(key, value, node.origin)
    if isinstance(value, float) and math.isinf(value) and not key.startswith("trainer."):
        raise _wrong(key, annotation, value, node.origin)
    if isinstance(value, str) and set(members_of(annotation)) <= {int, float, bool, type(None)}:
        guessed = _guess(value)  # by our rules: jsonargparse takes 010 for eight
        if isinstance(guessed, (str, float)) and not (isinstance(guessed, float) and float in members_of(annotation)):
            raise _wrong(key, annotation, value, node.origin)
        value = guessed
    if (
        type(value) is int and not -LARGEST_INT <= value <= LARGEST_INT and key != "seed_everything"
    ):  # has its own range
        raise UsageError(f"{key!r} is {value:.3g}: no more than {LARGEST_INT} can be counted.{where(node.origin)}")
    if value is None and not optional and type(None) not in members_of(annotation):
        raise _wrong(key, annotation, value, node.origin)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=annotation)
    reason: Exception | None = None
    for candidate in _candidates(annotation, node, value):
        try:
            result = parser.parse_object({"value": candidate}).value
        except Exception as error:  # jsonargparse lets errors of a type's own code through
            reason = error
        else:
            return result if is_plain(result) else candidate
    raise _wrong(key, annotation, value, node.origin) from reason


def _check_texts(key: str, value: object, origin: str) -> None:
    """Raise UsageError for a text that is a bomb once it is read as YAML, which jsonargparse does with texts."""
    from zoo.config.yaml_source import flow_style
    from zoo.io.plain_yaml import DEPTH

    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for item in value:
            _check_texts(key, item, origin)
    if not isinstance(value, str):
        return
    if "*" in value and "&" in value:
        try:
            flow_style(value, key)
        except UsageError as error:
            if "expands" in str(error) or "nested" in str(error):
                raise UsageError(f"{key!r}: {error}{where(origin)}") from error
    if value.count("[") + value.count("{") > DEPTH:
        raise UsageError(f"{key!r} is a text with more than {DEPTH} brackets: {value!r:.60}.{where(origin)}")


def _candidates(annotation: Any, node: Node, value: object) -> list[object]:
    """What a command-line text may stand for: where text is one type of several, a number comes first."""
    members = set(members_of(annotation)) - {type(None)}
    return [_guess(value), value] if not node.typed and str in members and len(members) > 1 else [value]


def is_plain(value: object) -> bool:
    """Whether a value is made of text, numbers, lists and mappings alone."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(name, (str, int)) and is_plain(item) for name, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def describe_type(annotation: Any) -> str:
    """An annotation in words."""
    members = members_of(annotation)
    words = [_word(member) for member in members if typing.get_origin(member) is not typing.Literal]
    choices = _choices(members)
    if choices:
        words.insert(0, "one of " + ", ".join(repr(item) for item in choices))
    return " or ".join(dict.fromkeys(words))


def _choices(members: list[Any]) -> list[object]:
    """What the literal types among the members allow; 16 and '16' count once."""
    items = [item for member in members if typing.get_origin(member) is typing.Literal for item in member.__args__]
    return list({str(item): item for item in items}.values())


def _wrong(key: str, annotation: Any, value: object, origin: str) -> UsageError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    hint = suggest(str(value), [str(item) for item in _choices(members_of(annotation))])
    return UsageError(f"{key!r} must be {describe_type(annotation)}, got {shown}.{hint}{where(origin)}")


def _word(member: Any) -> str:
    origin, arguments = typing.get_origin(member), typing.get_args(member)
    if origin in SEQUENCES and arguments:
        size = f"{len(arguments)} " if origin is tuple and arguments[-1] is not ... and len(set(arguments)) == 1 else ""
        return f"a list of {size}{MANY.get(arguments[0], 'values')}"
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return "one of " + ", ".join(repr(item.name) for item in member)
    base = origin or member
    if base in WORDS:
        return WORDS[base]
    if isinstance(base, type) and base.__module__ == "pathlib":
        return "a path"
    return getattr(base, "__name__", str(base)) if not isinstance(base, types.GenericAlias) else str(base)


def _guess(value: object) -> object:
    """A command-line text for a parameter without a type: what YAML would make of it."""
    if not isinstance(value, str):
        return value
    from zoo.config.yaml_source import flow_style

    try:
        value_of_text = flow_style(value, "").plain()
    except UsageError:
        return value
    return value_of_text if is_plain(value_of_text) else value
