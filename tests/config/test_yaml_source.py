import pytest

from zoo.config import yaml_source
from zoo.config.layers import MISSING
from zoo.errors import UsageError
from zoo.io import plain_yaml


def test_values_know_their_line():
    root = yaml_source.parse_yaml(
        "model:\n  class_path: A\n  init_args:\n    lr: 1.5\n    norm: B\ndata: C\n", "r.yaml"
    )
    model = root.children["model"]
    assert (model.value, model.origin) == ("A", "r.yaml:2")
    assert (model.children["lr"].value, model.children["lr"].origin) == (1.5, "r.yaml:4")
    assert (root.children["data"].value, root.children["data"].origin) == ("C", "r.yaml:6")


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-4", 3e-4), ("1e3", 1e3), ("010", "010"), ("no", "no"), ("on", "on"), ("true", True), ("null", None),
     ("~", None), ("-3", -3), ("1_000", 1000), (".5", 0.5), ("2020-01-01", "2020-01-01"), ("12:30", "12:30"),
     ("0x10", "0x10"), ("1.5e", "1.5e")],
)  # fmt: skip
def test_scalars_mean_what_they_look_like(text, value):
    result = yaml_source.parse_yaml(f"a: {text}", "r").children["a"].value
    assert result == value
    assert type(result) is type(value)


TEXTS = [
    "1e5", "12e4567", ".5e3", "+.5", "-1E-3", "1_0", "0x10", "010", "no", "on", "y", "null", "~", "true", "2020-01-01",
    "12:30", "<<", "=", ".inf", ".nan", "-", "", " a", "a ", "a: b", "a #b", "[x", "{y", "😀", "é", "\u2028",
    "\x85", "x\x85 y", "a\nb",
]  # fmt: skip


@pytest.mark.parametrize("value", [*TEXTS, 1e5, 1e-5, -0.0, float("inf"), 10**20, True, None, [], {"1e5": ["no", 1.0]}])
def test_what_is_written_is_read_again(value):
    content = {"model": value, "list": [value], "after": 1}
    text = plain_yaml.dump(content)
    result = plain_yaml.parse(text, "r")
    assert result == content
    assert type(result["model"]) is type(value)


def test_a_class_that_is_named_again_begins_with_its_own_options():
    options = [
        ("model.norm", "{class_path: LayerNorm, init_args: {eps: 1.0}}", "a"), ("data.options", "{a: 1, b: 2}", "b"),
        ("model.norm.offset", "3", "c"), ("model.norm", "RMSNorm", "d"), ("data.options", "{b: 3}", "e"),
    ]  # fmt: skip
    layer = yaml_source.option_layer(options)
    assert layer.children["model"].children["norm"].as_data() == {"class_path": "RMSNorm", "init_args": {"offset": "3"}}
    assert layer.children["data"].children["options"].as_data() == {"a": 1, "b": 3}  # a mapping adds keys


def test_syntax_error_shows_line_and_caret():
    with pytest.raises(UsageError) as caught:
        yaml_source.parse_yaml("model: A\ndata: {path: [1, 2\ntrainer: 1\n", "my.yaml")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("my.yaml is not valid YAML: line ")
    assert "column" in lines[0]
    assert lines[2].strip() == "^"
    assert len(lines) == 3


def test_caret_stands_below_the_column():
    with pytest.raises(UsageError) as caught:
        yaml_source.parse_yaml("a: 1\nb: one: two\n", "my.yaml")
    first, line, caret = str(caught.value).splitlines()
    assert "line 2, column 7" in first
    assert line[caret.index("^")] == ":"


def test_duplicate_keys_name_both_lines():
    with pytest.raises(UsageError, match=r"key 'lr' is written twice: r.yaml:2 and r.yaml:4"):
        yaml_source.parse_yaml("model:\n  lr: 1\n  dim: 2\n  lr: 3\n", "r.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n",
        "a: &a [*a]",
        "a: " + "[" * 60 + "]" * 60,
        "a: " + "[" * 20_000,
        "a: !!python/object/apply:os.system [echo]",
        "a: !!binary aGk=",
        "a: !!int x",
        "? [a, b]\n: 1",
        "base: &b {x: 1}\nm:\n  <<: *b\n",
        "a: \x01",
        "a: b\n---\nc: d\n",
    ],
)
def test_bombs_and_tags_are_refused_in_few_lines(text):
    with pytest.raises(UsageError) as caught:
        yaml_source.parse_yaml(text, "r.yaml")
    assert len(str(caught.value).splitlines()) <= 4
    assert "r.yaml" in str(caught.value)


def test_files_that_are_no_recipe(tmp_path):
    file = tmp_path / "r.yaml"
    for data, words in (
        (b"\xff\xfea\x00", "not UTF-8"), (b"a: \xe9\n", "line 1 holds byte 0xe9"),
        (b"- a\n", "a list"), (b"word", "'word'"), (b"", "r.yaml is empty"),
        (b"#" * 1_000_001, "bytes"),
    ):  # fmt: skip
        file.write_bytes(data)
        with pytest.raises(UsageError, match=words):
            yaml_source.read_yaml(file)
    with pytest.raises(UsageError, match="cannot read"):
        yaml_source.read_yaml(tmp_path)


def test_options_become_one_layer_with_their_text():
    result = yaml_source.option_layer(
        [("model.norm.eps", "1", "--model.norm.eps 1"), ("data.x", "[1, a]", "--data.x")]
    ).children
    leaf = result["model"].children["norm"].children["eps"]
    assert (leaf.value, leaf.origin, leaf.typed) == ("1", "--model.norm.eps 1", False)
    assert result["model"].value is MISSING
    assert result["data"].children["x"].as_data() == [1, "a"]


def test_long_form_of_options():
    options = [
        ("model.class_path", "A", ""),
        ("model.init_args.norm.class_path", "B", ""),
        ("model.init_args.x", "1", ""),
    ]
    model = yaml_source.option_layer(options).children["model"]
    assert model.value == "A"
    assert model.children["norm"].value == "B"
    assert model.children["x"].value == "1"


def test_a_mapping_adds_keys_and_the_longer_option_counts():
    options = [("model.norm.eps", "2", ""), ("model", "{norm: {a: 1}}", ""), ("model", "{norm: {eps: 1, b: 3}}", "")]
    for order in (options, options[::-1]):
        norm = yaml_source.option_layer(order).children["model"].children["norm"]
        assert {name: node.value for name, node in norm.children.items()} == {"a": 1, "b": 3, "eps": "2"}


LAYER_NORM = "{class_path: LayerNorm, init_args: {eps: 1.0}}"


@pytest.mark.parametrize(
    "options",
    [
        [("model.norm", LAYER_NORM), ("model.norm", "RMSNorm")],
        [("model.norm", LAYER_NORM), ("model.norm.class_path", "RMSNorm")],
        [("model.init_args.norm", LAYER_NORM), ("model.norm.class_path", "RMSNorm")],
        [("model", f"{{norm: {LAYER_NORM}}}"), ("model.norm", "RMSNorm")],
        [("model.norm", "RMSNorm"), ("model", f"{{norm: {LAYER_NORM}}}")],
    ],
)
def test_a_class_that_is_named_again_in_any_spelling_begins_with_its_own_options(options):
    layer = yaml_source.option_layer([(key, value, "") for key, value in options])
    norm = layer.children["model"].children["norm"]
    assert (norm.value, norm.children) == ("RMSNorm", {})


@pytest.mark.parametrize("key", ["model.norm", "model.norm.class_path", "model.init_args.norm"])
def test_a_mapping_of_options_and_a_class_may_stand_in_any_order(key):
    options = [("model.norm.init_args", "{eps: 1}", ""), (key, "LayerNorm", "")]
    for order in (options, options[::-1]):
        norm = yaml_source.option_layer(order).children["model"].children["norm"]
        assert (norm.value, norm.children["eps"].value) == ("LayerNorm", 1)
