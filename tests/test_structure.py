"""What must not grow: parameters per function, import directions; and what must agree: names."""

import ast
import functools
import graphlib
import importlib
import inspect
import pkgutil
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import zoo
from tests.rows import try_each
from zoo import registry

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "zoo").rglob("*.py"))
SOURCES = [*FILES, *sorted((ROOT / "plugins").rglob("*.py"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [
    (group, name, target) for group, points in PROJECT["entry-points"].items() for name, target in points.items()
]

# What the modules of a layer may import: parts of zoo, and packages beside the standard library (None: any).
APPLICATIONS = ("compare", "conformance", "explain")  # on the core, entered by their commands
UPPER = tuple(f"zoo.{folder}" for folder in APPLICATIONS)
ACROSS = {
    "conformance": ("zoo.compare.executor", "zoo.compare.design", "zoo.compare.options", "zoo.compare.command")
}  # what an application may import of another one: what it checks
PLUGINS = ("errors", "io", "plugins", "registry")
MAY_IMPORT = {
    "errors": ((), ()),
    "console": (("errors",), ()),
    "command_line": (("errors", "registry"), ()),
    "palette": ((), ()),
    "plotting": (("palette",), ("matplotlib", "numpy", "PIL")),
    "value_checks": (("errors",), ()),
    "io": (("errors", "io"), ("filelock", "yaml")),
    "system": (("errors", "io", "system"), ("filelock", "torch")),
    "registry": (("errors", "plugins"), ()),
    "plugins": (("errors", "registry", "plugins", "__version__"), ("packaging",)),
    "recipe_files": (("errors", "io", "registry"), ()),
    "parts": (("errors", "value_checks", "system", "parts"), ("torch",)),
    "models": (("errors", "value_checks", "registry", "parts", "models"), ("torch",)),
    "data": (("errors", "value_checks", "io", "registry", "recipe_files", "data"), None),
    "tasks": (
        ("errors", "value_checks", "io", "registry", "recipe_files", "parts", "models", "data", "tasks"),
        None,
    ),
    "finetuning": ((*PLUGINS, "recipe_files", "parts", "models", "data", "tasks", "inference", "finetuning"), None),
    "inference": (
        (*PLUGINS, "recipe_files", "system", "parts", "models", "data", "tasks", "inference", "finetuning"),
        None,
    ),
}


def id_of(path):
    return str(path.relative_to(ROOT))


@functools.cache
def parse(path):
    return ast.parse(path.read_text())


def imports(path):
    """Every module that a file imports, anywhere in it."""
    return imported(ast.walk(parse(path)))


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(path):
    return path.relative_to(ROOT / "zoo").with_suffix("").parts[0]


@try_each(FILES, id_of)
def test_imports_run_one_way(path):
    inside, outside = MAY_IMPORT.get(layer(path), (None, None))
    for name in imports(path):
        top, *below = name.split(".")
        if top == "zoo" and inside is not None and below:
            assert below[0] in inside, f"{layer(path)} imports {name}"
        elif top != "zoo" and outside is not None:
            assert top in sys.stdlib_module_names or top in outside, f"{layer(path)} imports {name}"
        assert not top.startswith("zoo_"), f"{layer(path)} imports {name}, a package on top of zoo"
        if layer(path) not in APPLICATIONS:
            assert not name.startswith(tuple(f"zoo.{folder}" for folder in APPLICATIONS)), (
                f"{layer(path)} imports {name}"
            )
        others = tuple(folder for folder in UPPER if folder != f"zoo.{layer(path)}")
        if layer(path) in APPLICATIONS and name.startswith(others):
            assert name.startswith(ACROSS.get(layer(path), ())), f"{layer(path)} imports {name}"
        if layer(path) not in ("cli", *APPLICATIONS) and path.name not in ("__main__.py", "__init__.py"):
            assert not name.startswith("zoo.cli"), f"{layer(path)} imports {name}, which is on top"


def test_no_modules_import_each_other_not_even_late():
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    needs = {name: {_module(one, names) for one in run_time(path)} & names.keys() for name, path in names.items()}
    tuple(graphlib.TopologicalSorter({name: imports_of - {name} for name, imports_of in needs.items()}).static_order())


def _module(name, names):
    return name if name in names else name.rpartition(".")[0]


def run_time(path):
    """Every module that a file imports other than for annotations."""
    nodes = list(ast.walk(parse(path)))
    blocks = [node.body for node in nodes if isinstance(node, ast.If) and is_for_annotations(node.test)]
    others = {inside for body in blocks for statement in body for inside in ast.walk(statement)}
    yield from imported(node for node in nodes if node not in others)


def is_for_annotations(condition):
    return isinstance(condition, ast.Name | ast.Attribute) and ast.unparse(condition).endswith("TYPE_CHECKING")


@try_each(SOURCES, id_of)
def test_a_function_has_at_most_ten_parameters(path):
    tree = parse(path)
    owners = {child: node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            args = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len([name for name in args if name not in ("self", "cls")])
            slots = owners.get(node) == "Stack" and node.name == "__init__"  # the one place where parts are declared
            assert count <= 10 or slots, f"{getattr(node, 'name', 'lambda')} has {count}"


@try_each(DECLARED, "{} {} {}".format)
def test_an_entry_point_names_a_documented_class_of_its_kind(group, name, target):
    module, _, attribute = target.partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    assert inspect.isclass(cls)
    assert cls.__name__ == attribute == name
    kind = registry.kind_of(cls)
    assert f"zoo.{kind}" == group
    assert cls.__doc__
    assert registry.get(kind, name) is cls


def test_every_kind_has_a_group_and_every_group_is_a_kind():
    families = {"zoo.family", "zoo.design"}  # which packages bring: zoo itself has none
    assert {*PROJECT["entry-points"]} | families == {f"zoo.{kind}" for kind in registry.KINDS}


def test_what_is_installed_is_what_is_declared():
    installed = [
        (point.group, point.name, point.value)
        for group in PROJECT["entry-points"]
        for point in entry_points(group=group)
        if point.dist and point.dist.name == registry.BUILTIN
    ]
    assert sorted(set(installed)) == sorted(DECLARED)


def modules():
    """Every module of zoo that can be imported without running a program."""
    return [info.name for info in pkgutil.walk_packages(zoo.__path__, "zoo.") if not info.name.endswith("__main__")]


@functools.cache
def is_open(method):
    return "raise NotImplementedError" in inspect.getsource(method)


def is_base(cls):
    """A kind itself, or a class that leaves a method to its subclasses."""
    methods = [getattr(cls, name) for name in dir(cls) if inspect.isfunction(getattr(cls, name, None))]
    ours = [method for method in methods if method.__module__.startswith("zoo.")]
    open_ones = [method for method in ours if is_open(method)]
    return "kind" in vars(cls) or inspect.isabstract(cls) or bool(open_ones)


@try_each(modules())
def test_a_public_class_of_a_kind_is_an_entry_point_or_a_documented_base(name):
    targets = {target for _, _, target in DECLARED}
    for cls in vars(importlib.import_module(name)).values():
        mine = inspect.isclass(cls) and cls.__module__ == name and not cls.__name__.startswith("_")
        if not mine or getattr(cls, "kind", None) not in registry.KINDS or f"{name}:{cls.__name__}" in targets:
            continue
        assert cls.__doc__, f"{cls.__name__} is neither an entry point nor a documented base"
        assert is_base(cls), f"{cls.__name__} has no entry point"
