"""Describe a part from its source text, importing nothing: one line about it, and its options."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from zoo.registry import Part

# how many leading numbers the model passes itself; they are not the user's to set
GIVEN = {"position": 3, "attention": 4, "norm": 1, "ffn": 2, "block": 5}
MAX_HOPS = 6


@dataclass(frozen=True)
class Option:
    """One parameter as it is written."""

    name: str
    type: str
    default: str | None  # None: a value is required


@dataclass(frozen=True)
class Description:
    """What the source says about a class."""

    summary: str
    options: tuple[Option, ...]
    file: str | None = None
    line: int = 0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class _Found:
    """A class definition and the module it stands in."""

    module: str
    node: ast.ClassDef


def describe(part: Part) -> Description:
    """The description of a registered part; empty when its source cannot be found."""
    module, _, name = part.target.partition(":")
    return describe_class(module, name, GIVEN.get(part.kind, 0))


def describe_class(module: str, name: str, given: int = 0) -> Description:
    """The description of a class by its module and name, without its first `given` parameters."""
    found = _find(module, name)
    if found is None:
        return Description("", ())
    doc = ast.get_docstring(found.node) or ""
    options = _options(found, MAX_HOPS)
    path = locate(found.module)
    summary = " ".join(doc.strip().partition("\n\n")[0].split())
    return Description(summary, tuple(options[given:]), str(path) if path else None, found.node.lineno)


def flaw(module: str, name: str) -> str:
    """Why importing a class would fail, as far as its source tells; nothing where it need not fail."""
    if not spec(module):
        return f"there is no module {module}"
    path = locate(module)
    if path is None:
        return ""  # compiled
    try:
        tree = _parsed(path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        return f"{path}{line} cannot be read: {getattr(error, 'msg', None) or type(error).__name__}"
    return "" if _may_have(tree, name) else f"{path} has no {name}"


def spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """Where a module would come from, found without importing it or the packages above it."""
    top, *rest = module.split(".")
    try:
        found = importlib.util.find_spec(top)
        name = top
        for piece in rest:
            if found is None or found.submodule_search_locations is None:
                return None
            name = f"{name}.{piece}"
            found = importlib.machinery.PathFinder.find_spec(name, list(found.submodule_search_locations))
    except Exception:  # an import hook of somebody else may raise anything
        return None
    return found


def locate(module: str) -> Path | None:
    """The source file of a module."""
    found = spec(module)
    origin = found.origin if found else None
    return Path(origin) if origin and origin.endswith(".py") else None


@functools.cache
def _parsed(path: Path) -> ast.Module:
    with warnings.catch_warnings():  # about invalid escapes in the source
        warnings.simplefilter("ignore")
        return ast.parse(path.read_bytes())


def _tree(module: str) -> ast.Module | None:
    path = locate(module)
    try:
        return _parsed(path) if path else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _may_have(tree: ast.Module, name: str) -> bool:
    """Whether a module can have a name: something binds it, or binds names that its source does not spell out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in (name, "__getattr__"):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name.partition(".")[0]) in (name, "*"):
            return True
        if isinstance(node, ast.Name) and node.id in ("globals", "vars", "setattr", "exec"):
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
    return False


def _find(module: str, name: str, hops: int = MAX_HOPS) -> _Found | None:
    """The definition of a class, following `from x import name`."""
    tree = _tree(module)
    if tree is None or hops == 0:
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _Found(module, node)
    for inner in ast.walk(tree):
        if isinstance(inner, ast.ImportFrom):
            for alias in inner.names:
                if (alias.asname or alias.name) == name:
                    return _find(_absolute(module, inner), alias.name, hops - 1)
    return None


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that an import statement names, relative ones included."""
    if not node.level:
        return node.module or ""
    path = locate(module)
    package = module.split(".") if path and path.name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _options(found: _Found, hops: int) -> list[Option]:
    """The parameters of a class's constructor, or of the nearest base that has one, `**kwargs` followed."""
    init = next(
        (item for item in found.node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None
    )
    if init is None:
        return _inherited(found, hops)
    arguments = init.args
    plain = [*arguments.posonlyargs, *arguments.args][1:]
    defaults: list[ast.expr | None] = [*arguments.defaults]
    padded = [None] * (len(plain) - len(defaults)) + defaults
    pairs = [*zip(plain, padded, strict=False), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    options = [_option(argument, default) for argument, default in pairs]
    if arguments.kwarg and hops:
        known = {option.name for option in options}
        options += [option for option in _forwarded(found, init, arguments.kwarg.arg, hops) if option.name not in known]
    return options


def _inherited(found: _Found, hops: int) -> list[Option]:
    for base in found.node.bases:
        if isinstance(base, ast.Name) and hops:
            parent = _find(found.module, base.id)
            if parent:
                return _options(parent, hops - 1)
    return []


def _option(argument: ast.arg, default: ast.expr | None) -> Option:
    kind = ast.unparse(argument.annotation) if argument.annotation else ""
    return Option(argument.arg, kind, None if default is None else ast.unparse(default))


def _forwarded(found: _Found, init: ast.FunctionDef, name: str, hops: int) -> list[Option]:
    """The options of the class that receives `**name`, less those the call sets itself."""
    for call in ast.walk(init):
        if not isinstance(call, ast.Call):
            continue
        passes = any(
            word.arg is None and isinstance(word.value, ast.Name) and word.value.id == name for word in call.keywords
        )
        if not passes:
            continue
        options = _target_options(found, call, hops)
        fixed = {word.arg for word in call.keywords}
        return [option for option in options[len(call.args) :] if option.name not in fixed]
    return []


def _target_options(found: _Found, call: ast.Call, hops: int) -> list[Option]:
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "__init__":
        return _inherited(found, hops)
    if isinstance(function, ast.Name):
        target = _find(found.module, function.id)
        return _options(target, hops - 1) if target else []
    return []
