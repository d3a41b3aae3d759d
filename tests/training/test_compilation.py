"""A compiled loss is the plain one; what cannot be compiled runs anyway, with a message."""

import logging
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop as nop
from torch._inductor.runtime import cache_dir_utils

from zoo.system import kernel_choice
from zoo.tasks.lm import CausalLM
from zoo.training import compilation
from zoo.training.compilation import compile_loss


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(compilation.COMPILER_CACHE, str(tmp_path / "compiled"))
    kernel_choice.forget()
    yield
    kernel_choice.forget()


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


@pytest.mark.parametrize("failing", ["fw_compiler", "bw_compiler"])
def test_whatever_cannot_be_compiled_it_goes_on_and_says_so(failing, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise OSError("No space left on device")

    compiled, compilers = torch.compile, {"fw_compiler": nop, "bw_compiler": nop} | {failing: refuse}
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend=aot_autograd(**compilers)))
    monkeypatch.setenv(kernel_choice.SWITCH, "plain")  # as in a run that repeats a choice: nothing is measured
    eager, batch = small()
    task, _ = small()
    compile_loss(task)
    results = [gradients(one, batch) for one in (task, eager)]
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    (message,) = [record.getMessage() for record in caplog.records if record.name == compilation.__name__]
    assert "not compiled, going on without" in message
    assert "No space left on device" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo", "RuntimeError: one"),
        ("backend='inductor' raised:\nCppError: failed\n\nCommand:\ng++ x\n\n/usr/bin/ld: No space left on device\n",
         "CppError: failed; /usr/bin/ld: No space left on device"),
        ("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found in ...",
         "InvalidCxxCompiler: No working C++ compiler found in ..."),
        ("", "RuntimeError:"),
    ],
)  # fmt: skip
def test_the_reason_is_a_line_that_says_something(text, expected):
    assert compilation.reason(RuntimeError(text)) == expected


def test_an_error_of_the_loss_itself_is_not_hidden(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    task, _ = small()
    compile_loss(task)
    with pytest.raises(KeyError, match="targets"):
        task.loss({})


def count_calls(monkeypatch):
    """Compile by counting calls, each with its thread."""
    calls = []

    def compiled(function):
        def call(batch):
            calls.append(threading.current_thread())
            return function(batch)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    return calls


@pytest.mark.parametrize("mode", kernel_choice.MODES)
def test_each_step_is_compiled_in_the_thread_that_trains(mode, monkeypatch):
    """A compiled step in another thread ended the process on some processors."""
    monkeypatch.setenv(kernel_choice.SWITCH, mode)
    calls = count_calls(monkeypatch)
    task, batch = small()
    compile_loss(task)
    for _ in range(3):
        gradients(task, batch)
    assert calls == [threading.main_thread()] * 3
    assert not any(words.startswith("training step") for words in kernel_choice.record()["choices"])


def test_validation_is_not_compiled(monkeypatch):
    calls = count_calls(monkeypatch)
    task, batch = small()
    compile_loss(task)
    with torch.no_grad():
        task.loss(batch)
    task.eval().loss(batch)
    assert calls == []


def test_programs_stay_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(compilation.COMPILER_CACHE)
    compilation.keep_programs()
    assert os.environ[compilation.COMPILER_CACHE] == str(tmp_path / "cache" / "compiled")
    monkeypatch.setenv(compilation.COMPILER_CACHE, "/mine")
    compilation.keep_programs()
    assert os.environ[compilation.COMPILER_CACHE] == "/mine"


def test_programs_stay_in_the_cache_folder_where_torch_has_named_its_own(monkeypatch, tmp_path):
    """Which it does while Lightning is imported; the compiler itself says which folder it uses."""
    monkeypatch.delenv(compilation.COMPILER_CACHE)
    assert cache_dir_utils.cache_dir() == os.environ[compilation.COMPILER_CACHE]
    compilation.keep_programs()
    assert cache_dir_utils.cache_dir() == str(tmp_path / "cache" / "compiled")


@pytest.mark.campaign
def test_a_run_leaves_its_programs_in_the_cache_folder(tmp_path):
    """In a process of its own: what was imported before decides."""
    names = {name: value for name, value in os.environ.items() if name != compilation.COMPILER_CACHE}
    options = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "0", "--model.dim", "8", "--model.depth", "1"]
    words = [sys.executable, "-m", "zoo", "fit", "lm-tiny", "--compile", "--runs", str(tmp_path / "runs"), *options]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**names, "ZOO_CACHE": str(tmp_path / "cache"), "TMPDIR": str(temporary), kernel_choice.SWITCH: "plain"}
    process = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert list((tmp_path / "cache" / "compiled").rglob("*.so"))
    assert not list(temporary.rglob("*.so"))


OWN_GRADIENTS = """
import os, sys, torch
from torch._dynamo.utils import counters
from zoo.system import torch_internals

torch_internals.keep_programs_of_own_gradients()
factor, power, constant = map(int, sys.argv[1:])
table = torch.full((4,), float(constant))

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w * factor

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        for _ in range(power):
            g = g * 2
        return g * w, g * x * table

tensors = [torch.full((4,), 3.0, requires_grad=True) for _ in range(2)]
torch.compile(lambda x, w: Product.apply(x, w).sum())(*tensors).backward()
kept = counters["aot_autograd"]["autograd_cache_hit"]
print(kept, *(int(one.grad[0]) for one in tensors), flush=True)
os._exit(0)
"""


@pytest.mark.campaign
def test_a_program_of_another_own_gradient_is_not_used(tmp_path):
    """Forward, backward or a constant tensor differ from those of a process before; the last two differ in nothing."""
    env = {**os.environ, compilation.COMPILER_CACHE: str(tmp_path)}
    results = []
    for words in ("1 1 1", "1 2 1", "2 2 1", "2 2 5", "2 2 5"):
        command = [sys.executable, "-c", OWN_GRADIENTS, *words.split()]
        process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        results.append(tuple(map(int, process.stdout.split())))
    assert [gradients for _, *gradients in results] == [[6, 6], [12, 12], [12, 12], [12, 60], [12, 60]]
    assert [hits for hits, *_ in results[:3]] == [0, 0, 0]
    assert results[4][0] == 1
