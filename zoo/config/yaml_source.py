"""Read YAML files and options into nodes with file and line; reject duplicate keys, tags and excessive expansion."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import yaml

from zoo.config.layers import MISSING, Node, insert_node, nested_children
from zoo.errors import UsageError
from zoo.io import limits, plain_yaml
from zoo.io.plain_yaml import CORE, Loader

LONG_FORM = {"class_path", "init_args"}  # names in a path that stand for the node which has them
MAX_NODES, MAX_DEPTH = plain_yaml.NODES, plain_yaml.DEPTH


def read_yaml(path: Path) -> Node:
    """The layer in a YAML file. Raises UsageError if it cannot be read or is invalid."""
    try:
        text = limits.read_text(path, plain_yaml.BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    root = parse_yaml(text, str(path))
    if root.value in (MISSING, None) and not root.children:
        raise UsageError(f"{path} is empty: keys such as 'model:', 'data:' and 'trainer:' belong in it.")
    if root.value is not MISSING:
        raise UsageError(f"{path} must hold keys such as 'model:' and 'data:' at its top, not {_kind(root.value)}.")
    return root


class TooLargeError(UsageError):
    """A text that is nested too deeply, or expands to too many values."""


def parse_flow_text(text: str, origin: str) -> Node:
    """The list or mapping of a command-line option in YAML's flow form. Raises UsageError if it is invalid."""
    return parse_yaml(text, "", origin)


def parse_yaml(text: str, name: str, origin: str = "") -> Node:
    """The node of a YAML text; origins are ``name:line``, or ``origin``. Raises UsageError if it is invalid."""
    try:
        loader = Loader(text)
        try:
            top = loader.get_single_node()
            root = Node() if top is None else _Builder(loader, name, origin).build(top, 0)
            if not origin:  # a file, whose top holds sections
                root.children = nested_children(root)
            return root
        finally:
            loader.dispose()
    except limits.TooMuchError as error:
        raise TooLargeError(f"{name or origin}: {error}") from error
    except yaml.MarkedYAMLError as error:
        raise UsageError(plain_yaml.syntax_error(error, text, name or origin)) from error
    except yaml.reader.ReaderError as error:
        what = f"line {text[: error.position].count(chr(10)) + 1} holds the character {error.character!r}"
        raise UsageError(f"{name or origin} is not valid YAML: {what}, which YAML does not allow.") from error
    except RecursionError as error:
        raise TooLargeError(f"{name or origin} is nested deeper than {MAX_DEPTH} levels.") from error


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else f"{value!r:.60}"


class _Builder:
    """Converts a composed YAML document to nodes, counting the values that aliases expand to."""

    def __init__(self, loader: Loader, name: str, origin: str) -> None:
        self.loader, self.name, self.origin, self.count = loader, name, origin, 0

    def at(self, node: yaml.Node) -> str:
        return self.origin or f"{self.name}:{node.start_mark.line + 1}"

    def build(self, node: yaml.Node, depth: int) -> Node:
        self.count += 1
        if depth > MAX_DEPTH:
            raise TooLargeError(f"{self.at(node)}: nested deeper than {MAX_DEPTH} levels.")
        if self.count > MAX_NODES:
            raise TooLargeError(f"{self.at(node)}: the document expands to more than {MAX_NODES} values.")
        if not isinstance(node, yaml.ScalarNode) and node.tag not in (CORE + "map", CORE + "seq"):
            raise self.tagged(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item, depth + 1) for item in node.value], self.at(node))
        return Node(self.scalar(node), self.at(node))

    def tagged(self, node: yaml.Node) -> UsageError:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        return UsageError(f"{self.at(node)}: the tag {tag!r} is not allowed in a recipe.")

    def scalar(self, node: yaml.Node) -> object:
        if node.tag == CORE + "str":
            return node.value
        if node.tag not in {CORE + tag for tag in ("bool", "int", "float", "null")}:
            raise self.tagged(node)
        try:
            return self.loader.construct_object(node, deep=True)
        except (ValueError, yaml.YAMLError) as error:
            raise UsageError(f"{self.at(node)}: {node.value!r:.60} is not a value: {error}") from error

    def mapping(self, node: yaml.MappingNode, depth: int) -> Node:
        result = Node(origin=self.at(node))
        origins: dict[str, str] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == CORE + "merge":
                raise UsageError(f"{self.at(key_node)}: a key must be a plain name.")
            key, place = str(key_node.value), self.at(key_node)
            if key in origins:
                both = origins[key] if self.origin else f"{origins[key]} and {place}"
                raise UsageError(f"key {key!r} is written twice: {both}. Keep one.")
            origins[key] = place
            self.place(result, key, self.build(value_node, depth + 1), place)
        return result

    def place(self, result: Node, key: str, child: Node, place: str) -> None:
        """Insert a child at its key; `class_path` and `init_args` belong to the node that contains them."""
        if key == "class_path":
            if child.children or child.explicit:
                raise UsageError(f"{place}: class_path must be a name, got {child.as_data()!r:.60}.")
            result.value, result.explicit, result.origin = child.value, True, place
        elif key == "init_args":
            if child.value not in (MISSING, None):
                raise UsageError(f"{place}: init_args must hold keys, got {_kind(child.value)}.")
            result.children.update(child.children)
        else:
            child.origin = child.origin if child.children or child.explicit else place
            result.children[key] = child


def _is_name(value: str) -> bool:
    """Whether a text with a bracket in front names a file, such as ``[v2] book.txt``, and is no list or mapping."""
    return value.rstrip()[-1] not in ("]", "}") or os.path.lexists(os.path.expanduser(value))


def _short_path(key: str) -> list[str]:
    """The words of a dotted key without those of the long form, ``model.norm.init_args.eps`` as ``model.norm.eps``."""
    return [word for word in key.split(".") if word not in LONG_FORM]


def option_layer(options: Iterable[tuple[str, str | bool, str]]) -> Node:
    """The layer of a command line's options (dotted key, value, text). Raises UsageError.

    All options are one layer, as the keys of a file are: their order means nothing. Only of one option that is
    repeated the last value or class counts, and mappings add keys; an option counts over the same key inside a mapping:
    ``model.norm.eps`` over ``model.norm '{eps: 1}'``.
    """
    leaves: list[tuple[str, Node]] = []
    for key, value, text in options:
        if not all(key.split(".")):
            raise UsageError(f"'--{key}' is not an option: a name is missing beside a dot.")
        if isinstance(value, str) and value[:1] in ("[", "{") and not _is_name(value):
            leaf = parse_flow_text(value, text)
        else:
            leaf = Node(value, text, typed=not isinstance(value, str), bare=value is True)
        if leaf.value is not MISSING:  # a class that is named again begins with its own options
            leaves = [
                (other, earlier) for other, earlier in leaves
                if _short_path(other) != _short_path(key) or other.endswith(".init_args")
            ]  # fmt: skip
        leaves.append((key, leaf))
    root = Node()
    for key, leaf in sorted(leaves, key=lambda option: len(_short_path(option[0]))):
        insert_node(root, key.split("."), leaf)
    return root
