"""The memory that a run is said to take is near what it takes."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.test_recipes import build
from zoo.cli.fit_summary import memory_of
from zoo.tasks.lm import CausalLM
from zoo.training import memory_estimate
from zoo.training.memory_estimate import estimate, rows

TOLERANCE = 0.15
PARTS = ["", "ffn=SwiGLU position=RoPE norm=RMSNorm", "backend=Naive"]
# a fork for each of its arguments prints the estimate and the peak
PROBE = """
import os, sys, torch
torch.set_num_threads(1)
from bench.study import peak_above
from zoo import registry
from zoo.training.memory_estimate import estimate
from zoo.tasks.lm import CausalLM
def measure(parts):
    parts = {k: registry.get(k, v) for k, v in parts.items()}
    task = CausalLM(4096, 256, dim=256, depth=4, heads=4, **parts).train()
    expected = estimate(task, 8)
    optimizer = task.make_optimizer()
    tokens = torch.randint(4096, (8, 257))
    def step(rows=8, length=256):
        loss = task.loss({"inputs": tokens[:rows, :length], "targets": tokens[:rows, 1 : length + 1]})
        (loss.total / loss.size).backward()
        optimizer.step()
        optimizer.zero_grad()
    step(1, 8)
    print(expected.total, peak_above(step) + expected.weights + expected.states, flush=True)
for words in sys.argv[1:]:
    if not (child := os.fork()):
        measure(dict(word.split("=") for word in words.split()))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def estimates_and_peaks():
    """In bytes, of each of PARTS: in processes whose allocator gives memory back, which is set at their start."""
    from bench.study import RETURN_MEMORY

    env = {**os.environ, **RETURN_MEMORY, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROBE, *PARTS], env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return dict(zip(PARTS, (tuple(map(int, line.split())) for line in done.stdout.splitlines()), strict=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process can be set back on Linux only")
@pytest.mark.parametrize("parts", PARTS)
def test_a_language_model_takes_what_was_said(parts, estimates_and_peaks):
    estimate, peak = estimates_and_peaks[parts]
    assert estimate == pytest.approx(peak, rel=TOLERANCE)


@pytest.mark.parametrize("name", ["lm-tiny", "translation-tiny", "vit-tiny", "mlm-tiny", "translation-rnn"])
def test_tasks_of_every_kind_can_be_estimated_and_batches_count(name):
    task = build(name, torch.device("cpu"), small=True)
    before = [p.clone() for p in task.net.parameters()]
    one, four = estimate(task, 1), estimate(task, 4)
    assert one[:3] == four[:3]
    assert 0 < one.batch < four.batch < 5 * one.batch
    assert all(torch.equal(*pair) for pair in zip(before, task.net.parameters(), strict=True))
    assert not any(p.is_meta for p in task.net.parameters())


def test_rows_come_from_the_options_of_the_data():
    task = CausalLM(31, 8, dim=16, depth=1, heads=2)
    assert rows(task, {"batch_size": 12}) == 12
    assert rows(task, {"batch_size": 12, "longer": 2}) == 6  # training texts are half as long as the longest
    assert rows(task, {"batch_size": 3, "longer": 2}) == 2
    assert rows(task, {"max_tokens": 80}) == 10
    assert rows(task, {}) == 0
    assert rows(task, {"rate": 0.5, "text": {"class_path": "TextFiles", "init_args": {"batch_size": 7}}}) == 7
    assert rows(task, {"batch_size": 12, "text": {"init_args": {"batch_size": 7}}}) == 12
    assert rows(task, {"text": "column"}) == rows(task, {"text": {"class_path": "TextFiles"}}) == 0


def test_the_memory_of_a_machine_is_the_least_limit(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(memory_estimate, "CONTAINER_LIMIT", tmp_path / "memory.max")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory_estimate.device_memory(torch.device("cpu")) == machine
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_estimate.device_memory(torch.device("cpu")) == machine
    (tmp_path / "memory.max").write_text("5000\n")
    assert memory_estimate.device_memory(torch.device("cpu")) == 5000
    monkeypatch.setattr(resource, "getrlimit", lambda what: (4000, resource.RLIM_INFINITY))
    assert memory_estimate.device_memory(torch.device("cpu")) == 4000


@pytest.mark.parametrize(("limit", "warns"), [(10**6, True), (10**12, False)])
def test_the_header_warns_of_a_step_that_does_not_fit(limit, warns, monkeypatch):
    monkeypatch.setattr(memory_estimate, "device_memory", lambda device: limit)
    task = build("lm-tiny", torch.device("cpu"), small=True)
    config = {"trainer": {}, "model": {"init_args": {}}, "data": {"init_args": {"batch_size": 4}}}
    line = memory_of(task, SimpleNamespace(config=config))
    assert line.startswith("  memory  about ")
    assert (" more than the 1 MB here: take a smaller batch" in " ".join(line.split())) is warns
