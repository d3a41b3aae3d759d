"""The loaders inside of a real Trainer."""

import lightning
import pytest
import torch

from zoo.data.digits import Digits
from zoo.data.text import TextFiles


class Watcher(lightning.LightningModule):
    """Notes what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches_read: list[tuple[int, list[int]]] = []
        self.validated = 0

    def training_step(self, batch, number):
        self.batches_read.append((self.current_epoch, batch["inputs"].flatten().tolist()))
        return self.weight * 1.0

    def validation_step(self, batch, number):
        self.validated += int((batch["targets"] >= 0).sum())

    def test_step(self, batch, number):
        self.validation_step(batch, number)

    def predict_step(self, batch, number):
        return len(batch["inputs"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.fixture
def make(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("".join(chr(97 + (i * 7919) % 26) for i in range(700)))
    return lambda **options: TextFiles(str(path), max_length=8, batch_size=8, seed=1, **options)


def trainer(**options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(**quiet, use_distributed_sampler=False, **{"enable_checkpointing": False, **options})


def fit(data, ckpt=None, **options):
    model, runner = Watcher(), trainer(**options)
    runner.fit(model, datamodule=data, ckpt_path=ckpt, weights_only=True)
    return model, runner


def test_epochs_differ_and_a_run_repeats(make):
    first, _ = fit(make(), max_epochs=2)
    again, _ = fit(make(), max_epochs=2)
    assert first.batches_read == again.batches_read
    epochs = [[rows for epoch, rows in first.batches_read if epoch == number] for number in (0, 1)]
    assert len(epochs[0]) == len(epochs[1]) == len(make().train_dataloader())
    assert epochs[0] != epochs[1]
    assert first.validated == 3 * 69  # in the sanity check too, whose two batches are all


def test_workers_change_nothing(make):
    alone, _ = fit(make(), max_epochs=2, limit_val_batches=0)
    helped, _ = fit(make(num_workers=1), max_epochs=2, limit_val_batches=0)
    assert alone.batches_read == helped.batches_read


class SaveAt(lightning.Callback):
    """Writes a checkpoint in the middle of training, as a run does that is killed later."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(("stop", "workers"), [(1, 0), (3, 0), (10, 0), (14, 0), (14, 1)])  # an epoch has ten batches
def test_a_resumed_run_sees_what_an_uninterrupted_one_sees(make, tmp_path, stop, workers):
    path = tmp_path / "a.ckpt"
    whole, _ = fit(make(), max_epochs=3, limit_val_batches=0, callbacks=[SaveAt(stop, path)])
    assert len(whole.batches_read) == 30
    resumed, _ = fit(make(num_workers=workers), path, max_epochs=3, limit_val_batches=0)
    assert [rows for _, rows in resumed.batches_read] == [rows for _, rows in whole.batches_read[stop:]]


def test_other_batches_restart_the_epoch_with_a_warning(make, tmp_path, caplog):
    fit(make(), max_epochs=1, limit_val_batches=0, callbacks=[SaveAt(3, tmp_path / "a.ckpt")])
    data = make()
    data.batch_size = 4
    with caplog.at_level("WARNING"):
        fit(data, tmp_path / "a.ckpt", max_epochs=1, limit_val_batches=0)
    assert "its epoch starts anew" in caplog.text


def test_testing_and_prediction_see_everything(make):
    model, runner = Watcher(), trainer()
    data = make()
    runner.test(model, datamodule=data, verbose=False)
    assert model.validated == 69
    result = runner.predict(model, datamodule=data)
    assert result is not None
    assert sum(result) == len(data.datasets["test"])


def test_overfitting_repeats_the_same_batch(make):
    model, _ = fit(make(), max_epochs=3, overfit_batches=1)
    assert len(model.batches_read) == 3
    assert len({tuple(rows) for _, rows in model.batches_read}) == 1


def test_loading_leaves_the_global_random_state_alone():
    data = Digits(seed=0, augment="shift")
    data.setup()
    state = torch.get_rng_state()
    for loader in (data.train_dataloader(), data.val_dataloader()):
        for _ in loader:
            pass
    assert torch.equal(state, torch.get_rng_state())
