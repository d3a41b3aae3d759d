"""The operations of a block: in their order, with their work, and bound by what they are said to be bound by."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.studies import operations
from bench.studies.operations import block, step, study, whole
from bench.study import Options
from zoo.explain.ceilings import Ceilings
from zoo.explain.trace import trace

CEILINGS = Ceilings(10.0, 1.0)  # FLOPs that a processor computes while it moves a byte
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def test_they_stand_in_the_order_of_the_notes_with_their_shapes():
    result = whole(length=64, dim=128, heads=4)
    shapes = [(one.name, one.shape) for one in result]
    expected = [
        ("native_layer_norm", (1, 64, 128)),
        ("addmm", (64, 3 * 128)),  # queries, keys and values at once
        ("bmm", (4, 64, 64)),
        ("softmax", (1, 4, 64, 64)),
        ("bmm", (4, 64, 32)),
        ("addmm", (64, 128)),
        ("add", (1, 64, 128)),
        ("native_layer_norm", (1, 64, 128)),
        ("addmm", (64, 512)),
        ("gelu", (1, 64, 512)),
        ("addmm", (64, 128)),
        ("add", (1, 64, 128)),
    ]
    at = 0
    for each in expected:
        at = shapes.index(each, at) + 1
    assert [one.module for one in result if one.name in PRODUCTS] == [
        "attend.part.qkv", "attend.part", "attend.part", "attend.part.out", "ffn.part.up", "ffn.part.down",
    ]  # fmt: skip


def test_work_and_traffic_are_those_of_the_products():
    net, x = block(length=32, dim=64, heads=2), torch.empty(1, 32, 64, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(x)
    products = [one for one in trace(net.blocks[0], call=lambda: net(x)).operations if one.name in PRODUCTS]
    assert sum(one.flops for one in products) == counter.get_total_flops()
    up = products[-2]
    assert up.traffic == 4 * (32 * 64 + 64 * 256 + 256 + 32 * 256)


@pytest.mark.parametrize("dim", [512, 768])
def test_products_are_bound_by_computing_and_the_rest_by_memory(dim):
    for one in whole(length=512, dim=dim, heads=dim // 64):
        assert CEILINGS.bound(one) == ("compute" if one.name in PRODUCTS else "memory"), one


def test_writing_one_token_is_bound_by_memory_alone():
    result = step(length=512, dim=512, heads=8)
    assert sum(one.name in PRODUCTS for one in result) == 6
    assert {CEILINGS.bound(one) for one in result} == {"memory"}


def test_the_study_is_two_tables(monkeypatch):
    monkeypatch.setattr(operations, "measure", lambda: CEILINGS)
    tables = study(Options())
    assert len(tables) == 2
    assert "| attend.part | softmax | 1 × 12 × 512 × 512 |" in tables[0].markdown()
    assert all(row[-1] == "memory" for row in tables[1].rows)
