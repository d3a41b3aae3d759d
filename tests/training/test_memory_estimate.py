"""The memory that a run is said to take is near what it takes."""

import subprocess
import sys

import pytest

from tests.test_recipes import build
from zoo.tasks.lm import CausalLM
from zoo.training.memory_estimate import estimate, rows

TOLERANCE = 0.15
PROBE = """
import sys, torch
torch.set_num_threads(1)
from bench.study import peak_above
from zoo import registry
from zoo.training.memory_estimate import estimate
from zoo.tasks.lm import CausalLM
parts = dict(word.split("=") for word in sys.argv[1:])
task = CausalLM(4096, 256, dim=256, depth=4, heads=4, **{k: registry.get(k, v) for k, v in parts.items()}).train()
said = estimate(task, 8)
optimizer = task.make_optimizer()
tokens = torch.randint(4096, (8, 257))
def step(rows=8, length=256):
    loss = task.loss({"inputs": tokens[:rows, :length], "targets": tokens[:rows, 1 : length + 1]})
    (loss.total / loss.size).backward()
    optimizer.step()
    optimizer.zero_grad()
step(1, 8)
print(said.total, peak_above(step) + said.weights + said.states)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process can be set back on Linux only")
@pytest.mark.parametrize("parts", [[], ["ffn=SwiGLU", "position=RoPE", "norm=RMSNorm"], ["backend=Naive"]], ids=str)
def test_a_language_model_takes_what_was_said(parts, monkeypatch):
    from bench.study import RETURN_MEMORY

    for name, value in {**RETURN_MEMORY, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", PROBE, *parts], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    estimate, peak = map(int, done.stdout.split())
    assert estimate == pytest.approx(peak, rel=TOLERANCE)


@pytest.mark.parametrize("name", ["lm-tiny", "translation-tiny", "vit-tiny", "mlm-tiny", "translation-rnn"])
def test_tasks_of_every_kind_can_be_estimated_and_batches_count(name):
    import torch

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
    assert rows(task, {"max_tokens": 80}) == 10
    assert rows(task, {}) == 0
