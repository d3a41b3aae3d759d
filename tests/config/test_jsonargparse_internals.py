"""A canary for the private name of jsonargparse: it sings until jsonargparse changes the name."""

import types

import jsonargparse._parameter_resolvers
import pytest

from tests.private_names import ROOT, Canary, check, uses
from zoo.config.jsonargparse_internals import get_signature_parameters

PATH = "zoo/config/jsonargparse_internals.py"
CANARY = Canary("jsonargparse", jsonargparse._parameter_resolvers, "get_signature_parameters")


def test_jsonargparse_has_the_name():
    check(CANARY, PATH)


def test_a_missing_name_is_said_in_one_sentence():
    with pytest.raises(AssertionError, match=r"^jsonargparse 4\.\S+ has no get_signature_parameters: .* needs it\."):
        check(CANARY._replace(owner=types.SimpleNamespace()), PATH)


def test_every_name_has_a_canary():
    assert {one.name.rpartition(".")[2] for one in uses(ROOT / PATH)} == {CANARY.name}


class Inner:
    def __init__(self, width: int = 1):
        self.width = width


class Outer:
    def __init__(self, depth: int = 2, **kwargs):
        self.depth, self.inner = depth, Inner(**kwargs)


def test_keyword_arguments_are_followed_to_the_class_that_declares_them():
    result = {one.name: (one.default, one.parent) for one in get_signature_parameters(Outer)}
    assert result == {"depth": (2, Outer), "width": (1, Inner)}
