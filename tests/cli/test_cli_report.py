"""The header's line about the device, how long a run took, and which zoo it was."""

from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch

from zoo.cli import fit_summary


def trainer(precision):
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return SimpleNamespace(strategy=strategy, world_size=1, precision=precision)


@pytest.mark.parametrize(
    ("precision", "able", "told"),
    [("32-true", {"avx512_bf16": True}, True), ("32-true", {"amx_bf16": True}, True), ("32-true", {}, False),
     ("bf16-mixed", {"amx_bf16": True}, False), ("64-true", {"amx_bf16": True}, False)],
)  # fmt: skip
def test_a_processor_that_multiplies_bfloat16_is_told_of(monkeypatch, precision, able, told):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    line = fit_summary.device_name(trainer(precision))
    assert f" · {precision}" in line
    assert ("bf16-mixed may be faster" in line) == told
    assert "which this machine is fast at" not in line


def test_a_torch_that_knows_no_capabilities_tells_nothing(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert "may be faster" not in fit_summary.device_name(trainer("32-true"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.7, "1 min 0 s"), (60.0, "1 min 0 s"), (119.8, "2 min 0 s")]
)
def test_a_summary_says_minutes_and_seconds(seconds, text):
    run = SimpleNamespace(root="runs", folder="runs/lm/default/s1")
    done = fit_summary.summary(run, SimpleNamespace(global_step=7), SimpleNamespace(best={"loss": 0.51234}), seconds)
    assert done.splitlines()[0] == f"finished 7 steps in {text} · best loss 0.5123"


def test_the_version_is_that_of_the_package(zoo):
    assert zoo("--version") == (0, f"zoo {version('zoo-transformers')}\n", "")
