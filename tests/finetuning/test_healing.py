"""A swapped model learns the predictions of the model that it started from."""

import copy

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from tests.campaigns.chaos.toys import differences
from tests.tasks.training import build, text_file
from tests.training import test_resume
from tests.training.test_resume import At, ask
from zoo import registry
from zoo.cli import main
from zoo.errors import CheckpointError, UsageError
from zoo.finetuning.finetune import Tune, owner_of_logits
from zoo.finetuning.weight_transfer import transfer_weights
from zoo.models.language import LanguageModel
from zoo.parts.norm import RMSNorm
from zoo.parts.position import Learned, RoPE
from zoo.tasks.task import Healing
from zoo.training.signals import StopRequested

TASKS = ("lm", "translation", "classification")
LM = ["lm-tiny", "--model.depth", "1", "--model.dim", "16", "--model.heads", "2", "--model.dropout", "0.1"]
LM += ["--trainer.accelerator", "cpu", "--trainer.precision", "32-true", "--trainer.max_steps", "6"]
LM += ["--trainer.val_check_interval", "3", "--trainer.limit_val_batches", "2", "--save-every", "1"]
LM += ["--data", "TextFiles", "--data.path", "text.txt", "--model.schedule.warmup", "1"]


def task_and_batch(name, folder):
    task, data = build(name, 4, folder)
    data.setup("fit")
    return task.eval(), next(iter(data.train_dataloader()))


def other_weights(net):
    changed = copy.deepcopy(net)
    with torch.no_grad():
        for tensor in changed.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.3)
    return changed


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("name", TASKS)
def test_healing_is_the_divergence_of_every_prediction(name, share, tmp_path):
    task, batch = task_and_batch(name, tmp_path)
    original = other_weights(task.net)
    result = Healing(original, share, "").loss(task, batch)
    own = task.loss(batch)
    logits = [task.prediction_logits(net, batch) for net in (original, task.net)]
    divergence = kl_divergence(*(Categorical(logits=tensor) for tensor in logits)).sum()
    assert divergence > 1
    assert result.size == own.size
    torch.testing.assert_close(result.total, share * divergence + (1 - share) * own.total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_the_original_is_frozen_and_no_part_of_the_task(name, tmp_path):
    task, batch = task_and_batch(name, tmp_path)
    names = set(task.state_dict())
    task.healing = Healing(copy.deepcopy(task.net).requires_grad_(False), 1.0, "")
    assert set(task.state_dict()) == names
    same = task.healing.loss(task, batch).total
    same.backward()
    assert abs(same) < 1e-4
    assert all(tensor.grad is None or tensor.grad.abs().max() < 1e-4 for tensor in task.net.parameters())
    assert all(tensor.grad is None for tensor in task.healing.original.parameters())


def build_task(cls):
    for options in ({"dim": 16, "depth": 1, "heads": 2}, {}):
        try:
            return cls(**cls.small_sizes(options), **options)
        except (TypeError, UsageError):
            continue
    return None


@pytest.mark.parametrize("part", registry.parts("task"), ids=lambda part: part.name)
def test_a_task_has_as_many_logits_as_its_loss_has_terms_or_is_refused_by_name(part):
    if (task := build_task(registry.get("task", part.name))) is None:
        pytest.skip("it needs options of its own")
    try:
        owner_of_logits(task)
    except UsageError as error:
        assert f"tune.heal: {part.name} has a loss of its own" in str(error)  # noqa: PT017
        return
    batch = task.sample(3)
    assert len(task.prediction_logits(task.net, batch)) == task.loss(batch).size


@pytest.mark.parametrize(
    ("options", "message"),
    [({"heal": 0.5}, "--tune.start"), ({"heal": 1.5, "start": "x"}, "share"), ({"heal": -1, "start": "x"}, "share")],
)
def test_what_cannot_be_healed_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Tune(**options)


@pytest.mark.parametrize(
    ("parts", "swaps"),
    [({}, False), ({"norm": RMSNorm}, True), ({"position": RoPE}, True), ({"vocab_size": 12}, False)],
)
def test_a_swap_of_parts_is_seen(parts, swaps):
    old, new = (
        LanguageModel(**{"vocab_size": 9, "max_length": 8, "dim": 8, "depth": 1, "heads": 2, "position": Learned} | own)
        for own in ({}, parts)
    )
    assert transfer_weights(new, old.state_dict(), "x", old).swaps == swaps


@pytest.mark.parametrize("name", TASKS)
def test_a_healed_run_resumes_exactly_and_only_with_its_original(name, tmp_path, monkeypatch):
    digest = "original"

    def build_healing(*args, **options):
        task, data = build(*args, **options)
        with torch.random.fork_rng(devices=[]):
            task.healing = Healing(other_weights(task.net).eval(), 0.5, digest)
        return task, data

    monkeypatch.setattr(test_resume, "build", build_healing)
    whole, _ = test_resume.fit(name, tmp_path / "whole", max_steps=8)
    for home in ("cut", "other"):
        with pytest.raises(StopRequested):
            test_resume.fit(name, tmp_path / home, [At("on_train_batch_end", 6, ask)], max_steps=8)
    resumed, _ = test_resume.fit(name, tmp_path / "cut", resume=True, max_steps=8)
    assert differences(resumed, whole) == []
    digest = "another one"
    with pytest.raises(CheckpointError, match=r"the model of tune\.start is another one than when this run began"):
        test_resume.fit(name, tmp_path / "other", resume=True, max_steps=8)


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_says_its_loss_before_training_and_heals(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text_file(tmp_path)
    assert main(["fit", *LM, "--name", "old", "--model.norm", "LayerNorm"]) == 0
    assert "before training" not in capsys.readouterr().out
    shares, loss = [], Healing.loss

    def fail_in_the_fifth_step(healing, task, batch):
        shares.append(healing.share)
        if len(shares) == 5:
            raise KeyError("as if the power had failed")
        return loss(healing, task, batch)

    monkeypatch.setattr(Healing, "loss", fail_in_the_fifth_step)
    command = ["fit", *LM, "--name", "new", "--tune.start", "runs/lm-tiny/old/s1", "--tune.heal", "0.5"]
    assert main(command) != 0
    assert "before training · val/loss" in capsys.readouterr().out
    assert main([*command, "--resume"]) == 0
    assert shares == [0.5] * 7
    assert "before training" not in capsys.readouterr().out
    assert main(["fit", *LM, "--name", "another", "--seed_everything", "7"]) == 0
    before = content_of(tmp_path / "runs" / "lm-tiny" / "new" / "s1")
    other = [*command, "--resume", "--accept-changes", "--trainer.max_steps", "9"]
    assert main([*other, "--tune.start", "runs/lm-tiny/another/s7"]) != 0
    assert "the model of tune.start is another one" in capsys.readouterr().err
    assert content_of(tmp_path / "runs" / "lm-tiny" / "new" / "s1") == before
    assert main([*command, "--name", "wide", "--data.max_length", "16"]) != 0
    assert "tune.heal: the sizes of" in capsys.readouterr().err
