"""Read untrusted YAML as plain values, within limits of size, depth and repetition."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from zoo.errors import UsageError
from zoo.io import limits
from zoo.io.limits import TooMuchError

BYTES, NODES, DEPTH = 1_000_000, 5_000, 40
CORE = "tag:yaml.org,2002:"


class Loader(yaml.SafeLoader):
    """YAML 1.2's few implicit types: `no` and `010` stay text, `3e-4` is a number. Raises for deep and long texts."""

    yaml_implicit_resolvers: dict[str, list] = {}  # noqa: RUF012 - the attribute's form is PyYAML's

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.nodes = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """PyYAML's, counted. Raises TooMuchError for more depth or nodes than a document may have."""
        self.nodes, self.depth = self.nodes + 1, self.depth + 1
        if self.depth > DEPTH + 1:
            raise TooMuchError(f"line {self.line + 1}: nested deeper than {DEPTH} levels.")
        if self.nodes > 2 * NODES + 1:  # keys count here, and not when values are built
            raise TooMuchError(f"line {self.line + 1}: the document has more than {NODES} values.")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
     "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):  # fmt: skip
    Loader.add_implicit_resolver(CORE + _tag, re.compile(f"^(?:{_pattern})$"), list(_first))


class Dumper(yaml.SafeDumper):
    """Writes in quotes what either version of YAML would read as something other than text, such as ``1e5``."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as above
        first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *Loader.yaml_implicit_resolvers.get(first, [])]
        for first in {**yaml.SafeDumper.yaml_implicit_resolvers, **Loader.yaml_implicit_resolvers}
    }


def _represent_text(dumper: Dumper, text: str) -> yaml.Node:
    """A text, in double quotes where it has U+0085: elsewhere YAML takes that for the end of a line."""
    return dumper.represent_scalar(CORE + "str", text, '"' if "\x85" in text else None)


Dumper.add_representer(str, _represent_text)


def dump(value: object, width: int | None = None) -> str:
    """Plain values as the text that `parse` reads them from, in their order."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=width)


def read(path: Path) -> object:
    """The plain value of a YAML file. Raises UsageError for tags, bombs and what is no YAML, OSError as usual."""
    return parse(limits.read_text(path, BYTES), str(path))


def parse(source: str, name: str) -> object:
    """The plain value of a YAML text; aliases count as what they stand for. Raises UsageError as ``read`` does."""
    try:
        loader = Loader(source)
        try:
            top = loader.get_single_node()
            if top is None:
                return None
            _check_expansion(top, name)
            return loader.construct_document(top)
        finally:
            loader.dispose()
    except TooMuchError as error:
        raise error if name in str(error) else TooMuchError(f"{name}: {error}") from error
    except RecursionError as error:
        raise TooMuchError(f"{name} is nested deeper than {DEPTH} levels.") from error
    except yaml.MarkedYAMLError as error:
        raise UsageError(syntax_error(error, source, name)) from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{name} is not valid YAML: {' '.join(str(error).split())[:300]}") from error


def syntax_error(error: yaml.MarkedYAMLError, text: str, name: str) -> str:
    """Where a text is no YAML: line, column, and the line itself with a mark below it."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"{name} is not valid YAML: {error.problem}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    start = max(0, mark.column - 90)
    caret = " " * (mark.column - start) + "^"
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return f"{name} is not valid YAML: {place}: {error.problem}\n  {line[start : start + 110]}\n  {caret}"


def _check_expansion(top: yaml.Node, name: str) -> None:
    """Raise unless what the aliases of a document expand to stays within the limits."""
    count, waiting = 0, [(top, 0)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > NODES or depth > DEPTH:
            raise TooMuchError(f"{name}:{node.start_mark.line + 1}: the document expands to more than {NODES}"
                               f" values or {DEPTH} levels.")  # fmt: skip
        below = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
        if not isinstance(node, yaml.ScalarNode):
            waiting += [(child, depth + 1) for child in below]
