from pathlib import Path

import pytest

from zoo.config.coercion import coerce
from zoo.config.layers import Node
from zoo.errors import UsageError

BASE = "model: Toy\ndata: {class_path: Text, init_args: {path: a}}\n"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lr", "3e-4", 3e-4), ("lr", "1", 1.0), ("limit", "null", None), ("limit", "7", 7), ("flag", "true", True),
        ("mode", "sum", "sum"), ("sizes", "[1,2]", (1, 2)), ("names", "[a, b]", ["a", "b"]), ("where", "x/y", "x/y"),
        ("share", "0.5", 0.5), ("share", "auto", "auto"), ("share", "null", "null"),
    ],
)  # fmt: skip
def test_command_line_texts_get_their_type(resolve, name, text, value):
    options = f"--model.{name}={text}".split("\n")
    result = resolve(BASE, options=options[0].replace(" ", ""))
    assert result.config["model"]["init_args"][name] == value


def test_a_bare_option_is_true(resolve):
    assert resolve(BASE, options="--model.flag").config["model"]["init_args"]["flag"] is True


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("lr", "3e-x", "must be a number, got '3e-x'"), ("lr", "true", "must be a number"),
        ("lr", "nan", "must be a number"),
        ("limit", "1.5", "must be a whole number or null, got '1.5'"), ("flag", "maybe", "must be true or false"),
        ("mode", "meen", "must be one of 'sum', 'mean', got 'meen'. Did you mean 'mean'?"),
        ("sizes", "[1,x]", "must be a list of whole numbers, got [1, 'x']"), ("sizes", "3", "must be a list of whole"),
        ("names", "a", "must be a list of texts or null"), ("lr", "[1]", "must be a number, got [1]"),
        ("attention.window", "x", "'model.attention.window' must be a whole number, got 'x'"),
        ("attention.groups", "x", "'model.attention.groups' must be a whole number or null"),
        ("optimizer.momentum", "x", "'model.optimizer.momentum' must be a number, got 'x'"),
        ("where", "[1]", "must be a path or null"),
    ],
)  # fmt: skip
def test_wrong_values_are_named_with_key_and_origin(resolve, name, text, message):
    with pytest.raises(UsageError) as caught:
        resolve(BASE, options=f"--model.{name}={text}")
    assert message in str(caught.value)
    assert str(caught.value).endswith(f"← --model.{name}={text}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("lr", "{a: 1}"), ("lr", "''"), ("limit", "1.5"), ("names", "{a: b}")])
def test_wrong_values_in_files_are_named_with_their_line(resolve, name, text):
    body = f"model:\n  class_path: Toy\n  init_args:\n    {name}: {text}\n{BASE.splitlines()[1]}\n"
    with pytest.raises(UsageError, match=rf"'model.{name}' must be .*← r0.yaml:4$"):
        resolve(body)


@pytest.mark.parametrize("annotation", [str, str | list[str], str | None, str | int, float | str, Path | str])
@pytest.mark.parametrize("text", ["notes #1.txt", "a: b #c", "#1", "1 #2", "[v2] #3"])
def test_a_text_is_not_cut_where_yaml_would_begin_a_comment(annotation, text):
    assert str(coerce("data.path", annotation, Node(text, "--data.path", typed=False))) == text


@pytest.mark.parametrize("annotation", [str | None, str | list[str], int, float | None, Path, Path | None, bool])
def test_an_empty_word_is_no_value(annotation):
    with pytest.raises(UsageError, match=r"'tune\.start' is empty: .*unset\? ← --tune\.start"):
        coerce("tune.start", annotation, Node("", "--tune.start", typed=False))
    assert coerce("data.mark", str, Node("", "--data.mark", typed=False)) == ""
