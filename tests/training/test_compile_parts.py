"""Every built-in part goes through the compiler: the compiled loss is the plain one, and nothing falls back.

The default run compiles one part of each kind and those of which the compiler makes several graphs; a campaign all.
"""

import logging

import pytest
import torch
from torch._dynamo.utils import counters

from zoo import registry
from zoo.parts.position import NoPosition
from zoo.tasks.lm import CausalLM
from zoo.training.compilation import compile_loss

KINDS = ("position", "attention", "backend", "norm", "ffn", "block")
PARTS = [(kind, part.name) for kind in KINDS for part in registry.parts(kind) if part.distribution == registry.BUILTIN]
BREAKS = {"MoE"}  # how many tokens an expert gets is known when they are there: one graph per stretch between
FIRST = dict(reversed(PARTS))
CASES = [
    pytest.param(
        kind, name, marks=[] if name in (FIRST[kind], *BREAKS) else [pytest.mark.campaign], id=f"{kind}-{name}"
    )
    for kind, name in PARTS
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_compiled_loss_equals_the_plain_one(kind, name, monkeypatch, caplog):
    compare(kind, name, monkeypatch, caplog)


@pytest.mark.parametrize(("kind", "name"), [("backend", "SDPA"), ("position", "T5")])
def test_it_does_so_in_bfloat16(kind, name, monkeypatch, caplog):
    # torch 2.11 rounds some products of a compiled graph once more or less than without a compiler, 2.15 does not
    rounding = 2**-7 if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15) else None
    with torch.autocast("cpu", torch.bfloat16):
        compare(kind, name, monkeypatch, caplog, rounding)


def compare(kind, name, monkeypatch, caplog, rounding=None):
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    part = {"position": NoPosition, kind: registry.get(kind, name)}  # which every attention takes
    tasks = []
    for _ in range(2):
        torch.manual_seed(0)
        tasks.append(CausalLM(31, 8, dim=16, depth=1, heads=2, **part).train())
    torch.manual_seed(0)
    batch = tasks[0].sample(2)
    compile_loss(tasks[1])
    gradients = []
    with caplog.at_level(logging.WARNING):
        for task in tasks:
            total, size = task.loss(batch)
            (total / size).backward()
            gradients.append([p.grad for p in task.parameters()])
    for got, want in zip(*gradients, strict=True):
        bounds = {} if rounding is None else {"rtol": 0.0, "atol": rounding * float(want.abs().max())}
        torch.testing.assert_close(got, want, **bounds)
    assert not [record for record in caplog.records if "not compiled" in record.getMessage()]
    assert bool(counters["graph_break"]) == (name in BREAKS), dict(counters["graph_break"])
