"""What reaches the disk, and what does not: full disks, kills within a write, weights that are no numbers."""

import errno
import os

import pytest
import torch

from tests.campaigns.chaos import rot
from tests.campaigns.chaos.toys import differences
from tests.training.test_resume import At, fit, saved_state
from zoo.errors import CheckpointError, NonFiniteError
from zoo.inference import find_run
from zoo.io import atomic_files, checkpoint_manifest
from zoo.training.checkpoint import AtomicCheckpointIO

STATE = {"global_step": 3, "epoch": 0, "state_dict": {"w": torch.arange(5.0)}}


@pytest.fixture
def full(monkeypatch):
    """A disk that is full while the list is not empty."""
    reasons = []
    real = os.fsync

    def fsync(handle):
        if reasons:
            raise OSError(reasons[0], os.strerror(reasons[0]))
        real(handle)

    monkeypatch.setattr(atomic_files.os, "fsync", fsync)
    return reasons


def test_a_checkpoint_is_whole_or_not_there(tmp_path, full):
    writer, path = AtomicCheckpointIO({"recipe": {"a": 1}}), tmp_path / "last.ckpt"
    writer.save_checkpoint(STATE, path)
    message = checkpoint_manifest.verify(path)
    assert (message["step"], message["recipe"], message["bytes"]) == (3, {"a": 1}, path.stat().st_size)
    assert torch.equal(writer.load_checkpoint(path)["state_dict"]["w"], torch.arange(5.0))
    before = path.read_bytes()
    full.append(errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        writer.save_checkpoint({**STATE, "global_step": 4}, path)
    assert path.read_bytes() == before
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    remaining = [
        tmp_path / "a" / name
        for name in (
            ".finished.json.7.partial",
            "checkpoints/.last.ckpt.7.partial",
            "checkpoints/manifests/.a.json.7.partial",
        )
    ]
    remaining[2].parent.mkdir(parents=True)
    for path in remaining:
        path.write_bytes(b"half")
    fit("lm", tmp_path / "a")
    assert not [path for path in remaining if path.exists()]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_within_a_write_leaves_the_old_content(call, tmp_path):
    writer, path = AtomicCheckpointIO({}), tmp_path / "last.ckpt"
    writer.save_checkpoint(STATE, path)
    codes = [dies(call, moment, path) for moment in range(1, 9)]
    assert codes.count(9) >= 2
    atomic_files.remove_drafts(tmp_path)
    assert not list(tmp_path.glob(".*"))


def dies(call, moment, path):
    """Write in a process that ends at its so-manyeth call of a function of os; its exit code."""
    child, real, calls = os.fork(), getattr(os, call), []
    if not child:

        def dying(*args):
            calls.append(args)
            return os._exit(9) if len(calls) == moment else real(*args)

        setattr(os, call, dying)
        AtomicCheckpointIO({}).save_checkpoint({**STATE, "global_step": 4}, path)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert checkpoint_manifest.verify(path)["step"] in (3, 4)
    return code


def test_a_full_disk_is_survived_for_a_while(tmp_path, full, capsys):
    fill = At("on_train_batch_end", 4, lambda _: full.append(errno.ENOSPC))
    free = At("on_train_batch_end", 7, lambda _: full.clear())
    result, _ = fit("lm", tmp_path / "a", [fill, free])
    assert torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)["global_step"] == 14
    err = capsys.readouterr().err
    assert "warning: no checkpoint of step 4: No space left on device" in err
    assert "free some space; the newest is that of step 0" in err
    assert result == saved_state(tmp_path / "a")


def test_a_disk_that_is_full_in_the_middle_of_a_file_is_survived(tmp_path, monkeypatch, capsys):
    real, tries = atomic_files.HashingFile.__init__, []

    class Full:
        def __init__(self, file):
            self.file, self.flush = file, file.flush

        def write(self, content):
            if tries and len(content) > 500:  # a tensor, whose header is written already
                tries.clear()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(content)

    monkeypatch.setattr(atomic_files.HashingFile, "__init__", lambda self, file: real(self, Full(file)))
    fit("lm", tmp_path / "a", [At("on_train_batch_end", 4, lambda _: tries.append(True))])
    assert "warning: step 4 was saved at the second attempt: No space left on device" in capsys.readouterr().err
    assert checkpoint_manifest.verify(checkpoint_manifest.newest_intact(tmp_path / "a").path)["step"] == 14
    assert not list(tmp_path.rglob("*.partial"))


def test_one_refused_write_does_not_lose_the_best_state(tmp_path, monkeypatch):
    undisturbed, _ = fit("lm", tmp_path / "a")
    best = checkpoint_manifest.verify(tmp_path / "a/checkpoints/best.ckpt")["step"]
    real, refused = AtomicCheckpointIO.save_checkpoint, []

    def save(self, checkpoint, path, storage_options=None):
        if path.name == "best.ckpt" and checkpoint["global_step"] == best and not refused:
            refused.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(self, checkpoint, path, storage_options)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save)
    assert fit("lm", tmp_path / "b")[0] == undisturbed
    assert refused


@pytest.mark.parametrize("failures", [1, 2])
def test_the_best_state_is_not_lost_to_a_disk_that_fails_when_it_should_be_written(failures, tmp_path, full):
    options = {"goal": ("loss", "max"), "every": 0}  # the first validation stays the best
    whole, _ = fit("lm", tmp_path / "whole", **options)
    fill = At("on_validation_start", 1, lambda _: full.append(errno.ENOSPC))
    free = At("on_train_batch_end", 6 if failures == 1 else 11, lambda _: full.clear())
    interrupted, _ = fit("lm", tmp_path / "cut", [fill, free], **options)
    assert differences(interrupted, whole) == []
    assert torch.load(tmp_path / "cut/checkpoints/best.ckpt", weights_only=True)["global_step"] == 5


def test_the_newest_of_two_checkpoints_of_one_step_is_the_later_one_whatever_a_clock_says(tmp_path):
    writer = AtomicCheckpointIO({})
    for number, name in enumerate(("previous", "last", "best")):
        writer.save_checkpoint({**STATE, "saves": number}, tmp_path / f"{name}.ckpt")
        os.utime(tmp_path / f"{name}.ckpt", (2e9 - number, 2e9 - number))
    assert checkpoint_manifest.newest_intact(tmp_path).path.name == "best.ckpt"
    (tmp_path / "best.ckpt").unlink()
    assert find_run.checkpoint_to_use(tmp_path).name == "last.ckpt"


def test_a_disk_that_stays_full_ends_the_run_and_leaves_the_last_good_one(tmp_path, full):
    with pytest.raises(CheckpointError, match="no checkpoint of step 8: No space left"):
        fit("lm", tmp_path / "a", [At("on_train_batch_end", 2, lambda _: full.append(errno.ENOSPC))])
    full.clear()
    assert checkpoint_manifest.verify(checkpoint_manifest.newest_intact(tmp_path / "a").path)["step"] == 0


def test_a_folder_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path, full):
    full.append(errno.EROFS)
    with pytest.raises(CheckpointError, match="no checkpoint of step 0: Read-only file system"):
        fit("lm", tmp_path / "a")
    assert not list((tmp_path / "a").rglob("*.ckpt"))


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    def spoil(trainer):
        with torch.no_grad():
            next(trainer.lightning_module.parameters()).fill_(float("nan"))

    with pytest.raises(NonFiniteError, match=r"step 4: the weight net\..* is not finite"):
        fit("lm", tmp_path / "a", [At("on_train_batch_end", 4, spoil)])
    assert checkpoint_manifest.verify(checkpoint_manifest.newest_intact(tmp_path / "a").path)["step"] == 0


def test_damage_is_noticed_and_the_one_before_is_used(tmp_path):
    fit("lm", tmp_path / "a")
    report = rot.campaign(tmp_path / "a", 30, 20)
    assert report == {"damaged": 50, "noticed": 50, "fallback used": 50}


def test_a_manifest_of_another_content_does_not_count(tmp_path):
    writer, path = AtomicCheckpointIO({}), tmp_path / "last.ckpt"
    writer.save_checkpoint(STATE, path)
    manifest = next((tmp_path / checkpoint_manifest.FOLDER).iterdir())
    manifest.write_text(manifest.read_text().replace('"step": 3', '"step": 9'))
    with pytest.raises(CheckpointError, match=r"the manifest of last\.ckpt, is damaged"):
        checkpoint_manifest.verify(path)


def test_an_undamaged_manifest_of_another_checkpoint_does_not_count(tmp_path):
    writer, path = AtomicCheckpointIO({}), tmp_path / "last.ckpt"
    writer.save_checkpoint(STATE, path)
    manifest = next((tmp_path / checkpoint_manifest.FOLDER).iterdir())
    other = tmp_path / "other"
    other.mkdir()
    checkpoint_manifest.write_manifest(other, "0" * 64, 7, {"step": 3})
    manifest.write_bytes((other / checkpoint_manifest.FOLDER / f"{'0' * 64}.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"the manifest of last\.ckpt, is damaged"):
        checkpoint_manifest.verify(path)


def test_weights_alone_are_told_from_a_damaged_checkpoint(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(16))
    with pytest.raises(checkpoint_manifest.CheckpointError, match="holds weights alone"):
        checkpoint_manifest.verify(tmp_path / "model.safetensors")
