"""What `zoo show` reads in a source text is what the class takes."""

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
