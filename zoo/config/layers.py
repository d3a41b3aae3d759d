"""One layer of configuration: a tree in which every value remembers where it was written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


class Missing:
    """No value was written."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


@dataclass
class Node:
    """One key: its own value (a scalar, or a list of nodes), its origin, and the keys below it."""

    value: object = MISSING
    origin: str = ""
    children: dict[str, Node] = field(default_factory=dict)
    explicit: bool = False  # the value was written as class_path
    typed: bool = True  # False: text of the command line, whose type is not yet known
    bare: bool = False  # an option of the command line without a value

    def plain(self) -> object:
        """The same as lists, dicts and scalars."""
        if self.children or self.explicit:
            below = {name: child.plain() for name, child in self.children.items()}
            return below if self.value is MISSING else {"class_path": self.value, "init_args": below}
        if isinstance(self.value, list):
            return [item.plain() if isinstance(item, Node) else item for item in self.value]
        return {} if self.value is MISSING else self.value

    def plain_value(self) -> object:
        """The node's own value, without the keys below it."""
        return [item.plain() for item in self.value] if isinstance(self.value, list) else self.value


def where(origin: str) -> str:
    """The tail of a message that says where the value was written."""
    return f" ← {origin}" if origin else ""


def put(root: Node, path: Iterable[str], leaf: Node) -> None:
    """Place a node under a path, creating what lies between; `class_path` and `init_args` stand for the node itself."""
    node = root
    for name in path:
        if name == "init_args":
            continue
        if name == "class_path":
            leaf.explicit = True
            continue
        node = node.children.setdefault(name, Node(origin=leaf.origin))
    if leaf.value is not MISSING:
        node.value, node.explicit, node.typed = leaf.value, leaf.explicit, leaf.typed
        node.bare = leaf.bare
    node.origin = leaf.origin
    node.children.update(leaf.children)
