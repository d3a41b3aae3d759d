"""Public definitions have docstrings, results that are tensors have shapes, and options have phrases."""

import ast
import re
from pathlib import Path

from tests.rows import try_each
from zoo import registry
from zoo.plugins.description import describe, describe_class

ROOT = Path(__file__).parent.parent
FILES = sorted([*ROOT.glob("zoo/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])
# (B, T, dim), () for one number, "shaped like x", "the same shape", or a function of each element; no (Author, 2020)
SHAPE = re.compile(
    r"\((?![^()]*\b[12]\d{3}\b)[^()]*[\w.]+,[^()]*\)|(?<!\w)\(\)|\bshape(d)?\b|\belementwise\b|\bone number\b"
)


def public(tree, prefix=""):
    """Every public class and function of a module, and of its public classes, by its name; without overloads."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if not any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{prefix}{node.name}.")


def undocumented(source):
    return [name for name, node in public(ast.parse(source)) if not ast.get_docstring(node)]


def shapeless(source):
    return [
        name
        for name, node in public(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and re.search(r"\bTensor\b", ast.unparse(node.returns))
        and not SHAPE.search(ast.get_docstring(node) or "")
    ]


@try_each(FILES, lambda path: str(path.relative_to(ROOT)))
def test_public_definitions_have_docstrings(path):
    assert undocumented(path.read_text()) == []


@try_each(FILES, lambda path: str(path.relative_to(ROOT)))
def test_functions_that_return_tensors_give_shapes(path):
    assert shapeless(path.read_text()) == []


SOURCE = '''
class A:
    """A."""

    def b(self) -> Tensor:
        """The result."""

    def _c(self): ...

    @overload
    def e(self): ...

    def e(self):
        """The documented one."""


def d(): ...
'''


def test_what_is_missing_is_seen():
    assert undocumented(SOURCE) == ["d"]
    assert shapeless(SOURCE) == ["A.b"]
    assert shapeless(SOURCE.replace("The result.", "A formula (Author, 2020).")) == ["A.b"]
    assert shapeless(SOURCE.replace("The result.", "x (B, T) to (B,).")) == []


PARTS = [  # those of torch, such as its AdamW, have torch's own documentation
    part for kind in registry.KINDS for part in registry.parts(kind) if part.builtin and part.path.startswith("zoo.")
]


@try_each(PARTS, lambda part: f"{part.kind} {part.name}")
def test_every_option_has_a_phrase(part):
    without = [option.name for option in describe(part).options if not option.about]
    assert not without, f"{part}: say what they are below Args: in the docstring of __init__"


TOY = '''
class Base:
    """A base."""

    def __init__(self, dim: int, eps: float = 1e-5):
        """
        Args:
            dim: width of a token.
            eps: added to the variance,
                which may be zero.

        Raises nothing.
        """


class Part(Base):
    """A part.

    Args:
        gain: a factor.
    """

    def __init__(self, dim: int, gain: float = 1.0, eps: float = 1e-5, bare: int = 0): ...
'''


def test_phrases_come_from_the_constructor_the_class_or_its_base(tmp_path, monkeypatch):
    (tmp_path / "phrases_of_toys.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    assert {option.name: option.about for option in describe_class("phrases_of_toys", "Part").options} == {
        "dim": "width of a token.", "gain": "a factor.", "eps": "added to the variance, which may be zero.", "bare": "",
    }  # fmt: skip


def test_zoo_show_prints_them(capsys):
    from zoo.cli import main

    assert main(["show", "position", "rope"]) == 0
    out = capsys.readouterr().out
    assert "how many times longer the longest wavelengths become" in out
    assert main(["show", "attention", "multihead"]) == 0
    assert "one of: zoo list norm" in capsys.readouterr().out
