"""The roofline of a step counts every product of its forward and backward pass, and shares all of its time."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.studies import roofline
from bench.workloads import language
from zoo.explain.ceilings import Ceilings
from zoo.parts import training_products


@pytest.fixture
def step(monkeypatch):
    for name, value in {"DIM": 32, "DEPTH": 2, "HEADS": 2, "LENGTH": 16, "ROWS": 4}.items():
        monkeypatch.setattr(language, name, value)
    return language.zoo("gpt2", 128)


def test_costs_are_those_of_the_whole_step(step):
    costs = roofline.count(step, Ceilings(1e9, 1e9))
    with FlopCounterMode(display=False) as counter:
        step.run(0)
    assert sum(one.flops for one in costs.values()) == counter.get_total_flops() > 0
    assert all(one.least >= one.traffic / 1e9 - 1e-12 for one in costs.values())


def test_the_optimizer_reads_four_numbers_of_each_weight_and_writes_three(step):
    """Weight, gradient and two moments; all but the gradient are written. Counts of steps are numbers of their own."""
    weights = [torch.randn(5, 3, requires_grad=True), torch.randn(7, requires_grad=True)]
    optimizer = torch.optim.AdamW(weights, fused=True)
    sum(one.sum() for one in weights).backward()
    recorder = roofline.StepRecorder()
    with recorder:
        optimizer.step()
    (fused,) = (one for one in recorder.operations if one.name == "fused_adamw")
    assert fused.write == 4 * 3 * (15 + 7)
    assert fused.read == 4 * (4 * (15 + 7) + len(weights))
    assert roofline.count(step, Ceilings(1e9, 1e9))["fused_adamw"].traffic > 0


@pytest.mark.parametrize("kernel", ["linear", "onednn"])
def test_the_rows_of_a_table_are_the_whole_step(kernel, step, monkeypatch):
    monkeypatch.setattr(training_products, "_is_faster", lambda: kernel == "onednn")
    monkeypatch.setattr(training_products, "LEAST", 1)
    table = roofline.roofline(step, Ceilings(1e9, 1e9), 2, "a step")
    *rows, whole = table.rows
    assert whole[0] == "the step"
    for column in ("calls", "GFLOP", "MB", "ms", "share, %"):
        place = list(table.columns).index(column)
        assert sum(row[place] for row in rows) == pytest.approx(whole[place])
    assert whole[list(table.columns).index("share, %")] == pytest.approx(100)
    products = next(row for row in rows if row[0] == "matrix products")
    assert products[list(table.columns).index("ms")] > 0 < products[list(table.columns).index("GFLOP")]
    assert all(row[list(table.columns).index("bound by")] in ("compute", "memory") for row in rows)


def test_what_is_below_the_smallest_share_is_one_row(step, monkeypatch):
    monkeypatch.setattr(roofline, "SMALLEST", 1.1)
    names = [row[0] for row in roofline.roofline(step, Ceilings(1e9, 1e9), 1, "a step").rows]
    assert names == ["all others, views and the interpreter", "the step"]


def test_tensors_of_a_step_are_not_kept(step):
    recorder = roofline.StepRecorder()
    with recorder:
        step.run(0)
    assert not recorder.references
    assert recorder.operations
    assert torch.is_grad_enabled()
