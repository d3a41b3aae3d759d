"""What `zoo show` reads in a source text is what the class takes."""

import importlib
import inspect
import sys
import textwrap

import pytest

from zoo.plugins import description

FILES = {
    "acme/ml/norms.py": '''
        import zoo.parts.norm
        import zoo.parts.norm as zn
        from typing import Generic, TypeVar
        from zoo.parts import norm
        T = TypeVar("T")

        class Aliased(zn.RMSNorm):
            """By a module's other name."""

        class Whole(zoo.parts.norm.RMSNorm):
            """By a module's whole name."""

        class Imported(norm.RMSNorm):
            """By a module that was imported from a package."""

        class Typed(Generic[T], zn.RMSNorm):
            """Behind a base without a constructor."""

        class Base(zn.RMSNorm, Generic[T]):
            pass

        class Bound(Base[int]):
            """By a base with a type."""
    ''',
    "plans.py": '''
        import dataclasses
        from dataclasses import KW_ONLY, InitVar, dataclass, field
        from typing import ClassVar

        class Plain:
            def __init__(self, total, lost=1): ...

        @dataclass
        class Warm(Plain):
            """Args:
                total: steps in all
                warmup: steps of warm-up
            """
            kind: ClassVar[str] = "warm"
            total: int
            warmup: int = 100
            drawn: float = field(default=0.5, repr=False)
            names: list = field(default_factory=list)
            own: int = dataclasses.field(init=False, default=0)

            def rate(self): ...

        class Undecorated(Warm):
            extra: int = 1

        @dataclasses.dataclass(frozen=False)
        class Cosine(Undecorated):
            warmup: int = 10
            seed: InitVar[int] = 3
            _: KW_ONLY
            floor: float = 0.1

        @dataclass(init=False)
        class Made(Plain):
            field: int = 0

        @dataclass
        class Written:
            field: int = 0

            def __init__(self, step: int = 2): ...
    ''',
    "deep/__init__.py": "from .inner import *\n",
    "deep/inner.py": '''
        from zoo.parts.norm import Norm

        class Deep(Norm):
            """Behind a star."""

            def __init__(self, dim: int, eps: float = 1e-6, offset: tuple[int, int] = (0, 1), joint: bool = False):
                """A norm.

                Arguments:
                    eps (float): added inside
                        the root.
                    offset (tuple(int, int), optional): of two numbers.
                    joint: over all: of them.
                """
    ''',
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages on the path, one of them in two folders without an `__init__`."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert "acme" not in sys.modules


@pytest.mark.parametrize("name", ["Aliased", "Whole", "Imported", "Typed", "Bound"])
def test_options_of_a_base_are_found_however_it_is_named(packages, name):
    options = description.describe_class("acme.ml.norms", name, 1).options
    expected = description.describe_class("zoo.parts.norm", "RMSNorm", 1).options
    assert expected
    assert options == expected


def test_a_module_below_folders_without_init_is_found(packages):
    assert description.import_problem("acme.ml.norms") == ""


def test_a_class_behind_a_star_is_found_with_what_its_docstring_says(packages):
    about = description.describe_class("deep", "Deep", 1)
    assert about.summary == "Behind a star."
    phrases = {option.name: option.about for option in about.options}
    assert phrases == {"eps": "added inside the root.", "offset": "of two numbers.", "joint": "over all: of them."}


@pytest.mark.parametrize("name", ["Warm", "Undecorated", "Cosine", "Made", "Written"])
def test_options_of_a_dataclass_are_what_its_constructor_takes(packages, name):
    options = description.describe_class("plans", name).options
    parameters = inspect.signature(getattr(importlib.import_module("plans"), name)).parameters.values()
    assert [option.name for option in options] == [parameter.name for parameter in parameters]
    usual = {option.name: option.default for option in options}
    assert {name for name, default in usual.items() if default is None} == {
        parameter.name for parameter in parameters if parameter.default is parameter.empty
    }
    if "warmup" in usual:
        assert (usual["drawn"], usual["names"]) == ("0.5", "list()")
        assert {option.name: option.about for option in options}["warmup"] == "steps of warm-up"
