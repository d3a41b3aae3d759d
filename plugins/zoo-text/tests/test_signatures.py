"""Questions about signatures and summaries of docstrings: what is asked, what is answered, and what is held back."""

import ast
import inspect

import pytest
from zoo_text.data.signatures import Signature, SignatureQuestions, questions, signatures_of
from zoo_text.data.summaries import DocSummaries, summary

from zoo.errors import UsageError


def f(a, /, b, c: int = 3, *words: str, d, e=(1, "x"), **more):
    """Only its signature counts."""


SOURCE = inspect.getsource(f).encode()


def test_a_signature_is_read_as_it_stands_without_annotations():
    (one,) = signatures_of(SOURCE)
    assert one.text == "f(a, b, c=3, *words, d, e=(1, 'x'), **more)"
    assert {name.lstrip("*"): default for name, default in one.defaults.items()} == {
        name: None if parameter.default is parameter.empty else repr(parameter.default)
        for name, parameter in inspect.signature(f).parameters.items()
    }


@pytest.mark.parametrize(
    "source", [b"def f(self, a): ...", b"def f(a): ...", b"def (", b"def f(" + b"x" * 99 + b", a): ..."]
)
def test_what_is_too_short_too_long_or_no_python_is_left_out(source):
    assert not list(signatures_of(source))


def test_all_that_is_asked_of_a_signature():
    answers = {
        pair.source: (pair.target, pair.kind)
        for pair in questions(Signature("f(a, *b, c=1)", {"a": None, "*b": None, "c": "1"}))
    }
    assert answers == {
        "default of c? f(a, *b, c=1)": ("1", "default"),
        "after a? f(a, *b, c=1)": ("b", "after"),
        "after b? f(a, *b, c=1)": ("c", "after"),
        "number 1? f(a, *b, c=1)": ("a", "place"),
        "number 2? f(a, *b, c=1)": ("b", "place"),
        "number 3? f(a, *b, c=1)": ("c", "place"),
        "how many? f(a, *b, c=1)": ("3", "count"),
    }


def test_every_answer_of_the_library_is_right_and_no_signature_is_in_two_splits():
    corpus = SignatureQuestions().corpus()
    assert len(corpus["train"]) > 10_000
    assert all(len(corpus[split]) > 300 for split in ("val", "test"))
    signatures_of = {split: {pair.source.partition("? ")[2] for pair in pairs} for split, pairs in corpus.items()}
    assert (
        not signatures_of["train"] & signatures_of["val"]
        | signatures_of["train"] & signatures_of["test"]
        | signatures_of["val"] & signatures_of["test"]
    )
    for pair in corpus["val"]:
        question, _, text = pair.source.partition("? ")
        names = parameter_text(ast.parse(f"def {text}: ...").body[0].args)
        answers = {"count": len(names), "place": names[int(question.split()[-1]) - 1] if pair.kind == "place" else None}
        assert pair.target == str(answers.get(pair.kind, pair.target))
        assert pair.target in text or pair.kind == "count"


def parameter_text(args):
    """The names of parameters in the order of the source."""
    parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return [one.arg for one in sorted(filter(None, parameters), key=lambda one: one.col_offset)]


def test_a_summary_is_the_first_line_and_the_body_ends_at_a_word():
    text = "Return the sum of all numbers.\n\nThe numbers are added\nfrom the left to the right, one after the other."
    pair = summary(text, 60)
    assert pair.target == "Return the sum of all numbers."
    assert pair.source == "The numbers are added from the left to the right, one after"
    assert summary(text, 1000).source.endswith("one after the other.")


@pytest.mark.parametrize(
    "text",
    [
        "Return the sum of all numbers.",  # nothing to sum up
        "Return the sum of all numbers.\n\nShort.",
        "Return the sum of all\nnumbers.\n\n" + "They are added from the left to the right. " * 3,
        "Return the sum of all numbers\n\n" + "They are added from the left to the right. " * 3,
        "Sum.\n\n" + "They are added from the left to the right. " * 3,
    ],
)
def test_a_docstring_without_summary_or_body_is_left_out(text):
    assert summary(text, 300) is None


def test_no_summary_is_in_two_splits():
    corpus = DocSummaries().corpus()
    targets = {split: {pair.target for pair in pairs} for split, pairs in corpus.items()}
    assert len(targets["train"]) > 1000
    assert not targets["train"] & targets["val"] | targets["train"] & targets["test"]
    assert all(len(pair.source) <= 300 for pairs in corpus.values() for pair in pairs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DocSummaries(reads=10), "reads"),
        (lambda: DocSummaries(val_fraction=1.5), "val_fraction"),
        (lambda: SignatureQuestions(val_fraction=0.5), "val_fraction"),
    ],
)
def test_sizes_that_cannot_be(make, message):
    with pytest.raises(UsageError, match=message):
        make()
