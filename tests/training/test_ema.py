"""EMA: the average that it takes, what checkpoints hold of it, and the options that it refuses."""

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from tests.campaigns.chaos.toys import differences, digest
from tests.training.test_resume import At, ask, fit
from zoo.config.run_folder import differences as name_changes
from zoo.errors import UsageError
from zoo.training.checkpoint import CheckpointSaver
from zoo.training.ema import CURRENT, EMA
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
        share = min(decay, (1 + count) / (10 + count)) if count > 0 and average else 0.0
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


def test_averages_of_a_checkpoint_go_on_where_the_weights_are():
    """A checkpoint is read onto the CPU; the weights may be elsewhere, here on the device of tensors without memory."""
    module, resumed = SimpleNamespace(state_dict=lambda keep_vars: weights), EMA(0.9)
    weights = {"net.weight": torch.ones(3, 2, device="meta")}
    resumed.load_state_dict({"updates": 4, "step": 5, "averages": {"net.weight": torch.zeros(3, 2)}})
    resumed.on_train_batch_end(SimpleNamespace(global_step=6), module, None, None, 5)
    assert resumed.updates == 5
    assert resumed.averages["net.weight"].device == weights["net.weight"].device


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "16-true", "bf16-mixed"])
def test_weights_of_any_type_are_averaged_in_32_bits_or_more_and_go_on(precision, tmp_path):
    whole, _ = fit("lm", tmp_path / "whole", [EMA(0.9)], precision=precision)
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "cut", [EMA(0.9), At("on_validation_batch_start", 3, ask)], precision=precision)
    resumed, _ = fit("lm", tmp_path / "cut", [EMA(0.9)], resume=True, precision=precision)
    assert differences(resumed, whole) == []
    content = torch.load(tmp_path / "whole/checkpoints/last.ckpt", weights_only=True)
    averages = content["callbacks"]["EMA"]["averages"]
    wide = torch.float64 if precision == "64-true" else torch.float32
    assert {average.dtype for average in averages.values()} == {wide}
    for name, average in averages.items():
        assert torch.equal(average.to(content["state_dict"][name].dtype), content["state_dict"][name])


@pytest.mark.parametrize(
    "options", [{"start": 14}, {"every": 15}, {"start": 20, "every": 3}, {"start": 13, "every": 2}]
)
def test_before_its_first_update_the_average_is_the_newest_weights(options, tmp_path):
    unaveraged, diary = fit("lm", tmp_path / "plain")
    first_update = options.get("start", 0) < 14 and 14 % options.get("every", 1) == 0
    got, averaged_diary = fit("lm", tmp_path / "averaged", [EMA(**options)])
    assert ([line for line in averaged_diary if line[0] < 14], averaged_diary == diary) == (
        [line for line in diary if line[0] < 14], True,
    )  # fmt: skip
    assert first_update or differences(got, unaveraged) == []


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end", "on_train_end"])
def test_current_weights_of_a_checkpoint_are_those_of_training_whenever_it_is_saved(hook, tmp_path):
    """Also while averages are in their place: in a validation, and after the end."""
    fit("lm", tmp_path / "plain", [At(hook, 1, save)])
    fit("lm", tmp_path / "averaged", [EMA(0.9), At(hook, 1, save)])
    unaveraged, averaged = (
        torch.load(tmp_path / run / "extra.ckpt", weights_only=True) for run in ("plain", "averaged")
    )
    assert digest(averaged["current_model_state"]) == digest(unaveraged["state_dict"])
    assert digest(averaged["state_dict"]) != digest(unaveraged["state_dict"]) or averaged["global_step"] == 1


def save(trainer):
    """Save beside the run's own checkpoints."""
    trainer.save_checkpoint(Path(trainer.default_root_dir, "extra.ckpt"))


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


def test_a_run_that_goes_on_without_averages_has_the_weights_of_training(tmp_path):
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "cut", [EMA(0.9), At("on_train_batch_end", 5, ask)])
    checkpoint = torch.load(tmp_path / "cut/checkpoints/last.ckpt", weights_only=True)

    class Look(Callback):
        def on_train_start(self, trainer, pl_module):
            self.state = {name: value.clone() for name, value in pl_module.state_dict().items()}

    look = Look()
    fit("lm", tmp_path / "cut", [look], resume=True)
    averages, own = checkpoint["state_dict"], checkpoint[CURRENT]
    assert any(not torch.equal(averages[name], own[name]) for name in own)
    assert all(torch.equal(look.state[name], own[name]) for name in own)


class Weight(LightningModule):
    """A single weight, and what each function of the trainer has as its value."""

    def __init__(self):
        super().__init__()
        self.weight, self.values = torch.nn.Parameter(torch.zeros(1)), []

    def training_step(self, batch, batch_idx):
        return (self.weight - 10).square().sum()

    def validation_step(self, batch, batch_idx):
        self.values.append(float(self.weight))

    test_step = predict_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("function", ["validate", "test", "predict"])
def test_what_measures_a_checkpoint_sees_the_averages(function, tmp_path):
    rows = DataLoader(torch.zeros(4, 1))
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_steps=4, enable_checkpointing=False, callbacks=[EMA(0.9)], **quiet)
    trainer.fit(Weight(), rows)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    checkpoint = torch.load(tmp_path / "a.ckpt", weights_only=True)
    average, own = (float(checkpoint[key]["weight"]) for key in ("state_dict", CURRENT))
    assert average != own
    module = Weight()
    run = getattr(Trainer(callbacks=[EMA(0.9)], **quiet), function)
    run(module, rows, ckpt_path=tmp_path / "a.ckpt", weights_only=True)
    assert set(module.values) == {average}


def test_an_optimizer_that_averages_the_weights_itself_is_refused():
    """Both would put an average in the place of the weights, each into that of the other."""
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    averaging = type("Averaging", (torch.optim.SGD,), {"eval": lambda self: None, "train": lambda self: None})
    EMA().on_train_start(SimpleNamespace(optimizers=[torch.optim.AdamW(parameters)]), None)
    with pytest.raises(UsageError, match="Averaging evaluates an average"):
        EMA().on_train_start(SimpleNamespace(optimizers=[averaging(parameters)]), None)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_looks_at_a_run_behind_a_validation_sees_the_averages(is_first, tmp_path):
    """Whatever the order of callbacks is, and training goes on with its own weights."""
    ema, equal = EMA(0.5), []

    class Look(Callback):
        def on_validation_end(self, trainer, pl_module):
            equal.append([torch.equal(weight, ema.averages[name]) for name, weight in pl_module.named_parameters()])

    fit("lm", tmp_path / "run", [ema, Look()] if is_first else [Look(), ema])
    assert len(equal) > 1
    assert all(map(all, equal))
