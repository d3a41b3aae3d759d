"""Finds where zoo touches private names of other packages, by the syntax of its files and the classes they define.

A private name has one leading underscore. What counts:

- imports of a private name, or from a private module: ``from torch._subclasses import x``;
- an attribute ``thing._name``, unless zoo itself defines that name in a class or module, or it belongs to the public
  interface of named tuples;
- the same by a text: ``getattr(thing, "_name")``, ``setattr``, ``hasattr``, ``delattr``;
- ``thing.__class__ = ...``;
- ``self._name`` that no class of zoo sets, and a method or attribute ``_name`` of a class of zoo that a base from
  another package has too.
"""

import ast
import importlib
import inspect
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
NAMED_TUPLES = {"_asdict", "_replace", "_fields", "_make", "_field_defaults"}
BY_TEXT = {"getattr", "setattr", "hasattr", "delattr"}


class Use(NamedTuple):
    """A private name that is not of zoo, and where it is used."""

    path: str
    line: int
    name: str


@cache
def syntax(path):
    """The syntax tree of a file."""
    return ast.parse(Path(path).read_text(encoding="utf-8"))


@cache
def classes_in(path):
    """The syntax of the classes of a file by qualified name. inspect.getsource would read the file for each of them."""
    result = {}

    def collect(node, prefix):
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.ClassDef):
                result.setdefault(prefix + part.name, part)
                collect(part, f"{prefix}{part.name}.")
            elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                collect(part, f"{prefix}{part.name}.<locals>.")
            else:
                collect(part, prefix)

    collect(syntax(path), "")
    return result


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def uses(path):
    """Every use of another package's private names in a file of zoo."""
    tree = syntax(path)
    where = path.relative_to(ROOT).as_posix()
    files = {Use(where, line, name) for line, name in [*by_syntax(tree), *by_class(path, tree)]}
    return sorted(files)


def by_syntax(tree):
    """Lines and names of imports, attributes and texts."""
    own = defined_in_zoo()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names if any(map(is_private, one.name.split("."))))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("zoo"):
            for one in node.names:
                if any(map(is_private, [*(node.module or "").split("."), one.name])):
                    yield node.lineno, f"{node.module}.{one.name}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node.value):
            if node.attr not in NAMED_TUPLES | own:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Attribute) and node.attr == "__class__" and isinstance(node.ctx, ast.Store):
            yield node.lineno, "__class__"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in BY_TEXT and len(node.args) > 1:
            text = node.args[1]
            if isinstance(text, ast.Constant) and is_private(str(text.value)) and text.value not in NAMED_TUPLES | own:
                yield node.lineno, text.value


def is_self(node):
    """Whether it is self, cls or super()."""
    return (isinstance(node, ast.Name) and node.id in ("self", "cls")) or (
        isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"
    )


def set_names(tree):
    """Private names that a syntax tree gives a value: functions, variables, and attributes of self and cls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and is_private(node.name):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and is_private(node.id):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if is_private(node.attr) and is_self(node.value) else []


@cache
def defined_in_zoo():
    """Private names that zoo defines and no package that it derives classes from has: they can only be zoo's."""
    names = {name for path in (ROOT / "zoo").rglob("*.py") for name in set_names(syntax(path))}
    return names - {name for base in foreign_bases() for name in private_names(base)}


def classes(path):
    """The classes of a module, with their syntax."""
    nodes = [node for node in syntax(path).body if isinstance(node, ast.ClassDef)]
    if not nodes:
        return
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    yield from ((getattr(module, node.name), node) for node in nodes)


@cache
def foreign_bases():
    """All bases from other packages, but for those of the standard library, of all classes of zoo."""
    paths = [path for path in (ROOT / "zoo").rglob("*.py") if path.name != "__main__.py"]
    return {base for path in paths for cls, _ in classes(path) for base in bases(cls)}


def bases(cls):
    """The bases of a class that come from other packages; of the standard library's, none is private."""
    packages = ("lightning", "torch", "torchmetrics", "jsonargparse", "tensorboard", "rich", "filelock", "tokenizers")
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] in packages]


@cache
def private_names(base):
    """Private names that a class defines, on itself or on its objects."""
    names = {name for name in vars(base) if is_private(name)} - {"_abc_impl"}
    try:
        node = classes_in(inspect.getsourcefile(base)).get(base.__qualname__)
    except (OSError, TypeError):  # a class without source
        return names
    return names | set(set_names(node) if node else ())


def by_class(path, tree):
    """Lines and names that a class takes from its foreign bases: used, overridden or assigned."""
    if not any(isinstance(node, ast.ClassDef) for node in tree.body) or path.name == "__main__.py":
        return
    for cls, node in classes(path):
        foreign = {name for base in bases(cls) for name in private_names(base)}
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and is_self(part.value) and part.attr in foreign:
                yield part.lineno, part.attr
        for part in node.body:
            targets = [part.name] if isinstance(part, ast.FunctionDef) else []
            targets += [one.id for one in getattr(part, "targets", []) if isinstance(one, ast.Name)]
            targets += [part.target.id] if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) else []
            yield from ((part.lineno, name) for name in targets if name in foreign)


class Canary(NamedTuple):
    """A private name that zoo needs: the object that has it, and the parameters that zoo passes, where it is called."""

    package: str
    owner: object  # or a function of no arguments that gives it
    name: str
    parameters: tuple[str, ...] | None = None

    def __str__(self):
        return self.name


def check(canary, module):
    """Raises AssertionError, in one sentence, where the package has the name no more, or with other parameters."""
    label = f"{canary.package} {version(canary.package)}"
    owner = canary.owner() if inspect.isfunction(canary.owner) else canary.owner
    assert hasattr(owner, canary.name), f"{label} has no {canary.name}: {module} needs it."
    if canary.parameters is not None:
        names = tuple(inspect.signature(getattr(owner, canary.name)).parameters)
        assert names == canary.parameters, f"{label} has {canary.name}{names}: {module} needs {canary.parameters}."
