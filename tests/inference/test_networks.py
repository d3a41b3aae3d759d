"""Networks are those of their tasks, and using an export imports nothing that only training needs."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from zoo import registry
from zoo.errors import PluginError, UsageError
from zoo.inference.rebuild_task import TRAINING, complete_options, rebuild_network, rebuild_task
from zoo.plugins.description import describe_network
from zoo.plugins.safe_import import import_object

SOURCE = Path("config.json")
SMALL = {"dim": 16, "depth": 1, "heads": 2}
OTHERS = {
    "zoo.tasks.translation.Translation": {**SMALL, "decoder_depth": 2},
}
BUILT_IN = [f"{part.module}.{part.name}" for part in registry.installed_parts("task") if part.builtin]
HEAVY = ("lightning", "torchmetrics", "torchvision", "torch._dynamo", "scipy")
# what commands print goes to standard output; after each, the modules to standard error as a line of JSON
MODULES = """
import json, sys
from zoo.cli import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
    print(json.dumps([words[0], *sys.modules]), file=sys.stderr)
"""


def task_class(path):
    module, _, name = path.rpartition(".")
    return import_object(module, name)


def section(path, **more):
    """A small model of a task, as an export describes it."""
    options = {**task_class(path).data_sizes, **OTHERS.get(path, SMALL), **more}
    return complete_options({"class_path": path, "init_args": options})


@pytest.mark.parametrize("path", BUILT_IN)
def test_a_network_holds_what_its_task_holds(path):
    model = section(path)
    task = rebuild_task({"model": model}, SOURCE)
    network, today = rebuild_network({"model": model}, SOURCE)
    expected, tensors = task.state_dict(), network.state_dict()
    assert {name: one.shape for name, one in tensors.items()} == {name: one.shape for name, one in expected.items()}
    assert repr(network.net) == repr(task.net)
    assert today == model


@pytest.mark.parametrize("path", BUILT_IN)
def test_options_of_training_are_those_that_the_task_keeps_for_itself(path):
    """Of the task's own arguments, the network has those that are not of training, by the same names."""
    own = set(inspect.signature(task_class(path)).parameters)
    source = describe_network(*path.rsplit(".", 1))
    assert source.training_options == task_class(path).training_options
    assert {*source.training_options, *TRAINING} <= own
    complete = section(path)["init_args"]
    assert {*source.training_options, *TRAINING} <= set(complete)
    assert len({*source.training_options, *TRAINING}) == len(source.training_options) + len(TRAINING)


@pytest.mark.parametrize("path", BUILT_IN)
def test_the_source_of_a_task_says_what_its_class_says(path):
    source, task = describe_network(*path.rsplit(".", 1)), rebuild_task({"model": section(path)}, SOURCE)
    assert source.path == f"{type(task.net).__module__}.{type(task.net).__name__}"
    assert source.trained == type(task).trained


def task_source(body, base="CausalLM"):
    """A module with a task that derives from one of zoo's."""
    return f"""
from typing import Any
from zoo.models.language import LanguageModel
from zoo.tasks.lm import CausalLM, LanguageTask

class Wide(LanguageModel):
    pass

class Mine({base}):
    \"\"\"A task.\"\"\"
    {body}
"""


CONSTRUCTOR = "def __init__(self, **options): super().__init__(**options)"
CALL = "def network(**options): return {}"


@pytest.mark.parametrize(
    ("body", "base", "path"),
    [
        ("pass", "CausalLM", "zoo.models.language.LanguageModel"),
        (CALL.format("Wide(**options)"), "CausalLM", "{module}.Wide"),
        (f"{CONSTRUCTOR}\n    training_options = ('depths',)", "CausalLM", "zoo.models.language.LanguageModel"),
        (CONSTRUCTOR, "CausalLM", None),  # it may keep more than its network
        (CALL.format("Wide(dim=8, **options)"), "CausalLM", None),
        (CALL.format("Wide(8, **options)"), "CausalLM", None),
        (CALL.format("max(Wide, key=id)(**options)"), "CausalLM", None),
        ("trained = ''", "CausalLM", None),
        ("training_options = None", "CausalLM", None),
        ("training_options = tuple(map(str, ()))", "LanguageTask", None),
        ("training_options = ()", "LanguageTask", None),  # it has no network
    ],
)
def test_a_network_is_used_alone_where_the_source_says_that_it_is_enough(tmp_path, monkeypatch, body, base, path):
    module = f"task_source_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(task_source(body, base))
    monkeypatch.syspath_prepend(tmp_path)
    source = describe_network(module, "Mine")
    assert (source and source.path) == (path and path.format(module=module))


def test_a_class_that_is_not_allowed_is_refused_among_the_options_of_training():
    model = section("zoo.tasks.lm.CausalLM")
    model["init_args"]["optimizer"] = {"class_path": "subprocess.Popen", "init_args": {}}
    with pytest.raises(UsageError, match="standard library"):
        rebuild_network({"model": model}, SOURCE)
    model["init_args"]["optimizer"] = {"class_path": "no_such_package.Optimizer", "init_args": {}}
    with pytest.raises(PluginError, match="no installed package provides it"):
        rebuild_network({"model": model}, SOURCE)


def test_an_option_that_no_network_has_is_refused():
    model = section("zoo.tasks.lm.CausalLM")
    model["init_args"]["colour"] = "blue"
    with pytest.raises(UsageError, match=r"cannot be built with this version of zoo.*colour"):
        rebuild_network({"model": model}, SOURCE)
    pairs = section("zoo.tasks.translation.Translation")
    pairs["init_args"]["decoder_depth"] = "often"
    with pytest.raises(UsageError, match="cannot be built with this version of zoo"):
        rebuild_network({"model": pairs}, SOURCE)


def test_the_task_of_a_network_is_made_when_it_is_asked_for(model):
    trained = model("rope")
    net = trained.net
    task = trained.task
    assert type(task).__name__ == trained.task_name == "CausalLM"
    assert task.net is net
    assert trained.task is task
    assert int(task.tokens_seen) > 0


def test_using_an_export_imports_nothing_of_training(model, tmp_path):
    """Three commands in one process, which would start torch for each."""
    language, pairs, images = (str(model(name).export(tmp_path / name)) for name in ("rope", "pairs", "glyphs"))
    Image.new("RGB", (40, 30)).save(tmp_path / "image.png")
    commands = [
        ["generate", language, "--prompt", "the", "--length", "1"],
        ["translate", pairs],
        ["classify", images, str(tmp_path / "image.png"), "--resize", "crop"],
    ]
    code = [sys.executable, "-c", MODULES, json.dumps(commands)]
    done = subprocess.run(code, input=b"5 hours\n", capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-500:]
    assert len(done.stdout.splitlines()) >= len(commands)
    lines = [json.loads(line) for line in done.stderr.decode().splitlines() if line.startswith("[")]
    assert [command for command, *_ in lines] == [words[0] for words in commands]
    for command, *modules in lines:
        assert "torch" in modules
        assert not {*modules} & set(HEAVY), command
