"""`zoo.fit` and `zoo.compare` in a program: its values, its random numbers and its settings."""

import json
import logging
import mmap
import os
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from jsonargparse._common import parsing_settings

import zoo
from zoo.cli.fit import names_logger
from zoo.cli.train import keep_globals, option_words
from zoo.compare import run_comparison
from zoo.errors import UsageError
from zoo.inference import import_policy
from zoo.system import kernel_choice
from zoo.tasks.lm import CausalLM
from zoo.training import callbacks

TINY = {
    "model.dim": 8, "model.depth": 1, "model.heads": 2, "trainer.max_steps": 2, "trainer.limit_val_batches": 1,
    "trainer.num_sanity_val_steps": 0, "data": "TextFiles",
}  # fmt: skip


def draw():
    """A number of each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_run_leaves_the_random_numbers_and_settings_of_its_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "77")
    (tmp_path / "book.txt").write_text("all the king's horses and all the king's men\n" * 60)
    figures, draws = [], []
    for dtype in (torch.float32, torch.float64):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(dtype is torch.float32)
        try:
            options = {
                **TINY,
                "data.path": Path("book.txt"),
                "model.lr": np.float32(0.01),
                "trainer.deterministic": True,
            }
            figures.append(zoo.fit(Path("lm-tiny"), options, name=str(dtype)[6:]).figures)
            assert torch.get_default_dtype() is dtype
            assert torch.is_grad_enabled() is (dtype is torch.float32)
            assert not torch.are_deterministic_algorithms_enabled()
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
        draws.append(draw())
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    assert draws == [draw()] * 2
    assert figures[0] == figures[1]
    assert os.environ["PL_GLOBAL_SEED"] == "77"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Path("a b/c.txt"), "a b/c.txt"), (np.int64(4), "4"), (np.float32(0.5), "0.5"), (torch.tensor(3), "3"),
        ([np.float64(0.1), Path("x")], '[0.1, "x"]'), ({"eps": np.float32(0.25)}, '{"eps": 0.25}'), (None, "null"),
        (True, "true"), ("rope", "rope"), (np.array([1, 2]), "[1, 2]"), (["😀.txt"], '["😀.txt"]'),
    ],
)  # fmt: skip
def test_values_of_python_are_options(value, text):
    assert option_words({"model.x": value}) == [f"--model.x={text}"]


@pytest.mark.parametrize("value", [torch.nn.Linear, object(), {1, 2}, [object()], lambda: 1])
def test_a_value_that_no_option_holds_is_refused_with_its_name(value):
    with pytest.raises(UsageError, match=r"'model\.x' is .*expected"):
        option_words({"model.x": value})


def test_a_comparison_leaves_the_random_numbers_of_its_caller(monkeypatch):
    def draw_and_end(*_):
        torch.manual_seed(random.randrange(9)), np.random.rand()
        return [], 0

    monkeypatch.setattr(run_comparison, "run_comparisons", draw_and_end)
    draws = []
    for compares in (True, False):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        if compares:
            with pytest.raises(UsageError, match="no run has ended"):
                zoo.compare("lm-tiny", {"model.lr": [0.001, 0.01]})
        draws.append(draw())
    assert draws[0] == draws[1]


@pytest.mark.parametrize("key", ["null", "true"])
def test_a_default_logger_is_zoos_own(key):
    assert not names_logger({"logger": yaml.safe_load(key)})
    assert not names_logger({})
    assert names_logger({"logger": False})


@pytest.mark.parametrize("values", ["rope", {"rope": 1}, 0.01, None])
def test_what_varies_must_be_a_list(values):
    with pytest.raises(UsageError, match=r"vary\['model\.position'\] is .* a list"):
        zoo.compare("lm-tiny", {"model.position": values})


class TextSink:
    """An object that takes text, as an embedder puts it in the place of a stream."""

    def write(self, text):
        return len(text)

    def flush(self):
        """Nothing."""


@pytest.mark.parametrize("stream", [None, TextSink()], ids=["none", "object"])
@pytest.mark.parametrize("names", [("stdout",), ("stderr",), ("stdout", "stderr")], ids=str)
def test_what_stands_for_a_stream_is_no_terminal(names, stream, monkeypatch):
    from zoo.cli import table_printing
    from zoo.logging import progress_bar

    for name in names:
        monkeypatch.setattr(sys, name, stream)
    assert progress_bar.on_terminal() == []
    assert not table_printing.is_terminal()
    table_printing.table(["name"], [["a"]])


@pytest.mark.parametrize("start", [
    lambda: zoo.fit("lm-tiny", runs="elsewhere"),
    lambda: zoo.compare("lm-tiny", {"model.position": ["rope", "alibi"]}, runs="elsewhere"),
])  # fmt: skip
def test_a_working_folder_that_is_gone_is_named(start, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="the working folder does not exist"):
        start()


@pytest.mark.parametrize("values", ["rope", b"rope", {"rope": 1}, 3])
def test_values_that_are_no_list_are_named(values):
    with pytest.raises(UsageError, match=r"vary\['model.position'\] is .*must be a list of values"):
        zoo.compare("lm-tiny", {"model.position": values})


def test_a_run_without_checkpoints_or_epochs_leaves_no_mark_and_no_wrong_total(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("all the king's horses and all the king's men\n" * 60)
    options = {**TINY, "data.path": "book.txt"}
    run = zoo.fit("lm-tiny", {**options, "trainer.enable_checkpointing": False})
    assert not (run.folder / "starting").exists()
    zoo.fit("lm-tiny", {**options, "trainer.max_steps": -1, "trainer.max_epochs": 0}, name="none")
    assert "step 0/0 ·" in capsys.readouterr().out


def test_figures_of_an_earlier_validation_do_not_stand_for_one_that_is_nan(tmp_path, monkeypatch):
    """Neither in what the run returns nor for callbacks: early stopping ends it, as Lightning does where it is nan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("all the king's horses and all the king's men\n" * 60)
    evaluate = CausalLM.evaluate

    def overflow(task, batch):
        total, size = evaluate(task, batch)
        return (total * float("nan") if task.trainer.global_step >= 4 else total), size

    monkeypatch.setattr(CausalLM, "evaluate", overflow)
    stop = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/loss", "patience": 9}}
    more = {"data.path": "book.txt", "trainer.max_steps": 8, "trainer.val_check_interval": 2}
    run = zoo.fit("lm-tiny", {**TINY, **more, "trainer.callbacks": [stop]})
    assert not [name for name in run.figures if name.startswith("val/")]
    assert '"step": 4' in (run.folder / "finished.json").read_text()


class Own:
    """A class of the program around."""

    def __init__(self, size: int = 1):
        self.size = size


class OwnInHeir(Own):
    pass


def test_a_run_and_a_loaded_model_leave_the_process_as_it_was(tmp_path, monkeypatch):
    """Its own classes can still be parsed, its warnings and loggers say what they said, and kernels are chosen anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("all the king's horses and all the king's men\n" * 60)

    # as in a program that has not used zoo yet
    monkeypatch.setitem(parsing_settings, "import_path_verdicts", {})
    for name in ("_allowlist", "_denylist"):
        monkeypatch.setattr(import_policy, name, set())

    def state():
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(Own, "own")
        kind = {"class_path": f"{__name__}.OwnInHeir", "init_args": {"size": 3}}
        own = parser.instantiate(parser.parse_object({"own": kind})).own
        levels = [logging.getLogger(name).level for name in ("lightning.pytorch", "lightning.pytorch.profilers")]
        return own.size, levels, len(warnings.filters), kernel_choice.mode(), torch.backends.cudnn.benchmark

    before = state()
    run = zoo.fit("lm-tiny", {**TINY, "data.path": "book.txt", "trainer.benchmark": True})
    assert state() == before
    ledger = run.folder / "ledger.json"
    assert json.loads(ledger.read_text())["finished"]
    kernel_choice.adopt({"mode": "plain", "choices": {}})  # as a resumed run does
    again = zoo.fit("lm-tiny", {**TINY, "data.path": "book.txt"}, name="again")
    assert json.loads((again.folder / "ledger.json").read_text())["kernels"]["mode"] == before[3]
    torch.set_default_dtype(torch.float64)
    try:
        model = zoo.load(run.folder)
        assert {parameter.dtype for parameter in model.net.parameters()} == {torch.float32}
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert state() == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets the peak of a process begin anew")
def test_the_peak_of_memory_is_that_of_a_run_alone():
    callbacks.reset_peak_memory()
    before = callbacks.peak_memory()
    with mmap.mmap(-1, 160_000_000) as memory:  # what torch frees may be kept
        for _ in range(160):
            memory.write(b"1" * 1_000_000)
    assert callbacks.peak_memory() > before + 100_000_000
    with keep_globals():
        assert callbacks.peak_memory() < before + 100_000_000
