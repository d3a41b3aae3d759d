"""Callbacks that average weights: what counts is not averaged, and a run goes on where it stood."""

import itertools

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from tests.campaigns.chaos.toys import differences, digest
from tests.covering import choices_in_turn
from tests.training.test_resume import At, ask, fit
from zoo import registry
from zoo.conformance.combinations import tasks
from zoo.parts.ffn import MoE
from zoo.training.ema import EMA
from zoo.training.signals import StopRequested

AVERAGES = {
    "ema": lambda: EMA(decay=0.5),
    "seldom": lambda: EMA(decay=0.5, every=3),
    "late": lambda: EMA(decay=0.5, start=6),
}


def averages(home):
    """Digests of what the newest checkpoint holds of current weights and of their averages, and both counts."""
    content = torch.load(home / "checkpoints/last.ckpt", weights_only=True)
    digests = {name: digest(content[name]) for name in ("current_model_state", "state_dict")}
    return digests, [int(content[name]["tokens_seen"]) for name in ("current_model_state", "state_dict")]


STOPS = [
    ("lm", "on_train_batch_end", 9),
    ("lm", "on_validation_batch_start", 2),  # averages stand in the place of the weights
    ("translation", "on_train_batch_end", 7),
    ("classification", "on_validation_batch_start", 3),
]


@pytest.mark.parametrize(("kind", "stop"), choices_in_turn(AVERAGES, STOPS))
def test_a_run_with_averaged_weights_counts_and_goes_on(kind, stop, tmp_path):
    task, hook, moment = stop
    average = AVERAGES[kind]
    _, without_average = fit(task, tmp_path / "plain")
    whole, diary = fit(task, tmp_path / "whole", [average()])
    digests, counts = averages(tmp_path / "whole")
    content = torch.load(tmp_path / "plain/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert counts == [int(content["tokens_seen"])] * 2
    assert digests["current_model_state"] == digest(content)  # that averages are taken changes no training
    steps = [step for step, name, _ in without_average if name.startswith("val_by_tokens")]
    assert [step for step, name, _ in diary if name.startswith("val_by_tokens")] == steps
    with pytest.raises(StopRequested):
        fit(task, tmp_path / "cut", [average(), At(hook, moment, ask)])
    resumed, told_then = fit(task, tmp_path / "cut", [average()], resume=True)
    assert differences(resumed, whole) == []
    assert averages(tmp_path / "cut") == (digests, counts)
    assert diary[-len(told_then) :] == told_then


@pytest.mark.parametrize("name", tasks())
@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize(
    "function",
    [{}, {"avg_fn": get_ema_avg_fn(0.5)}, {"multi_avg_fn": get_ema_multi_avg_fn(0.5)}],
    ids=["swa", "ema", "fast"],
)
def test_every_task_is_averaged_by_torch(name, use_buffers, function):
    cls = registry.get("task", name)
    task = cls(**cls.small_sizes({}), **({"dim": 16, "depth": 1, "heads": 2, "ffn": MoE} if cls.in_matrix else {}))
    whole = [buffer for buffer in torch.nn.Module.named_buffers(task) if not buffer[1].is_floating_point()]
    assert ("tokens_seen", task.tokens_seen) in whole
    for buffer in (buffer for _, buffer in whole):
        buffer.fill_(7)
    average = AveragedModel(task, use_buffers=use_buffers, **function)
    for step in range(3):
        for parameter in task.parameters():
            parameter.data.fill_(step)
        for _, buffer in whole:
            buffer.add_(1000)
        average.update_parameters(task)
    expected = 1.0 if not function else 1.25  # (0 + 1 + 2) / 3; ((0 + 1) / 2 + 2) / 2
    assert all(bool((p == expected).all()) for p in average.module.parameters())
    assert all(bool((buffer == 3007).all()) for _, buffer in whole)
    counters = torch.nn.Module.named_buffers(average.module)
    assert all(bool((buffer == 7).all()) for _, buffer in counters if not buffer.is_floating_point())
    assert all(buffer.is_floating_point() for buffer in itertools.chain(task.buffers(), average.module.buffers()))
