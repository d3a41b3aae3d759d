"""Names and docstrings are plain technical English, so that a stranger finds and understands them."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import zoo

ROOT = Path(__file__).parents[1]
# Past participles and other words that say what happened to a thing, or nothing, in place of what it is.
WORDS = frozenset(
    "found told known asked kept wanted said made given drawn meant taken seen held chosen written named shown tried "
    "left rest begun lost built cut put brought bring heard sought gone listed mapped counted drafted noted owned "
    "spelled spelt plain left_out".split()
)
# Names that are words of a field: by file, with the reason.
ALLOWED = {
    "zoo/compare/charts.py": {"left": "the left edge of axes, beside right"},
    "plugins/zoo-text/src/zoo_text/data/preferences.py": {
        "chosen": "the preferred answer of a pair, beside rejected, as data sets of pairs say"
    },
    "zoo/compare/document.py": {"left": "the first column, beside right"},
    "zoo/data/augment.py": {"left": "the left edge of a crop, beside top"},
    "zoo/logging/attention_figures.py": {"left": "the left edge of a rectangle, beside top"},
    "tests/logging/test_attention_figures.py": {"left": "the left edge of a panel, beside top"},
}
PLACES = [
    path for top in ("zoo", "plugins") for path in (ROOT / top).iterdir() if path.is_dir() or path.suffix == ".py"
]
FOLDERS = sorted(
    {
        str(path.relative_to(ROOT))
        for path in [*PLACES, ROOT / "bench", ROOT / "recipes", ROOT / "tests"]
        if path.name != "__pycache__"
    }
)  # a module at the top counts as a folder


def files(folder: str) -> list[Path]:
    place = ROOT / folder
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def names(tree: ast.AST) -> list[tuple[str, int]]:
    """Every name that a module defines, with its line: classes, functions, parameters, variables, attributes."""
    result = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            result.append((node.name, node.lineno))
        elif isinstance(node, ast.arg):
            result.append((node.arg, node.lineno))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            result.append((node.id, node.lineno))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            result.append((node.attr, node.lineno))
        elif isinstance(node, ast.alias) and node.asname:
            result.append((node.asname, node.lineno))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            result.append((node.name, node.lineno))
    return result


def is_dialect(name: str) -> bool:
    return name.strip("_").lower() in WORDS


def test_the_words_are_seen_wherever_a_name_can_be():
    source = (
        "class Found: pass\ndef _told(said, *made, **given): pass\nKEPT = 1\nself.held = 2\n"
        "for seen in x: pass\nimport a.b as shown\ntry: pass\nexcept E as lost: pass\nbefore_seen = used = 3\n"
    )
    expected = ["Found", "_told", "said", "made", "given", "KEPT", "held", "seen", "shown", "lost"]
    assert sorted(name for name, _ in names(ast.parse(source)) if is_dialect(name)) == sorted(expected)


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_what_a_thing_is(folder):
    wrong = []
    for path in files(folder):
        label = str(path.relative_to(ROOT))
        allowed = ALLOWED.get(label, {})
        tree = ast.parse(path.read_text(encoding="utf-8"))
        wrong += [f"{label}:{line} {name}" for name, line in names(tree) if is_dialect(name) and name not in allowed]
        wrong += [f"{label}: the module itself"] if is_dialect(path.stem) else []
    assert not wrong, "name it by what it holds or does"


@pytest.mark.parametrize("label", ALLOWED)
def test_an_allowed_name_is_in_use(label):
    used = {name for name, _ in names(ast.parse((ROOT / label).read_text(encoding="utf-8")))}
    assert not ALLOWED[label].keys() - used


def public_definitions(module):
    """(name, object) of every public class and function of a module, and of the classes' public methods."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value) or inspect.isroutine(value):
            yield name, value
        if inspect.isclass(value):
            for method, function in vars(value).items():
                function = getattr(function, "__func__", function)
                is_lambda = getattr(function, "__name__", "") == "<lambda>"  # the default of a dataclass's field
                documentable = inspect.isfunction(function) or isinstance(function, property)
                if not method.startswith("_") and documentable and not is_lambda:
                    yield f"{name}.{method}", getattr(value, method)


@pytest.mark.parametrize(
    "folder", [name for name in FOLDERS if name.startswith("zoo/") and "__" not in name and files(name)]
)
def test_public_definitions_have_a_docstring(folder):
    """A method that overrides a documented one has its docstring, as ``help`` shows it."""
    top = folder.removesuffix(".py").replace("/", ".")
    package = importlib.import_module(top)
    inside = [info.name for info in pkgutil.walk_packages(getattr(package, "__path__", []), f"{top}.")]
    wrong = []
    for name in [top, *(one for one in inside if not one.endswith("__main__"))]:
        module = importlib.import_module(name)
        wrong += [] if module.__doc__ else [name]
        wrong += [f"{name}.{label}" for label, value in public_definitions(module) if not inspect.getdoc(value)]
    assert not wrong


def test_zoo_itself_is_documented():
    assert zoo.__doc__
