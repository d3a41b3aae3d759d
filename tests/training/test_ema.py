"""EMA: the average that it takes, what checkpoints hold of it, and the options that it refuses."""

import functools

import pytest
import torch
from lightning.pytorch import Callback

from tests.chaos.toys import differences
from tests.training.test_resume import At, ask, fit
from zoo.config.run_folder import differences as name_changes
from zoo.errors import UsageError
from zoo.training.checkpoint import CheckpointSaver
from zoo.training.ema import EMA
from zoo.training.signals import StopRequested


class Follow(Callback):
    """Keeps the weights after each step."""

    def __init__(self):
        self.weights = []

    def on_train_batch_end(self, trainer, pl_module, *batch):
        self.weights.append([p.detach().clone() for p in pl_module.parameters()])


@pytest.mark.parametrize("options", [{"decay": 0.5}, {"decay": 0.5, "start": 4}, {"every": 2}])
def test_a_run_ends_with_the_average_of_its_weights(options, tmp_path):
    follow = Follow()
    fit("lm", tmp_path / "run", [follow, EMA(**options)])
    decay, start, every = (options.get(name, usual) for name, usual in (("decay", 0.999), ("start", 0), ("every", 1)))
    average = None
    for update, weights in enumerate(follow.weights[every - 1 :: every]):
        count = update - start // every
        share = min(decay, (1 + count) / (10 + count)) if count >= 0 and average else 0.0
        average = [share * a + (1 - share) * w for a, w in zip(average or weights, weights, strict=True)]
    content = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    names = [name for name in content["state_dict"] if name.startswith("net.")]
    got = [content["state_dict"][name] for name in names]
    assert len(got) == len(average)
    for a, b in zip(got, average, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_stopped_run_goes_on_with_both_sets_of_weights(tmp_path):
    make = functools.partial(EMA, decay=0.9, start=3, every=2)
    whole, _ = fit("lm", tmp_path / "whole", [make()])
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "cut", [make(), At("on_train_batch_end", 7, ask)])
    resumed, _ = fit("lm", tmp_path / "cut", [make()], resume=True)
    assert differences(resumed, whole) == []


@pytest.mark.parametrize("options", [{"decay": 1.0}, {"decay": -0.1}, {"start": -1}, {"every": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UsageError, match="EMA"):
        EMA(**options)


def test_callbacks_that_change_results_name_the_run():
    watching = {"trainer.callbacks": CheckpointSaver, "trainer.callbacks.every": 3, "model.lr": 0.1}
    assert name_changes(watching, {}, {}) == {"model.lr": 0.1}
    averaging = {"trainer.callbacks": EMA, "trainer.callbacks.decay": 0.9}
    assert name_changes(averaging, {}, {}) == averaging
    two = {"trainer.callbacks[0]": CheckpointSaver, "trainer.callbacks[1]": EMA, "trainer.callbacks[1].decay": 0.9}
    assert name_changes(two, {}, {}) == {"trainer.callbacks1": EMA, "trainer.callbacks1.decay": 0.9}
