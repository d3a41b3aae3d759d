"""Checkpoints that a callback of the user writes beside those of the run: neither is mistaken for the other."""

import datetime
import random
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from tests.tasks.training import train
from zoo.errors import UsageError
from zoo.inference.find_run import checkpoint_to_use
from zoo.io.checkpoint_manifest import OWN, newest_intact
from zoo.training.checkpoint import CheckpointSaver
from zoo.training.setup import refuse_other_checkpoints


def refusal(folder: Path, *callbacks, **options) -> str:
    """What a run with these callbacks in ``folder`` is refused with; empty where it is not."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(callbacks=[CheckpointSaver(folder / "checkpoints"), *callbacks], max_steps=1, **quiet | options)
    try:
        refuse_other_checkpoints(trainer, folder / "checkpoints")
    except UsageError as error:
        return str(error)
    return ""


class Renamed(ModelCheckpoint):
    CHECKPOINT_NAME_LAST = "previous"


class Short(ModelCheckpoint):
    FILE_EXTENSION = ""


@pytest.mark.parametrize("name", [*OWN, "Best.ckpt", "../checkpoints/best.ckpt", "more/../last.ckpt"])
@pytest.mark.parametrize("place", [None, "checkpoints", "elsewhere/../checkpoints", "."])
def test_a_file_of_the_run_is_no_file_of_a_callback(name, place, tmp_path):
    dirpath = place and str(tmp_path / place)
    if place == ".":
        name = f"checkpoints/{Path(name).name}"
    message = refusal(tmp_path, ModelCheckpoint(dirpath, name.removesuffix(".ckpt")))
    assert "would write over" in message
    assert "filename" in message
    assert refusal(tmp_path, Short(dirpath, name)) == message.replace("ModelCheckpoint", "Short")


@pytest.mark.parametrize(
    "callback",
    [ModelCheckpoint(save_last=True), ModelCheckpoint(save_last="link"), Renamed(save_last=True)],
    ids=["last", "link", "renamed"],
)
def test_the_last_state_is_the_runs_own(callback, tmp_path):
    assert "save_last" in refusal(tmp_path, callback)
    callback.dirpath = str(tmp_path / "mine")
    assert not refusal(tmp_path, callback)


@pytest.mark.parametrize("name", [None, "best-{step}", "best{epoch}", "{epoch}", "top", "best-v1", "last_of_mine"])
@pytest.mark.parametrize("place", [None, "mine"])
def test_other_names_and_places_are_free(name, place, tmp_path):
    assert not refusal(tmp_path, ModelCheckpoint(place and str(tmp_path / place), name))
    assert not refusal(tmp_path, ModelCheckpoint(str(tmp_path / "mine"), "best", save_last=True))


EACH_EPOCH = {"check_val_every_n_epoch": 1, "val_check_interval": 1.0}
BY_STEPS = {"check_val_every_n_epoch": None, "val_check_interval": 3}


@pytest.mark.parametrize("monitor", ["val/loss", "val/top1"])
@pytest.mark.parametrize(
    ("callback", "stale"),
    [
        ({"every_n_train_steps": 2}, (True, True)),
        ({"train_time_interval": datetime.timedelta(seconds=1)}, (True, True)),
        ({"save_on_train_epoch_end": True}, (False, True)),
        ({"every_n_train_steps": 3, "save_top_k": -1}, (True, True)),
        ({"every_n_epochs": 2}, (False, False)),
        ({}, (False, False)),
    ],
)
def test_a_figure_of_earlier_weights_does_not_rank(callback, stale, monitor, tmp_path):
    for trainer, refused in zip((EACH_EPOCH, BY_STEPS), stale, strict=True):
        message = refusal(tmp_path, ModelCheckpoint(monitor=monitor, **callback), **trainer)
        assert bool(message) == refused
        assert not refused or any(option in message for option in callback)
        assert not refusal(tmp_path, ModelCheckpoint(**callback), **trainer)


@pytest.mark.parametrize("interval", [2, 0.5, 5])
@pytest.mark.parametrize("every", [1, 3, None])
def test_early_stopping_counts_no_figure_twice(every, interval, tmp_path):
    if every is None and isinstance(interval, float):
        pytest.skip("Lightning has no such combination")
    trainer = {"check_val_every_n_epoch": every, "val_check_interval": interval}
    assert not refusal(tmp_path, EarlyStopping("val/loss"), **trainer)
    message = refusal(tmp_path, EarlyStopping("val/loss", check_on_train_epoch_end=True), **trainer)
    assert "check_on_train_epoch_end" in message
    assert not refusal(tmp_path, EarlyStopping("val/loss", check_on_train_epoch_end=True), **EACH_EPOCH)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_uses_its_own_checkpoints_among_others(seed, tmp_path):
    """Callbacks drawn at random, some of which save later than the run's best and its last."""
    draw = random.Random(seed)
    options = [
        {"every_n_train_steps": draw.randint(1, 3), "save_top_k": -1, "save_weights_only": draw.random() < 0.5},
        {"monitor": "val/loss", "filename": draw.choice(["best-{step}", "best_of_mine", "bestest"]), "mode": "max"},
        {"dirpath": str(tmp_path / draw.choice(["mine", "checkpoints/mine"])), "filename": "best", "save_last": True},
    ]
    callbacks = [ModelCheckpoint(**kwargs) for kwargs in draw.sample(options, draw.randint(1, 3))]
    saver = CheckpointSaver(tmp_path / "checkpoints")
    assert not refusal(tmp_path, *callbacks, **BY_STEPS)
    trainer = {"val_check_interval": 2, "max_steps": 7, "enable_checkpointing": True}
    train("classification", 16, tmp_path, callbacks=[saver, *callbacks], **trainer)
    own = {tmp_path / "checkpoints" / name for name in OWN}
    others = [path for path in tmp_path.rglob("*.ckpt") if path not in own]
    assert others
    assert checkpoint_to_use(tmp_path) == tmp_path / "checkpoints" / "best.ckpt"
    assert newest_intact(tmp_path).path in own
    assert newest_intact(tmp_path).skipped == []
    best = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["measured"]["loss"] == pytest.approx(saver.state.best)
