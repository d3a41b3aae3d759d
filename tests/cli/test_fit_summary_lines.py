"""The header that a run prints before it starts, and its summary."""

import re
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from zoo.cli import fit_summary
from zoo.command_line import ParsedOptions
from zoo.config.run_folder import RunLocation
from zoo.tasks.lm import CausalLM
from zoo.training.model_cost import Cost

SIZES = {"vocab_size": 32, "max_length": 16, "dim": 16, "depth": 2, "heads": 2}


def trainer(precision):
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return SimpleNamespace(strategy=strategy, world_size=1, precision=precision)


@pytest.mark.parametrize(
    ("precision", "able", "expected"),
    [("32-true", {"avx512_bf16": True}, True), ("32-true", {"amx_bf16": True}, True), ("32-true", {}, False),
     ("bf16-mixed", {"amx_bf16": True}, False), ("64-true", {"amx_bf16": True}, False)],
)  # fmt: skip
def test_a_processor_that_multiplies_bfloat16_is_told_of(monkeypatch, precision, able, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    line = fit_summary.device_name(trainer(precision))
    assert f" · {precision}" in line
    assert ("bf16-mixed may be faster" in line) == expected
    assert "which this machine is fast at" not in line


def test_a_torch_that_knows_no_capabilities_tells_nothing(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert "may be faster" not in fit_summary.device_name(trainer("32-true"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.7, "1 min 0 s"), (60.0, "1 min 0 s"), (119.8, "2 min 0 s")]
)
def test_a_summary_says_minutes_and_seconds(seconds, text):
    run = RunLocation(Path("runs"), "lm", "default", 1)
    done = fit_summary.summary(run, SimpleNamespace(global_step=7), SimpleNamespace(best={"loss": 0.51234}), seconds)
    assert done.splitlines()[0] == f"finished 7 steps in {text} · best loss 0.5123"


def test_the_version_is_that_of_the_package(zoo):
    assert zoo("--version") == (0, f"zoo {version('zoo-transformers')}\n", "")


def plan(flags=(), variant="position=rope", root="runs", **trainer):
    """A plan of `zoo fit lm-tiny`, as far as its header needs it."""
    config = {
        "model": {"class_path": "zoo.tasks.lm.CausalLM", "init_args": {**SIZES, "position": "RoPE", "ffn": "SwiGLU"}},
        "data": {"class_path": "zoo.data.text.StdlibDocs", "init_args": {"batch_size": 12, "max_length": 64}},
        "trainer": {"max_steps": 3000, **trainer},
    }
    command = ParsedOptions("fit", values=dict.fromkeys(flags, True), defaults={"resume": None})
    return SimpleNamespace(run=RunLocation(Path(root), "lm-tiny", variant, 3), config=config, command=command)


def test_the_header_says_what_is_trained_on_what_for_how_long_and_where():
    lines = fit_summary.header(plan(), CausalLM(**SIZES), Cost(917_632, 1.84e6)).splitlines()
    assert lines[0] == "Training lm-tiny: CausalLM on StdlibDocs, 3,000 steps, seed 3"
    assert lines[1] == "  task    predict each next token"
    assert "position RoPE" in lines[2]
    assert "  size    0.918 M parameters · 1.84 MFLOP per token, forward" in lines
    assert lines[-1] == "  folder  runs/lm-tiny/position=rope/s3"
    assert max(map(len, lines)) <= 80
    resumed = fit_summary.header(plan(flags=["resume"]), CausalLM(**SIZES), Cost(1, 1.0))
    assert resumed.startswith("Resuming lm-tiny: ")


@pytest.mark.parametrize(("count", "text"), [
    (608, "608 parameters"), (9_999, "9,999 parameters"), (10_000, "0.01 M parameters"), (10**9, "1e+03 M parameters"),
])  # fmt: skip
def test_a_small_model_has_its_parameters_counted_one_by_one(count, text):
    assert f"  size    {text} · " in fit_summary.header(plan(), CausalLM(**SIZES), Cost(count, 1.0))


@pytest.mark.parametrize("recipe", ["lm-tiny", "translation-tiny", "vit-glyphs"])
def test_the_header_of_a_real_run_ends_with_the_memory_of_a_step(recipe, tmp_path, zoo, memory_line):
    words = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "0", "--runs", str(tmp_path)]
    code, output, errors = zoo("fit", recipe, *words)
    assert code == 0, errors
    labels = re.findall(r"^  (\w+) ", output, re.MULTILINE)
    assert labels[labels.index("folder") + 1] == "memory"
    assert re.search(r"^  memory  about [\d.]+ [KMG]iB: ", output, re.MULTILINE)


def test_the_header_shows_an_optimizer_a_schedule_and_an_init_that_are_not_the_default():
    own, task = plan(), CausalLM(**SIZES)
    options = own.config["model"]["init_args"]
    options |= {
        "optimizer": {"class_path": "torch.optim.AdamW"},
        "schedule": {"class_path": "zoo.tasks.schedule.Cosine"},
    }
    usual = signature(CausalLM).parameters
    assert [usual[name].default.__name__ for name in ("optimizer", "schedule")] == ["AdamW", "Cosine"]
    assert "\n  train " not in fit_summary.header(own, task, Cost(1, 1.0))
    options["optimizer"] = {"class_path": "torch.optim.AdamW", "init_args": {"eps": 1e-6}}
    options["init"] = {"class_path": "zoo.models.initialization.MuP"}
    assert "\n  train   optimizer AdamW(eps=1e-06) · init MuP\n" in fit_summary.header(own, task, Cost(1, 1.0))
    options |= {"optimizer": None, "schedule": {"class_path": "zoo.tasks.schedule.WSD"}, "init": None}
    assert "\n  train   schedule WSD\n" in fit_summary.header(own, task, Cost(1, 1.0))


def test_lines_of_the_header_are_wrapped_below_their_text_and_paths_stay_whole():
    folder = "position=rope,dim=16,depth=1,heads=2,max_length=16,limit_val_batches=1,max_steps=9"
    lines = fit_summary.header(plan(variant=folder, root="a folder"), CausalLM(**SIZES), Cost(1, 1.0)).splitlines()
    assert [line for line in lines if len(line) > 80] == [f"          folder/lm-tiny/{folder}/s3"]
    text = fit_summary.entry("device", "word " * 40).splitlines()
    assert len(text) > 2
    assert max(map(len, text)) <= 80
    assert [line[:12] for line in text] == ["  device  wo"] + ["          wo"] * (len(text) - 1)


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ({"max_steps": 1}, "1 step"), ({"max_epochs": 2}, "2 epochs"),
        ({"max_steps": -1, "max_epochs": -1}, "without an end"),
        ({"max_steps": 90, "max_epochs": 1}, "90 steps or 1 epoch"), ({"max_steps": 0}, "0 steps"),
        ({"max_steps": 90, "max_time": "00:01:00:00"}, "90 steps or at most 00:01:00:00"),
    ],
)  # fmt: skip
def test_the_length_of_a_run_in_words(trainer, text):
    assert fit_summary.length(trainer) == text


def test_the_summary_names_the_next_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunLocation(Path("my runs"), "lm", "default", 1)
    summary = fit_summary.summary(run, SimpleNamespace(global_step=20), SimpleNamespace(best={}), 1.0)
    assert summary.endswith("no checkpoint was saved, as the trainer was told: this run cannot be used further")
    (run.folder / "checkpoints").mkdir(parents=True)
    (run.folder / "checkpoints/last.ckpt").touch()
    task = SimpleNamespace(best={"loss": 1.23456})
    text = fit_summary.summary(run, SimpleNamespace(global_step=20), task, 75.0).splitlines()
    assert text == [
        "finished 20 steps in 1 min 15 s · best loss 1.235",
        "  look     zoo tensorboard 'my runs/lm'",
        "  measure  zoo test 'my runs/lm/default/s1'",
    ]
