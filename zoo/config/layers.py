"""A layer of configuration (a file or an option): a tree whose every value has an origin, such as a file and line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from zoo.errors import UsageError


class Missing:
    """The type of MISSING, the value of a node without one."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


@dataclass
class Node:
    """One key: its own value (a scalar or a list of nodes), its origin, and the keys below it."""

    value: object = MISSING
    origin: str = ""
    children: dict[str, Node] = field(default_factory=dict)
    explicit: bool = False  # the value was written as class_path
    typed: bool = True  # False for text of the command line, whose type is not yet determined
    bare: bool = False  # a command-line option without a value

    def leaves(self, key: str = "") -> Iterator[tuple[str, Node]]:
        """Every key that holds a value, in the order of the file, with class names at the key of their slot."""
        if self.value is not MISSING and key:
            yield key, self
        for name, child in self.children.items():
            yield from child.leaves(f"{key}.{name}" if key else name)

    def as_data(self) -> object:
        """The tree as lists, dicts and scalars."""
        if self.children or self.explicit:
            below = {name: child.as_data() for name, child in self.children.items()}
            return below if self.value is MISSING else {"class_path": self.value, "init_args": below}
        if isinstance(self.value, list):
            return [item.as_data() if isinstance(item, Node) else item for item in self.value]
        return {} if self.value is MISSING else self.value

    def plain_value(self) -> object:
        """The node's own value, without the keys below it."""
        return [item.as_data() for item in self.value] if isinstance(self.value, list) else self.value


def where(origin: str) -> str:
    """The end of a message that says where the value comes from: `` ← file.yaml:3``."""
    return f" ← {origin}" if origin else ""


def merge_node(node: Node, over: Node) -> None:
    """Put the value and the keys of another node over those of ``node``, key by key; ``over`` stays as it is."""
    if over.value is not MISSING:
        node.value, node.explicit, node.typed, node.bare = over.value, over.explicit, over.typed, over.bare
    if over.value is not MISSING or not node.origin:
        node.origin = over.origin
    for name, child in over.children.items():
        merge_node(node.children.setdefault(name, Node()), child)


def insert_node(root: Node, path: Iterable[str], leaf: Node) -> None:
    """Insert a node at a path, creating nodes between; `class_path` and `init_args` mean the node that has them."""
    node = root
    for name in path:
        if name == "init_args":
            continue
        if name == "class_path":
            leaf.explicit = True
            continue
        node = node.children.setdefault(name, Node(origin=leaf.origin))
    if MISSING not in (node.value, leaf.value):  # a class that is named again begins with its own options
        node.children.clear()
    merge_node(node, leaf)


def nested_children(node: Node, key: str = "") -> dict[str, Node]:
    """The keys below the node at ``key``, with a dotted one such as ``norm.eps`` as the mapping that it stands for.

    It is for mappings of options alone: in a mapping of values, such as rates by parameter name, a dot is a letter.
    Raises UsageError where two spellings of a key have values.
    """
    if not any("." in name for name in node.children):
        return node.children
    root = Node()
    for name, child in node.children.items():
        path = name.split(".")
        parts = [name] if not all(path) else path  # a name is missing beside a dot: an unknown key
        if path[-1] == "init_args" and child.value not in (MISSING, None):
            raise UsageError(
                f"{_joined(key, name)!r} must hold keys, got {child.as_data()!r:.60}.{where(child.origin)}"
            )
        branch = Node()
        insert_node(branch, parts, child)
        _refuse_twice(root, branch, key)
        merge_node(root, branch)
    return root.children


def _refuse_twice(node: Node, over: Node, key: str) -> None:
    """Raise UsageError for a key that has a value in both nodes."""
    if node.value is not MISSING and over.value is not MISSING:
        raise UsageError(f"key {key!r} is written twice: {node.origin} and {over.origin}. Keep one.")
    for name in node.children.keys() & over.children.keys():
        _refuse_twice(node.children[name], over.children[name], _joined(key, name))


def _joined(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
