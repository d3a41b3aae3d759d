"""Every data set that needs no file with every task: trained where they belong together, else refused in words."""

import functools
import importlib

import pytest
import torch

from zoo import registry
from zoo.config.task_data_match import check_batch, check_missing_sizes
from zoo.data.data import Data
from zoo.errors import UsageError
from zoo.tasks.task import Task

SMALL = {"dim": 8, "depth": 1, "heads": 2}
TASKS = {
    "CausalLM": SMALL, "Translation": SMALL, "Classification": {**SMALL, "patch_size": 2},
}  # fmt: skip
TEXT = {"vocab_size": 300, "max_length": 16}
PAIRS = {"vocab_size": 400, "max_tokens": 64, "max_length": 64}
# the data, and the tasks that learn from them
DATA = {
    "Digits": ({}, {"Classification"}),
    "Glyphs": ({"size": 60}, {"Classification"}),
    "StdlibDocs": (TEXT, {"CausalLM"}),
    "Phrasebook": ({**PAIRS, "size": 60}, {"Translation"}),
    "MultilingualPhrasebook": ({**PAIRS, "size": 60}, {"Translation"}),
}


@functools.cache
def data(name: str):
    module, _, cls = registry.find("data", name).target.partition(":")
    try:
        result = getattr(importlib.import_module(module), cls)(**DATA[name][0])
        result.ready()
    except UsageError as error:
        pytest.skip(str(error))
    return result


def matched(name: str, kind: str) -> None:
    """What `zoo fit` asks before it trains."""
    module_data, task = data(name), registry.get("task", kind)
    sizes = module_data.sizes()
    check_missing_sizes(task, module_data, sizes, task.data_sizes)
    module = task(**TASKS[kind], **{blank: sizes.get(blank, 16) for blank in task.data_sizes})
    check_batch(module, module_data)


def test_every_task_is_tried():
    assert set(TASKS) <= {part.name for part in registry.parts("task")}
    assert {part.name for part in registry.parts("task") if part.builtin} <= set(TASKS)


def data_and_tasks():
    """All of them; of those that refuse each other, every third in the default run."""
    for place, (name, (_, learners)) in enumerate(DATA.items()):
        for number, kind in enumerate(TASKS):
            by_default = kind in learners or (place + number) % 3 == 0
            yield pytest.param(name, kind, marks=[] if by_default else [pytest.mark.campaign])


@pytest.mark.parametrize(("name", "kind"), list(data_and_tasks()))
def test_data_and_tasks(name, kind):
    torch.manual_seed(0)
    if kind in DATA[name][1]:
        matched(name, kind)
        assert torch.initial_seed() == 0
        return
    with pytest.raises(UsageError) as caught:
        matched(name, kind)
    message = str(caught.value)
    assert f"{name} gives " in message
    assert f"{kind} learns from " in message
    assert "Choose such data: --data " in message
    assert name not in message.partition("--data ")[2]
    assert len(message.splitlines()) <= 4


def test_looking_at_a_batch_changes_no_random_number():
    task = registry.get("task", "Classification")(num_classes=10, image_size=8, channels=1, **TASKS["Classification"])
    torch.manual_seed(7)
    before = torch.get_rng_state()
    check_batch(task, data("Digits"))
    assert torch.equal(before, torch.get_rng_state())


def test_data_and_tasks_speak_the_same_words():
    """Every kind of data that a task learns from is given by the examples that it names, which are installed."""
    installed = {part.name for part in registry.parts("data")}
    for part in registry.parts("task"):
        task = part.load()
        assert task.learns_from
        assert task.learns_from != Task.learns_from, part.name
        assert task.example_data
        assert set(task.example_data) <= installed, part.name
    for part in registry.parts("data"):
        assert part.load().gives != Data.gives, part.name


def test_data_that_say_nothing_are_something_else():
    class Unknown(Data):
        load = sizes = fingerprint = save = None

    with pytest.raises(UsageError, match=r"^Unknown gives something else, and CausalLM learns from texts\.\n"):
        check_missing_sizes(registry.get("task", "CausalLM"), Unknown(), {}, ["vocab_size"])
