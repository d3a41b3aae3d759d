"""The saver of a run while shards are written in the background: order, failures, and what a kill leaves."""

import random
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from torch import nn

from zoo.errors import CheckpointError, UsageError
from zoo.inference.weight_files import read_checkpoint
from zoo.io import checkpoint_manifest
from zoo.training import checkpoint
from zoo.training.checkpoint import ASYNC, SHARDED, CheckpointSaver


class Writer:
    """A strategy whose shards are written when the test says so."""

    def __init__(self):
        self.futures = []

    def divided_state(self):
        return nullcontext()

    def write_shards(self, content, folder, in_background):
        name = f"{len(self.futures):06d}-00000000"
        (folder / "shards" / name).mkdir(parents=True)
        self.futures.append(Future())
        self.futures[-1].set_running_or_notify_cancel()
        self.names = [*getattr(self, "names", []), name]
        if not in_background:
            self.end(-1)
        return self.futures[-1]

    def end(self, number, error=None):
        if error is None:
            self.futures[number].set_result({"folder": self.names[number], "files": {}})
        else:
            self.futures[number].set_exception(error)


@pytest.fixture
def saver(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    saver = CheckpointSaver(folder, way=ASYNC)
    loop = SimpleNamespace(between_steps=True, ends_run=False, pending=False)
    saver.trainer = SimpleNamespace(
        strategy=Writer(), is_global_zero=True, global_step=0, fit_loop=SimpleNamespace(epoch_loop=loop)
    )
    saver.task, saver.disabled, saver.replicated, saver.inode = nn.Linear(1, 1), False, True, folder.stat().st_ino
    saver.agreement = SimpleNamespace(gather=lambda value: [value], maximum=lambda *values: list(values))
    saver.signals = SimpleNamespace(signum=0)
    saver.counts = {"batches": [0]}
    monkeypatch.setattr(
        checkpoint,
        "collect_state",
        lambda trainer, divided: {
            **{"global_step": trainer.global_step, "epoch": 0, "saves": saver.state.count, "state_dict": {}},
            **{"best": saver.state.best, "callbacks": {"Count": saver.counts}},
        },
    )
    return saver


def save_at(saver, step, best=None):
    saver.trainer.global_step = step
    if best is not None:
        saver.state.best, saver.state.improved = best, True
    saver.save()


def step_of(saver, name="last.ckpt"):
    path = saver.folder / name
    return read_checkpoint(path)["global_step"] if path.exists() else None


def test_a_state_is_a_checkpoint_only_when_its_shards_are_written(saver):
    save_at(saver, 1)
    assert step_of(saver) is None
    saver.on_batch_boundary()
    assert step_of(saver) is None
    saver.trainer.strategy.end(0)
    saver.on_batch_boundary()
    assert step_of(saver) == 1
    assert checkpoint_manifest.newest_intact(saver.folder).path == saver.folder / "last.ckpt"
    saver.on_batch_boundary()  # nothing is left to do


def test_what_callbacks_gave_stays_as_it_was(saver):
    save_at(saver, 1)
    saver.counts["batches"].append(1)
    saver.counts["more"] = True
    saver.trainer.strategy.end(0)
    saver.on_batch_boundary()
    assert read_checkpoint(saver.folder / "last.ckpt")["callbacks"] == {"Count": {"batches": [0]}}


def test_a_state_waits_for_the_one_before_it(saver):
    save_at(saver, 1)
    thread = threading.Timer(0.2, saver.trainer.strategy.end, [0])
    thread.start()
    save_at(saver, 2)
    assert step_of(saver) == 1
    saver.trainer.strategy.end(1)
    saver.settle()
    assert (step_of(saver), step_of(saver, "previous.ckpt")) == (2, 1)


@pytest.mark.parametrize("seed", range(6))
def test_states_are_published_in_order_whatever_is_slow_or_fails(saver, seed, capsys):
    """Drawn: at which boundary shards are written, which of them fail, and which state is the best."""
    draw, strategy = random.Random(seed), saver.trainer.strategy
    best, on_disk, best_on_disk, failures = 10.0, None, None, 0
    for step in range(1, 7):
        saver.trainer.global_step = step
        improved = draw.random() < 0.4
        best -= improved
        save_at(saver, step, best if improved else None)
        wrong = failures < 2 and draw.random() < 0.3
        for boundary in range(draw.randint(1, 3)):
            if boundary == 0:
                strategy.end(-1, OSError(28, "No space left on device") if wrong else None)
            saver.on_batch_boundary()
        saver.settle()
        failures = failures + 1 if wrong else 0
        if not wrong:
            on_disk, best_on_disk = step, step if improved else best_on_disk
        assert (step_of(saver), step_of(saver, "best.ckpt")) == (on_disk, best_on_disk)
        assert saver.state.step == (on_disk if on_disk is not None else -1)
        if wrong and improved:
            best = saver.state.best = saver.state.saved_best or 10.0
            assert f"no checkpoint of step {step}" in capsys.readouterr().err
        if best_on_disk is not None:
            assert saver.state.best == read_checkpoint(saver.folder / "best.ckpt")["best"]
        used = {checkpoint_manifest.verify(path)["shards"]["folder"] for path in saver.folder.glob("*.ckpt")}
        if not wrong:
            assert {path.name for path in (saver.folder / "shards").iterdir()} == used


def test_three_failures_in_a_row_end_the_run(saver, capsys):
    for step in (1, 2):
        save_at(saver, step)
        saver.trainer.strategy.end(-1, OSError(28, "No space left on device"))
        saver.settle()
    save_at(saver, 3)
    saver.trainer.strategy.end(-1, OSError(28, "No space left on device"))
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3: .*No space left"):
        saver.settle()
    assert capsys.readouterr().err.count("warning: no checkpoint of step") == 2


def test_the_first_state_is_written_before_training_begins(saver):
    saver.way = SHARDED
    saver.save(initial=True)
    assert step_of(saver) == 0


def test_a_strategy_without_shares_of_weights_is_refused_by_name(tmp_path):
    saver = CheckpointSaver(tmp_path, way=SHARDED)
    trainer = SimpleNamespace(strategy=SimpleNamespace(), fast_dev_run=False)
    with pytest.raises(UsageError, match=r"--save sharded needs .*fsdp2.*SimpleNamespace does not"):
        saver.setup(trainer, nn.Linear(1, 1), "fit")
