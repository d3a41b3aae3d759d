"""Every data set that needs no file with every task: trained where they belong together, else refused in words."""

import functools

import pytest
import torch
from text_helpers import PROJECT
from zoo_text.data import topics

from zoo import cli, registry
from zoo.config.task_data_match import check_batch, check_missing_sizes
from zoo.data import library_files, stdlib
from zoo.data.stdlib import StdlibDocs
from zoo.errors import UsageError
from zoo.tasks.task import Task

SMALL = {"dim": 8, "depth": 1, "heads": 2}
TASKS = {
    "CausalLM": SMALL, "Translation": SMALL, "Classification": {**SMALL, "patch_size": 2},
    "MaskedLM": SMALL, "SequenceClassification": SMALL, "TokenClassification": SMALL, "FIM": SMALL, "DPO": SMALL,
    "HierarchicalClassification": {**SMALL, "block_length": 8}, "TextEmbedding": SMALL,
}  # fmt: skip
TEXT = {"vocab_size": 300, "max_length": 16}
PAIRS = {"vocab_size": 300, "max_tokens": 512}
TOPICS = {"SequenceClassification", "HierarchicalClassification"}
# the data, and the tasks that learn from them
DATA = {
    "StdlibDocs": (TEXT, {"CausalLM"}),
    "MaskedText": ({"text": lambda: StdlibDocs(**TEXT)}, {"MaskedLM"}),
    "InfillText": ({"text": lambda: StdlibDocs(**TEXT)}, {"CausalLM", "FIM"}),
    "Preferences": ({"text": lambda: StdlibDocs(**TEXT)}, {"DPO"}),
    "SpanCorruption": ({"text": lambda: StdlibDocs(**TEXT)}, {"Translation"}),
    "Denoising": ({"text": lambda: StdlibDocs(**TEXT)}, {"Translation"}),
    "DocSummaries": (PAIRS, {"Translation"}),
    "SignatureQuestions": (PAIRS, {"Translation"}),
    "FunctionDocs": (TEXT, {"TextEmbedding"}),
    "DocTopics": (TEXT, TOPICS),
    "SourceTopics": ({**TEXT, "pieces": 8}, TOPICS),
    "LibraryDialogues": ({"size": 60, "functions": 50, "vocab_size": 300, "max_tokens": 128}, {"CausalLM"}),
    "PythonRoles": ({**TEXT, "pieces": 20}, {"TokenClassification"}),
}


EVERY_FILE = 4  # of the standard library's: its other files are left out


@pytest.fixture(scope="module", autouse=True)
def _few_files():
    """The data read a part of the standard library, which says as much about what they give."""
    sources = library_files.library_sources
    with pytest.MonkeyPatch.context() as patch:
        for module in (library_files, stdlib, topics):
            patch.setattr(module, "library_sources", lambda library: sources(library)[::EVERY_FILE])
        patch.setattr(library_files, "LEAST_FILES", library_files.LEAST_FILES // EVERY_FILE)
        patch.setattr(stdlib, "LEAST_TEXTS", stdlib.LEAST_TEXTS // EVERY_FILE)
        yield


@pytest.fixture(scope="module")
def session_cache(tmp_path_factory):
    """A cache of these data alone."""
    return tmp_path_factory.mktemp("cache")


@functools.cache
def data(name: str):
    result = registry.get("data", name)(**DATA[name][0])
    result.ready()
    return result


def matched(name: str, kind: str) -> None:
    """What `zoo fit` asks before it trains."""
    module_data, task = data(name), registry.get("task", kind)
    sizes = module_data.sizes()
    check_missing_sizes(task, module_data, sizes, task.data_sizes)
    module = task(**TASKS[kind], **{blank: sizes.get(blank, 16) for blank in task.data_sizes})
    check_batch(module, module_data)


def test_every_task_and_all_data_without_files_are_tried():
    points = PROJECT["entry-points"]
    assert {*points["zoo.task"]} <= {*TASKS}
    files = {"PreferenceFiles", "DialogueFiles", "LabelledFiles", "TaggedFiles", "TextPairFiles"}
    assert {*points["zoo.data"]} - files == {*DATA} - {"StdlibDocs"}


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("name", DATA)
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
    assert name not in message.partition("--data ")[2] or name in ("DocTopics", "FunctionDocs")
    assert len(message.splitlines()) <= 4


def test_data_and_tasks_speak_the_same_words():
    """Every task says what it learns from, and names data that there are."""
    for name in PROJECT["entry-points"]["zoo.task"]:
        task = registry.get("task", name)
        assert task.learns_from != Task.learns_from, name
        assert task.example_data
        assert all(registry.parts_called("data", example) for example in task.example_data), name


@pytest.mark.parametrize("name", ["Glyphs", "TextPairFiles", "MaskedText"])
def test_data_that_give_no_text_are_no_faulty_part_where_text_is_wanted(name, capsys):
    assert cli.main(["fit", "mlm-tiny", "--data.text", name, "--name", "x"]) == 2
    error = capsys.readouterr().err
    assert f"{name!r} cannot stand here: it is no TextData. Available: " in error
    assert "TextFiles" in error
    assert "is not a data" not in error
