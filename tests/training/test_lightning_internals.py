"""One canary for each private name of Lightning: it sings until Lightning changes the name."""

import functools
import types

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loops import fetchers, fit_loop, training_epoch_loop
from lightning.pytorch.strategies.launchers import multiprocessing, subprocess_script

from tests.private_names import ROOT, Canary, check, uses

PATH = "zoo/training/lightning_internals.py"


@functools.cache
def trainer():
    return Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu", devices=1)


def canaries():
    batches, launcher = training_epoch_loop._TrainingEpochLoop, subprocess_script._SubprocessScriptLauncher
    return [
        Canary("lightning", fit_loop, "_FitLoop"),
        Canary("lightning", training_epoch_loop, "_TrainingEpochLoop"),
        Canary("lightning", batches, "_should_accumulate", ("self",)),
        Canary("lightning", batches, "_should_check_val_fx", ("self", "data_fetcher")),
        Canary("lightning", batches, "_broadcast_sigterm_tensor", ("self",)),
        Canary("lightning", batches, "_num_ready_batches_reached", ("self",)),
        Canary("lightning", fit_loop._FitLoop, "_can_stop_early"),
        Canary("lightning", lambda: trainer().fit_loop.epoch_loop, "_batches_that_stepped"),
        Canary("lightning", trainer, "_signal_connector"),
        Canary("lightning", fetchers, "_PrefetchDataFetcher"),
        Canary("lightning", lambda: trainer().fit_loop, "_data_fetcher"),
        Canary("lightning", lambda: trainer().fit_loop, "_combined_loader"),
        Canary("lightning", ModelCheckpoint(), "_every_n_train_steps"),
        Canary("lightning", ModelCheckpoint(), "_train_time_interval"),
        Canary("lightning", ModelCheckpoint(), "_save_on_train_epoch_end"),
        Canary("lightning", EarlyStopping("val/loss"), "_check_on_train_epoch_end"),
        Canary("lightning", subprocess_script, "_SubprocessScriptLauncher"),
        Canary("lightning", multiprocessing, "_MultiProcessingLauncher"),
        Canary("lightning", launcher, "_call_children_scripts", ("self",)),
    ]


def canary_names():
    return [canary.name for canary in canaries()]


def canary(name):
    result = next(one for one in canaries() if one.name == name)
    return result._replace(owner=result.owner()) if result.owner is trainer else result


@pytest.mark.parametrize("name", canary_names())
def test_lightning_has_the_name(name):
    check(canary(name), PATH)


@pytest.mark.parametrize("name", canary_names())
def test_a_missing_name_is_said_in_one_sentence(name):
    with pytest.raises(AssertionError, match=rf"^lightning 2\.\S+ has no {name}: {PATH} needs it\.") as failed:
        check(canary(name)._replace(owner=types.SimpleNamespace()), PATH)
    assert "\n" not in str(failed.value).partition("needs it.")[0]


def test_other_parameters_are_said_in_one_sentence():
    changed = canary("_should_check_val_fx")._replace(parameters=("self", "fetcher", "batch"))
    with pytest.raises(AssertionError, match=r"^lightning 2\.\S+ has _should_check_val_fx\('self', 'data_fetcher'\): "):
        check(changed, PATH)


def test_every_name_has_a_canary():
    names = {one.name.rpartition(".")[2] for one in uses(ROOT / PATH)} - {"__class__"}
    assert names == set(canary_names())


def test_signal_handlers_are_asked_for_what_zoos_have():
    connector = trainer()._signal_connector
    for name in ("register_signal_handlers", "teardown", "received_sigterm"):
        assert hasattr(connector, name), name
