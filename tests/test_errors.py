"""Every error of zoo can be raised again with another message, here and by a library that knows its message alone."""

import importlib
import pickle
import pkgutil

import pytest

import zoo
from zoo.data.table_files import ValueKindError
from zoo.errors import ZooError


def subclasses(cls):
    """A class and all classes below it."""
    return [cls, *(below for child in cls.__subclasses__() for below in subclasses(child))]


for module in pkgutil.walk_packages(zoo.__path__, "zoo."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)


@pytest.mark.parametrize("cls", subclasses(ZooError), ids=lambda cls: cls.__name__)
def test_an_error_is_made_of_a_message(cls):
    error = cls("what is wrong")
    error.knows = 7
    reworded = error.reworded("what is wrong, and where")
    assert (type(reworded), str(reworded), reworded.knows) == (cls, "what is wrong, and where", 7)
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent)) == (cls, "what is wrong")


def test_a_reworded_error_keeps_what_it_knows():
    assert ValueKindError("the label is a number", "a number").reworded("train.jsonl:1").kind == "a number"
