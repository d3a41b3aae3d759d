"""A compiled loss is the plain one; what cannot be compiled runs anyway, with a message."""

import logging

import pytest
import torch

from zoo.tasks.compilation import compile_loss
from zoo.tasks.lm import CausalLM


def small():
    torch.manual_seed(0)
    task = CausalLM(31, 8, dim=16, depth=1, heads=2).train()
    torch.manual_seed(0)
    return task, task.sample(2)


def gradients(task, batch):
    total, size = task.loss(batch)
    (total / size).backward()
    return [p.grad for p in task.parameters()]


def test_the_compiled_loss_equals_the_plain_one(monkeypatch):
    eager, batch = small()
    task, _ = small()
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend="aot_eager", fullgraph=True))
    compile_loss(task)
    for got, want in zip(gradients(task, batch), gradients(eager, batch), strict=True):
        torch.testing.assert_close(got, want)


def test_without_a_compiler_it_goes_on_and_says_so(monkeypatch, caplog):
    def broken(function):
        def call(*args):
            raise RuntimeError("no C++ compiler\nsecond line")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    eager, batch = small()
    task, _ = small()
    compile_loss(task)
    with caplog.at_level(logging.WARNING):
        gradients(task, batch)
        result = gradients(task, batch)
    assert [record.getMessage() for record in caplog.records] == [
        "not compiled, going on without: RuntimeError: no C++ compiler"
    ]
    assert len(result) == len(gradients(eager, batch))


def test_an_error_of_the_loss_itself_is_not_hidden(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    task, _ = small()
    compile_loss(task)
    with pytest.raises(KeyError, match="targets"):
        task.loss({})
