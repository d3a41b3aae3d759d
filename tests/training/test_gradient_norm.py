"""A norm that check and clipping share clips exactly as two norms do; it is shared where nothing comes between."""

import pytest
import torch
from lightning.pytorch import Callback

from tests.tasks.training import train
from zoo.tasks.lm import CausalLM
from zoo.training.nonfinite import NonFiniteGuard

CLIP = {"gradient_clip_val": 0.05}  # far below the norms of these steps


@pytest.fixture
def norms(monkeypatch):
    """How often a norm of gradients was computed."""
    seen, real = [], torch._foreach_norm

    def counted(*args, **kwargs):
        seen.append(real(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(torch, "_foreach_norm", counted)
    return seen


def weights(folder, *callbacks, **options):
    return train("lm", 4, folder, {}, callbacks=list(callbacks), **options).weights


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_weights_are_those_without_a_guard(tmp_path, accumulated, algorithm):
    options = CLIP | {"accumulate_grad_batches": accumulated, "gradient_clip_algorithm": algorithm}
    plain = weights(tmp_path, **options)
    assert torch.equal(weights(tmp_path, NonFiniteGuard(tmp_path), **options), plain)
    assert not torch.equal(weights(tmp_path, NonFiniteGuard(tmp_path), accumulate_grad_batches=accumulated), plain)


def test_one_norm_per_step(tmp_path, norms):
    weights(tmp_path, NonFiniteGuard(tmp_path), **CLIP)
    assert len(norms) == 6


def test_two_where_the_task_changes_gradients(tmp_path, norms):
    weights(tmp_path, NonFiniteGuard(tmp_path), accumulate_grad_batches=2, **CLIP)
    assert len(norms) == 12


class Halves(Callback):
    """Changes gradients where no version counter tells."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            parameter.grad.data.mul_(0.5)


@pytest.mark.parametrize("order", [1, -1])
def test_gradients_that_another_callback_changed_are_measured_anew(tmp_path, order):
    clip = {"gradient_clip_val": 1.0}
    plain = weights(tmp_path, Halves(), **clip)
    assert not torch.equal(plain, weights(tmp_path, **clip))
    callbacks = [NonFiniteGuard(tmp_path), Halves()][::order]
    assert torch.equal(weights(tmp_path, *callbacks, **clip), plain)


@pytest.mark.parametrize("hook", ["on_before_optimizer_step", "configure_gradient_clipping"])
def test_so_are_those_that_the_task_changed(tmp_path, monkeypatch, hook):
    real = getattr(CausalLM, hook)

    def changed(self, optimizer, *args, **kwargs):
        for parameter in self.parameters():
            parameter.grad.data.mul_(0.01)
        real(self, optimizer, *args, **kwargs)

    monkeypatch.setattr(CausalLM, hook, changed)
    plain = weights(tmp_path, **CLIP)
    assert torch.equal(weights(tmp_path, NonFiniteGuard(tmp_path), **CLIP), plain)


def test_parameters_that_wait_are_left_out(tmp_path, monkeypatch):
    begin = CausalLM.on_fit_start

    def waits(self):
        begin(self)
        self.thaws = {name: 3 for name, _ in self.net.named_parameters() if "embedding" in name}

    monkeypatch.setattr(CausalLM, "on_fit_start", waits)
    assert torch.equal(weights(tmp_path, NonFiniteGuard(tmp_path), **CLIP), weights(tmp_path, **CLIP))
