"""Dialogues about the standard library: facts as the library itself has them, and answers that follow from turns."""

import importlib
import inspect
import re

import pytest
from zoo_text.data import librarychat
from zoo_text.data.librarychat import (
    LibraryDialogues,
    LibraryFunction,
    draw_dialogue,
    first_sentence,
    functions_of,
    library_functions,
)

from zoo.data.batches import generator
from zoo.data.conversation import Turn
from zoo.errors import UsageError

MODULES = ("shutil", "textwrap", "calendar", "fnmatch", "statistics", "base64", "urllib.parse", "html")
QUESTIONS = {  # by a word that only one kind of question has
    "module": "module|defined", "count": "many", "parameters": "parameters", "purpose": "do|for",
}  # fmt: skip


def test_facts_are_what_the_imported_library_says():
    checked = 0
    for one in library_functions():
        if one.module in MODULES:
            function = inspect.unwrap(getattr(importlib.import_module(one.module), one.name))
            assert list(inspect.signature(function).parameters) == one.parameters, one
            docstring = " ".join(inspect.getdoc(function).split("\n\n")[0].split())
            assert docstring.startswith(one.purpose), one
            checked += 1
    assert checked > 15


def test_only_public_functions_at_the_top_count():
    source = b'def f(a, *, b=1):\n    """Add. More."""\n    def g(x): "Not."\ndef _h(a): "No."\n'
    source += b'class A:\n    def m(self): "No."\n'
    assert list(functions_of(source, "m")) == [LibraryFunction("f", "m", ["a", "b"], "Add")]
    assert list(functions_of(b"def (", "m")) == []


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [("Return x.", "Return x"), ("Return 1.5\nof it. Then.", "Return 1.5 of it"), ("One\n\nTwo.", "One"), ("", "")],
)
def test_a_purpose_is_the_first_sentence(docstring, sentence):
    assert first_sentence(docstring) == sentence


def follow(dialogue, by_name):
    """Function and question of each turn, for a reader who remembers the last function and the last question."""
    about = kind = None
    for turn in dialogue[::2]:
        names = [word for word in re.findall(r"\w+", turn.text) if word in by_name]
        about = by_name[names[-1]] if names else about
        words = turn.text if about is None else re.sub(rf"\b{about.name}\b", "", turn.text)
        kind = next((name for name, form in QUESTIONS.items() if re.search(rf"\b({form})\b", words)), kind)
        yield about, kind


def test_every_answer_follows_from_the_turns_before_it_and_no_dialogue_is_in_two_splits():
    module = LibraryDialogues(size=3000)
    splits = module.conversations()
    by_name = {one.name: one for one in library_functions()}
    for dialogue in splits["val"] + splits["train"][:500]:
        assert [turn.role for turn in dialogue] == ["user", "assistant"] * 3
        assert [turn.text for turn in dialogue[1::2]] == [one.answer(kind) for one, kind in follow(dialogue, by_name)]
    assert not set(splits["train"]) & set(splits["val"]) | set(splits["train"]) & set(splits["test"])
    assert module.conversations() == splits  # the same at every call, whatever the seed of the order
    facts = {
        (turn.text, answer.text) for one in splits["train"] for turn, answer in zip(one[::2], one[1::2], strict=True)
    }
    assert len(facts) > 1000


def test_too_few_functions_or_dialogues_are_refused(monkeypatch):
    monkeypatch.setattr(librarychat, "TRIES", 2)
    with pytest.raises(UsageError, match="functions is 100000, and the library has"):
        LibraryDialogues(functions=100_000).conversations()
    with pytest.raises(UsageError, match="different dialogues, 1100 are needed"):
        LibraryDialogues(functions=2, turns=1, size=100).conversations()


def test_a_dialogue_asks_nothing_twice():
    functions = [LibraryFunction(name, "m", ["a"], "Does it") for name in "abcdef"]
    by_name = {one.name: one for one in functions}
    for number in range(50):
        dialogue = draw_dialogue(functions, 6, generator(number))
        assert len({(one.name, kind) for one, kind in follow(dialogue, by_name)}) == len(dialogue) / 2 == 6


def test_dialogues_are_drawn_once_and_stored_for_their_functions(monkeypatch, tmp_path):
    available = library_functions()
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(librarychat, "library_functions", lambda: available)  # which reading takes seconds
    options = {"functions": 20, "turns": 2, "size": 50}
    first = LibraryDialogues(**options).conversations()
    assert [len(first[split]) for split in ("train", "val", "test")] == [50, 500, 500]
    monkeypatch.setattr(librarychat, "draw_dialogue", lambda *_: pytest.fail("a dialogue was drawn"))
    assert LibraryDialogues(**options).conversations() == first
    assert all(isinstance(turn, Turn) for one in first["train"] for turn in one)
    changed = [one._replace(purpose="Nothing") for one in available]  # another version of Python
    monkeypatch.setattr(librarychat, "library_functions", lambda: changed)
    with pytest.raises(pytest.fail.Exception, match="was drawn"):
        LibraryDialogues(**options).conversations()
