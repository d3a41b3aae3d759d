"""The header's line about the device."""

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
