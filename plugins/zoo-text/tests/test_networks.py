"""Networks are those of their tasks, and hold all that is trained, padded or not, exported by torch or not."""

import inspect
from pathlib import Path

import pytest
import torch
from text_helpers import PROJECT, TINY
from torch.export import Dim, export
from zoo_text.models.encoder import MaskedLanguageModel

from zoo.errors import UsageError
from zoo.inference.rebuild_task import TRAINING, complete_options, rebuild_network, rebuild_task
from zoo.plugins.description import describe_network
from zoo.plugins.safe_import import import_object

SOURCE = Path("config.json")
OTHERS = {"MaskedLM": {**TINY, "next_sentence": 0.5, "segments": 2}}
TASKS = [target.replace(":", ".") for target in PROJECT["entry-points"]["zoo.task"].values()]
DPO = "zoo_text.tasks.preference.DPO"  # whose reference is a second network
NETWORKS = [path for path in TASKS if path != DPO]


def task_class(path):
    module, _, name = path.rpartition(".")
    return import_object(module, name)


def section(path):
    """A small model of a task, as an export describes it."""
    options = {**task_class(path).data_sizes, **OTHERS.get(path.rpartition(".")[2], TINY)}
    return complete_options({"class_path": path, "init_args": options})


def test_a_task_of_two_networks_is_rebuilt_whole():
    assert rebuild_network({"model": section(DPO)}, SOURCE) is None


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
def test_the_source_of_a_task_says_what_its_class_says(path):
    source, task = describe_network(*path.rsplit(".", 1)), rebuild_task({"model": section(path)}, SOURCE)
    assert source.path == f"{type(task.net).__module__}.{type(task.net).__name__}"
    assert source.trained == type(task).trained
    assert source.training_options == type(task).training_options
    own = set(inspect.signature(type(task)).parameters)
    assert {*source.training_options, *TRAINING} <= own & set(section(path)["init_args"])


def test_an_option_of_another_type_is_refused():
    pairs = section("zoo_text.tasks.masked.MaskedLM")
    pairs["init_args"]["next_sentence"] = "often"
    with pytest.raises(UsageError, match="cannot be built with this version of zoo"):
        rebuild_network({"model": pairs}, SOURCE)


@torch.no_grad()
def test_an_encoder_exported_by_torch_computes_the_same_for_other_lengths_and_padding():
    net = MaskedLanguageModel(41, 64, **TINY).eval()
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[0, 3:] = False
    sizes = {0: Dim("B"), 1: Dim("T", max=64)}
    program = export(net, (torch.randint(41, (2, 7)), valid), dynamic_shapes=(sizes, sizes)).module()
    tokens, longer = torch.randint(41, (3, 30)), torch.arange(30) < torch.tensor([[30], [11], [1]])
    torch.testing.assert_close(program(tokens, longer)[longer], net(tokens, longer)[longer])
