"""A value that is no part names no code, however deep it stands and wherever it was written."""

from collections.abc import Callable

import cli_toys
import pytest

from zoo.config import fit_options, yaml_source
from zoo.config.class_names import ClassFinder
from zoo.config.resolve import Schema, resolve
from zoo.errors import UsageError


class Hooked(cli_toys.Task):
    def __init__(self, hook: Callable[[int], int] | list[Callable[[int], int]] | None = None):
        self.hook = hook


CODE = '{"class_path":"os.system","init_args":{"command":"ls"}}'
PLACES = ["{}", "[{}]", '{{"a":{}}}', "[[{}]]", '{{"a":[{{"b":{}}}]}}', "[1,{}]", '{{"a":1,"b":{}}}']


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "option", ["model.names", "model.sizes", "model.where", "model.limit", "model.mode", "data.path"]
)
def test_a_class_where_a_plain_value_belongs(resolve, option, place):
    value = place.format(CODE)
    section, _, name = option.partition(".")
    body = "model: {class_path: Toy, init_args: {%s}}\ndata: {class_path: Text, init_args: {%s}}\n"
    texts = {"model": "", "data": "path: x", section: f"{name}: {value}"}
    with pytest.raises(UsageError, match=f"'{option}' takes a plain value, not a class"):
        resolve(body % (texts["model"], texts["data"]))
    with pytest.raises(UsageError, match=f"'{option}' takes a plain value, not a class"):
        resolve(body % ("", "path: x"), options=f"--{option}={value}")


@pytest.mark.parametrize("path", ["os.system", "my_module.function", "subprocess.run"])
@pytest.mark.parametrize("option", ["{}", "[{}]"])
def test_an_option_that_takes_a_function_is_given_none_by_a_recipe(toys, path, option):
    schema = Schema(cli_toys.Task, cli_toys.Data, cli_toys.Trainer)
    value = option.format(path)
    for layers in (
        [
            yaml_source.parse_yaml(
                f"model: {{class_path: Hooked, init_args: {{hook: {value}}}}}\ndata: Text\n", "r.yaml"
            )
        ],
        [yaml_source.parse_yaml("model: Hooked\ndata: Text\n", "r.yaml"),
         yaml_source.option_layer(fit_options.parse("fit", [f"--model.hook={value}"]).settings)],
    ):  # fmt: skip
        with pytest.raises(UsageError, match="takes a function or a class, which a recipe cannot name"):
            resolve(layers, schema, ClassFinder())
