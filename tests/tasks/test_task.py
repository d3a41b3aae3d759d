"""Neither batch size, padding, accumulation nor the number of processes changes what a step learns."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from tests import forks
from tests.tasks.training import Diary, build, train
from zoo.parts.ffn import MoE

TASKS = ["lm", "translation", "classification"]


def close(got, want, **tolerance):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), **{"atol": 2e-6, "rtol": 1e-5, **tolerance})


@pytest.mark.parametrize("task", ["lm", "classification"])
def test_accumulating_small_batches_equals_large_ones(task, tmp_path):
    whole = train(task, 12, tmp_path)
    parts = train(task, 4, tmp_path, accumulate_grad_batches=3)
    close(parts.curve("train/loss"), whole.curve("train/loss"))
    close(parts.weights, whole.weights, atol=2e-5)


def test_accumulated_gradient_is_that_of_all_tokens_however_uneven(tmp_path):
    module, data = build("translation", 4, tmp_path, dropout=0.0)
    data.setup()
    batches = [batch for _, batch in zip(range(3), data.train_dataloader(), strict=False)]
    assert len({int(batch["target_valid"].sum()) for batch in batches}) > 1
    total = sum(module.loss(batch).total for batch in batches)
    size = sum(int(module.loss(batch).size) for batch in batches)
    want = torch.autograd.grad(total / size, list(module.net.parameters()))
    got = gradient_before_step(module, batches)
    for mine, right in zip(got, want, strict=True):
        close(mine, right)


def gradient_before_step(module, batches):
    """What the optimiser is given, with Lightning's division by the accumulated batches done by hand."""

    class FakeTrainer:
        accumulate_grad_batches, world_size, global_rank, strategy = len(batches), 1, 0, None

    module._trainer = FakeTrainer()
    for number, batch in enumerate(batches):
        (module.training_step(batch, number) / len(batches)).backward()
    module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))
    module._trainer = None
    return [p.grad for p in module.net.parameters()]


def test_padding_does_not_change_the_loss_even_of_a_mixture_of_experts(tmp_path):
    module, data = build("translation", 4, tmp_path, ffn=MoE)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    wider = dict(batch)
    for side in ("source", "target"):
        wider[side] = torch.nn.functional.pad(batch[side], (0, 8))
        wider[f"{side}_valid"] = torch.nn.functional.pad(batch[f"{side}_valid"], (0, 8))
    module.train()
    close(module.loss(wider).total, module.loss(batch).total)
    assert module.loss(wider).size == module.loss(batch).size


# the batches of a translation differ in their numbers of tokens, and "few" has one row that validates
@pytest.mark.parametrize(
    "task",
    ["few", *(pytest.param(task, marks=[] if task == "translation" else [pytest.mark.campaign]) for task in TASKS)],
)
def test_two_processes_equal_one_with_twice_the_batch(task, tmp_path):
    one = train(task, 8, tmp_path)
    root = Path(__file__).parents[2]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "tests.tasks.training", task, "4", str(tmp_path), "2"]
    done = forks.run(command, env=env, text=True, timeout=300, nested=True)
    assert done.returncode == 0, done.stderr[-3000:]
    lines, weights = json.loads((tmp_path / f"{task}-2.json").read_text())
    assert [line[:2] for line in lines] == [list(line[:2]) for line in one.lines]
    for (step, name, mine), (_, _, right) in zip(lines, one.lines, strict=True):
        assert mine == pytest.approx(right, rel=1e-4, abs=1e-5), (step, name)
    close(weights, one.weights, atol=1e-4)


def test_a_plain_trainer_returns_the_figures_of_a_validation(tmp_path):
    task, data = build("lm", 4, tmp_path)
    diary = Diary()
    for logger in (False, diary):
        trainer = Trainer(accelerator="cpu", logger=logger, enable_progress_bar=False, enable_checkpointing=False)
        (figures,) = trainer.validate(task, data, verbose=False)
        assert figures.keys() >= {"val/loss", "val/perplexity", "val/bits_per_byte"}
        assert figures["val/loss"] > 0
    assert [name for _, name, _ in diary.lines].count("val/loss") == 1
