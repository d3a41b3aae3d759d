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
from zoo.inference.networks import NETWORKS, TRAINING
from zoo.inference.rebuild_task import complete_options, rebuild_network, rebuild_task
from zoo.inference.trained_tasks import use
from zoo.plugins.safe_import import import_object

SOURCE = Path("config.json")
SMALL = {"dim": 16, "depth": 1, "heads": 2}
OTHERS = {
    "zoo.tasks.recurrent.RNNSeq2Seq": {"dim": 16},
    "zoo.tasks.classification.ClipClassification": {**SMALL, "dim": 24},  # a head has three axes
    "zoo.tasks.masked.MaskedLM": {**SMALL, "next_sentence": 0.5, "segments": 2},
    "zoo.tasks.translation.Translation": {**SMALL, "decoder_depth": 2},
}
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


def test_every_built_in_task_but_those_of_two_networks_has_one():
    paths = {f"{part.module}.{part.name}" for part in registry.installed_parts("task") if part.builtin}
    assert paths - set(NETWORKS) == {"zoo.tasks.preference.DPO"}  # whose reference is a second network
    assert set(NETWORKS) <= paths


@pytest.mark.parametrize("path", NETWORKS)
def test_a_network_holds_what_its_task_holds(path):
    model = section(path)
    task = rebuild_task({"model": model}, SOURCE)
    network, today = rebuild_network({"model": model}, SOURCE)
    expected, tensors = task.state_dict(), network.state_dict()
    assert {name: one.shape for name, one in tensors.items()} == {name: one.shape for name, one in expected.items()}
    assert repr(network.net) == repr(task.net)
    assert today == model


@pytest.mark.parametrize("path", NETWORKS)
def test_options_of_training_are_those_that_the_task_keeps_for_itself(path):
    """Of the task's own arguments, the network has those that are not of training, by the same names."""
    own = set(inspect.signature(task_class(path)).parameters)
    training = NETWORKS[path].training | TRAINING
    assert training <= own
    complete = section(path)["init_args"]
    options, others = NETWORKS[path].split_options(complete)
    assert set(others) == training
    assert {**options, **others} == complete


@pytest.mark.parametrize("path", NETWORKS)
def test_the_class_that_uses_a_network_is_that_of_its_task(path):
    cls = NETWORKS[path].trained_class()
    registered = use.dispatch(task_class(path))
    assert registered is cls or (registered is use.dispatch(object) and cls.__name__ == "TrainedTranslation")


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
    pairs = section("zoo.tasks.masked.MaskedLM")
    pairs["init_args"]["next_sentence"] = "often"
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
