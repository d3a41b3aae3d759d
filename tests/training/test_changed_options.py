"""A run that is resumed with another optimizer, rate or schedule trains with these, from the checkpoint's moments."""

import copy
import functools
import itertools

import pytest
import torch
from torch import optim
from torch.optim.lr_scheduler import LambdaLR
from zoo_optimizers.adamw8bit import AdamW8bit
from zoo_optimizers.lion import Lion

from tests.campaigns.chaos.toys import differences
from tests.tasks.training import build
from tests.training.test_resume import At, ask, fit
from zoo.errors import UsageError
from zoo.tasks.lm import CausalLM
from zoo.tasks.muon import Muon
from zoo.tasks.schedule import WSD, Cosine, Linear
from zoo.training.changed_options import check_groups, keep_options, with_options_of
from zoo.training.signals import StopRequested

partial = functools.partial
OPTIMIZERS = {
    "AdamW": optim.AdamW, "AdamW2": partial(optim.AdamW, betas=(0.5, 0.6), weight_decay=0.3), "Adam": optim.Adam,
    "amsgrad": partial(optim.AdamW, amsgrad=True), "SGD": optim.SGD, "momentum": partial(optim.SGD, momentum=0.9),
    "RMSprop": optim.RMSprop, "centered": partial(optim.RMSprop, centered=True, momentum=0.9), "Adagrad": optim.Adagrad,
    "Muon": Muon, "Lion": Lion, "8bit": partial(AdamW8bit, smallest=1), "32bit": partial(AdamW8bit, smallest=10**6),
}  # fmt: skip
SAME_STATE = {"AdamW", "AdamW2", "Adam"}  # SGD has none, which suits all


def make(name, schedule=Cosine, lr=1e-3):
    """A task, its optimizer and its schedule."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "max_length": 16, "dim": 16, "depth": 1, "heads": 2}
    task = CausalLM(**sizes, optimizer=OPTIMIZERS[name], lr=lr)
    optimizer = task.make_optimizer()
    return task, optimizer, LambdaLR(optimizer, schedule(total=9, warmup=2))


def train(task, optimizer, scheduler, steps=2):
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(23, (2, 9), generator=draw)
        total, size = task.loss({"inputs": tokens[:, :-1], "targets": tokens[:, 1:]})
        optimizer.zero_grad()
        (total / size).backward()
        optimizer.step()
        scheduler.step()


def options_of(optimizer):
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


@functools.cache
def saved(name):
    task, optimizer, scheduler = make(name)
    train(task, optimizer, scheduler)
    return {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()]}


def pairs():
    """All pairs of optimizers; in the default run those of one name, and with the three that differ most."""
    for before, after in itertools.product(OPTIMIZERS, OPTIMIZERS):
        by_default = before == after or {before, after} & {"AdamW", "SGD", "Muon"}
        yield pytest.param(before, after, marks=[] if by_default else [pytest.mark.campaign])


@pytest.mark.parametrize(("before", "after"), list(pairs()))
def test_every_optimizer_goes_on_after_every_other(before, after):
    task, optimizer, scheduler = make(after, Linear, lr=5e-4)
    initial = options_of(optimizer)
    checkpoint = copy.deepcopy(saved(before))
    sentences = keep_options([optimizer], [scheduler], checkpoint)
    optimizer.load_state_dict(checkpoint["optimizer_states"][0])
    scheduler.load_state_dict(checkpoint["lr_schedulers"][0])
    expected = [{**group, "lr": group["initial_lr"] * Linear(total=9, warmup=2)(2)} for group in initial]
    assert options_of(optimizer) == expected
    assert scheduler.last_epoch == 2
    same_state = before == after or {before, after} <= SAME_STATE or (before == "SGD" and after != "Muon")
    assert bool(sentences) is not same_state, sentences
    assert bool(optimizer.state) is (same_state and before != "SGD")
    train(task, optimizer, scheduler)
    assert all(p.isfinite().all() for p in task.parameters())


def test_a_state_before_the_first_step_suits_every_optimizer_of_the_same_groups():
    _, optimizer, scheduler = make("AdamW")
    checkpoint = {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()]}
    _, other, schedule = make("Lion")
    assert keep_options([other], [schedule], checkpoint) == []


@pytest.mark.parametrize("name", ["AdamW", "Muon"])
def test_groups_of_another_version_are_refused(name):
    """Its roles of parameters were others, by which weight decay and Muon choose."""
    _, optimizer, _ = make(name)
    checkpoint = {"optimizer_states": [copy.deepcopy(optimizer.state_dict())]}
    check_groups([optimizer], checkpoint)
    first, *_, last = checkpoint["optimizer_states"][0]["param_groups"]
    for key in ("params", "param_names"):
        last[key].append(first[key].pop())
    with pytest.raises(UsageError, match=r"other groups of parameters .* --tune\.start RUN"):
        check_groups([optimizer], checkpoint)


RUN = {"optimizer": optim.AdamW, "lr": 1e-3, "schedule": partial(Cosine, warmup=3)}
OTHER = {"optimizer": partial(optim.AdamW, weight_decay=0.5, betas=(0.8, 0.9)), "lr": 7e-4, "schedule": partial(WSD)}


def fit_with(monkeypatch, options, home, **how):
    monkeypatch.setattr("tests.training.test_resume.build", partial(build, **options))
    return fit("lm", home, **how)[0]


def test_a_resume_whose_options_are_those_of_before_is_exact(tmp_path, monkeypatch):
    whole = fit_with(monkeypatch, RUN, tmp_path / "whole")
    with pytest.raises(StopRequested):
        fit_with(monkeypatch, RUN, tmp_path / "half", callbacks=[At("on_train_batch_end", 7, ask)])
    assert differences(fit_with(monkeypatch, RUN, tmp_path / "half", resume=True, other_recipe=True), whole) == []


@pytest.mark.parametrize("optimizer", [OTHER["optimizer"], Muon])
def test_a_resume_with_other_options_trains_with_them(optimizer, tmp_path, monkeypatch):
    with pytest.raises(StopRequested):
        fit_with(monkeypatch, RUN, tmp_path, callbacks=[At("on_train_batch_end", 7, ask)])
    rates, groups = [], []

    def record(trainer):
        group = trainer.optimizers[0].param_groups[0]
        rates.append((trainer.global_step, group["lr"]))
        groups.append((group.get("weight_decay"), group.get("betas")))

    watch = At("on_train_batch_end", 1, record)
    fit_with(monkeypatch, OTHER | {"optimizer": optimizer}, tmp_path, callbacks=[watch], resume=True, other_recipe=True)
    (step, rate), (decay, betas) = rates[0], groups[0]
    assert rate == OTHER["lr"] * WSD(total=14)(step - 1) or rate == OTHER["lr"] * WSD(total=14)(step)
    if optimizer is not Muon:
        assert (decay, betas) == (0.5, (0.8, 0.9))


class Counting(torch.optim.SGD):
    """Keeps numbers that steps change among the options of a group, as schedule-free optimizers do."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        for group in self.param_groups:
            group |= {"count": 0, "largest": -1.0, "trains": False}

    def step(self, closure=None):
        for group in self.param_groups:
            group |= {"count": group["count"] + 1, "largest": max(group["largest"], group["lr"]), "trains": True}
        return super().step(closure)


def test_what_steps_change_in_a_group_is_no_option(tmp_path):
    weight = torch.nn.Parameter(torch.ones(2))
    before, now = Counting([weight], 0.5), Counting([weight], 0.1)
    for _ in range(3):
        weight.grad = torch.ones(2)
        before.step()
    state, begins_anew = with_options_of(now, before.state_dict())
    now.load_state_dict(state)
    group = now.param_groups[0]
    assert not begins_anew
    assert [group[name] for name in ("lr", "count", "largest", "trains")] == [0.1, 3, 0.5, True]
