"""Leaving out what does nothing changes nothing that somebody asked for."""

import os

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.profilers import SimpleProfiler

from tests.tasks.training import build, train
from zoo.data.text import TextFiles
from zoo.tasks.lm import CausalLM
from zoo.training.callbacks import EndsWithValidation
from zoo.training.checkpoint import CheckpointSaver
from zoo.training.lightning_overhead import NVML, STEP, Silent, install


class Listener(Callback):
    """Writes down which of its hooks were called."""

    def __init__(self, *hooks):
        self.heard = []
        for hook in hooks:
            setattr(type(self), hook, self._hear(hook))

    @staticmethod
    def _hear(hook):
        return lambda self, *args, **kwargs: self.heard.append(hook)


@pytest.fixture
def listener():
    kind = type("Own", (Listener,), {})
    return kind("on_train_batch_start", "on_after_backward", "on_before_zero_grad", "on_train_end")


def trainer(folder, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    known = {"max_steps": 3, "max_epochs": -1, "limit_val_batches": 0, "logger": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, use_distributed_sampler=False, **quiet | known | options)


def test_hooks_that_somebody_has_are_called(tmp_path, listener):
    idle = EndsWithValidation()
    run = trainer(tmp_path, callbacks=[listener, idle])
    install(run)
    assert type(run.profiler) is Silent
    module, data = build("lm", 4, tmp_path)
    run.fit(module, data)
    hooks = ["on_train_batch_start", "on_before_zero_grad", "on_after_backward"]
    assert [hook for hook in listener.heard if hook in hooks] == hooks * 3
    assert listener.heard[-1] == "on_train_end"
    left_out = {hook for hook in STEP if getattr(idle, hook) is None}
    assert left_out == set(STEP) - {"on_train_batch_start"}


def test_results_are_the_same(tmp_path, monkeypatch):
    plain = train("lm", 4, tmp_path, callbacks=[EndsWithValidation()])
    fit = Trainer.fit

    def lean_fit(self, *args, **kwargs):
        install(self)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", lean_fit)
    assert train("lm", 4, tmp_path, callbacks=[EndsWithValidation()]).lines == plain.lines


def test_a_profiler_that_was_asked_for_sees_everything(tmp_path, listener):
    run = trainer(tmp_path, callbacks=[listener], profiler=SimpleProfiler())
    install(run)
    run.fit(*build("lm", 4, tmp_path))
    seen = run.profiler.recorded_durations
    assert len(seen["[Callback]Own.on_before_backward"]) == 3  # the hook that does nothing, too


@pytest.mark.parametrize("devices", [0, 1])
def test_optimisers_look_for_a_gpu_where_there_may_be_one(tmp_path, monkeypatch, devices):
    monkeypatch.setenv(NVML, "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    install(trainer(tmp_path))
    assert (NVML in os.environ) == bool(devices)


def test_hooks_of_a_task_are_left_out_where_it_has_none(tmp_path):
    module, data = build("lm", 4, tmp_path)
    heard = []
    module.on_after_backward = lambda: heard.append(module._current_fx_name)
    run = trainer(tmp_path)
    install(run, module)
    assert module.on_before_backward is None
    assert module.on_train_batch_end is not None
    run.fit(module, data)
    assert heard == ["on_after_backward"] * 3
    assert module._current_fx_name is None


def three_steps(folder):
    """In zoo's loops, without a validation, whose batches are moved too."""
    options = {"enable_checkpointing": True, "max_steps": 3, "limit_val_batches": 0}
    train("lm", 4, folder, callbacks=[CheckpointSaver(folder / "checkpoints")], **options)


@pytest.mark.parametrize("numbered", [True, False])
def test_a_step_gets_the_number_of_its_batch_where_it_wants_it(tmp_path, monkeypatch, numbered):
    seen, real = [], CausalLM.training_step

    def with_number(self, batch, batch_idx):
        seen.append(batch_idx)
        return real(self, batch, batch_idx)

    def without(self, batch):
        seen.append(None)
        return real(self, batch, 0)

    monkeypatch.setattr(CausalLM, "training_step", with_number if numbered else without)
    three_steps(tmp_path)
    assert seen == ([0, 1, 2] if numbered else [None] * 3)


@pytest.mark.parametrize("owner", [CausalLM, TextFiles])
def test_whoever_moves_batches_is_asked(tmp_path, monkeypatch, owner):
    moved = []
    monkeypatch.setattr(
        owner, "on_after_batch_transfer", lambda self, batch, dataloader_idx: moved.append(type(self)) or batch
    )
    three_steps(tmp_path)
    assert moved == [owner] * 3
