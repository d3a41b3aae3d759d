"""Coerce configuration values to their annotated types, one key at a time; errors name the key and its origin."""

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
    """The value of a node as the type of its annotation. Raises UsageError that says which type is expected.

    ``optional`` also admits null, as a default of None does.
    """
    value = node.as_data()
    if annotation in (inspect.Parameter.empty, Any, object):
        return _parse_untyped(value) if not node.typed else value
    if str(value).lower() in ("nan", ".nan"):
        raise _type_error(key, annotation, value, node.origin)
    _check_texts(key, value, node.origin)
    if value == "" and not node.typed and annotation is not str:
        raise UsageError(f"{key!r} is empty: leave it out, or is a variable of the shell unset?{where(node.origin)}")
    if isinstance(value, float) and math.isinf(value) and not key.startswith("trainer."):
        raise _type_error(key, annotation, value, node.origin)
    if isinstance(value, str) and set(members_of(annotation)) <= {int, float, bool, type(None)}:
        parsed = _parse_untyped(value)  # not by jsonargparse, which reads 010 as eight
        if isinstance(parsed, (str, float)) and not (isinstance(parsed, float) and float in members_of(annotation)):
            raise _type_error(key, annotation, value, node.origin)
        value = parsed
    if (
        type(value) is int and not -LARGEST_INT <= value <= LARGEST_INT and key != "seed_everything"
    ):  # has its own range
        raise UsageError(f"{key!r} is {value:.3g}: no more than {LARGEST_INT} can be counted.{where(node.origin)}")
    if value is None and not optional and type(None) not in members_of(annotation):
        raise _type_error(key, annotation, value, node.origin)
    comment = isinstance(value, str) and (value.startswith("#") or " #" in value)
    if _has_type(value, annotation) or (comment and str in members_of(annotation)):
        return value  # a parser of YAML would cut a text where a comment begins
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=annotation)
    reason: Exception | None = None
    for candidate in _candidates(annotation, node, value, optional):
        try:
            result = parser.parse_object({"value": candidate}).value
        except Exception as error:  # jsonargparse passes on errors raised by a type's own code
            reason = error
        else:
            return result if is_plain(result) else candidate
    raise _type_error(key, annotation, value, node.origin) from reason


def _has_type(value: object, annotation: Any) -> bool:
    """Whether a value needs no conversion: most are numbers, and a parser takes milliseconds for each.

    A text that may also be null is not one of them, since a parser reads the text "null".
    """
    if isinstance(annotation, types.UnionType):
        members = set(annotation.__args__) - {type(None)}
        return members <= {int, float, bool, str} and (value is None or (members == {type(value)} != {str}))
    return annotation is type(value) and annotation in (int, float, bool, str)


def _check_texts(key: str, value: object, origin: str) -> None:
    """Raise UsageError for a text that expands too much as YAML: jsonargparse parses texts as YAML."""
    from zoo.config.yaml_source import TooLargeError, parse_flow_text
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
            parse_flow_text(value, key)
        except TooLargeError as error:
            raise UsageError(f"{key!r}: {error}{where(origin)}") from error
        except UsageError:
            pass  # a text that is no YAML stays a text
    if value.count("[") + value.count("{") > DEPTH:
        raise UsageError(f"{key!r} is a text with more than {DEPTH} brackets: {value!r:.60}.{where(origin)}")


def _candidates(annotation: Any, node: Node, value: object, optional: bool) -> list[object]:
    """The values that a command-line text may mean: for a union of text and other types, first the parsed value.

    The text "null" is null only where null is possible. What YAML reads as a text is the text as it stands.
    """
    members = set(members_of(annotation))
    if node.typed or str not in members or len(members - {type(None)}) < 2:
        return [value]
    parsed = _parse_untyped(value)
    if isinstance(parsed, str):
        return [value]
    return [value] if parsed is None and not optional and type(None) not in members else [parsed, value]


def is_plain(value: object) -> bool:
    """Whether a value consists only of text, numbers, booleans, None, lists and mappings."""
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
    """The values of the literal types among ``members``; 16 and '16' count once."""
    items = [item for member in members if typing.get_origin(member) is typing.Literal for item in member.__args__]
    return list({str(item): item for item in items}.values())


def _type_error(key: str, annotation: Any, value: object, origin: str) -> UsageError:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "…"
    hint = suggest(str(value), [str(item) for item in _choices(members_of(annotation))])
    return UsageError(f"{key!r} must be {describe_type(annotation)}, got {text}.{hint}{where(origin)}")


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


def _parse_untyped(value: object) -> object:
    """A command-line text parsed as YAML, for parameters without a type."""
    if not isinstance(value, str):
        return value
    from zoo.config.yaml_source import parse_flow_text

    try:
        value_of_text = parse_flow_text(value, "").as_data()
    except UsageError:
        return value
    return value_of_text if is_plain(value_of_text) else value
