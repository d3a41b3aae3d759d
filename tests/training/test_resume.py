"""A run that was interrupted and goes on ends as the one that nobody disturbed, to the last bit."""

import contextlib
import shutil
import signal

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping

from tests.campaigns.chaos.toys import differences, digest
from tests.covering import choices_in_turn
from tests.tasks.training import Diary, build
from zoo.errors import CheckpointError, UsageError
from zoo.io import checkpoint_manifest
from zoo.training import rng_state
from zoo.training.checkpoint import AtomicCheckpointIO, CheckpointSaver
from zoo.training.signals import StopRequested

STEPS = 14
LIMITS = {"limit_train_batches": 9, "limit_val_batches": 2}


class At(Callback):
    """Does something at a moment, which is counted in batches."""

    def __init__(self, hook, moment, act):
        self.countdown, self.act = moment, act
        setattr(self, hook, self.count)

    def count(self, trainer, *_):
        self.countdown -= 1
        if self.countdown == 0:
            self.act(trainer)


def ask(trainer):
    signal.raise_signal(signal.SIGTERM)


def die(trainer):
    raise KeyError("as if the power had failed")


def fit(
    task,
    home,
    callbacks=(),
    resume=None,
    every=4,
    workers=0,
    goal=None,
    other_data=False,
    other_recipe=False,
    other_callbacks=False,
    **options,
):
    """Train; what is left at the end, and the diary."""
    home.mkdir(parents=True, exist_ok=True)
    seed_everything(3, verbose=False)
    module, data = build(task, 4, home.parent, dropout=0.1, **({"mix": "mixup"} if task == "classification" else {}))
    data.num_workers = workers
    metric = goal or next(iter(module.monitored_metrics.items()))
    diary, saver = Diary(), CheckpointSaver(home / "checkpoints", metric, every)
    saver.state.other_data, saver.state.other_recipe = other_data, other_recipe
    saver.state.other_callbacks = other_callbacks
    trainer = Trainer(
        accelerator="cpu", logger=diary, callbacks=[saver, *callbacks],
        log_every_n_steps=3, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False, default_root_dir=home,
        **{"max_steps": STEPS, "val_check_interval": 5, "check_val_every_n_epoch": None, **LIMITS, **options},
    )  # fmt: skip
    start = saver.folder / "last.ckpt" if resume is True else resume or None
    trainer.fit(module, data, ckpt_path=start, weights_only=True)
    return saved_state(home), diary.lines


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What `fit` gives for a task and options where nothing happens: once for all tests that compare with it."""
    cached = {}

    def run(task, **options):
        key = (task, *sorted(options.items()))
        if key not in cached:
            cached[key] = fit(task, tmp_path_factory.mktemp("undisturbed") / "whole", **options)
        return cached[key]

    return run


def saved_state(home):
    """Digests of both checkpoints."""
    result = {}
    for name in ("last", "best"):
        content = torch.load(home / "checkpoints" / f"{name}.ckpt", weights_only=True)
        parts = ("state_dict", "optimizer_states", "lr_schedulers", "ranks", "best", "measured", "global_step")
        result |= {f"{name}.{part}": digest(content[part]) for part in parts}
    return result


@pytest.mark.parametrize(
    ("task", "accumulate", "hook", "moment"),
    [
        ("lm", 1, "on_train_batch_end", 9),  # the last batch of an epoch
        ("lm", 3, "on_train_batch_end", 11),  # in the middle of an epoch, and of a step
        ("lm", 1, "on_validation_batch_start", 2),  # a validation is cut short
        ("lm", 1, "on_validation_batch_start", 6),  # that of the last step
        ("translation", 2, "on_train_batch_end", 5),
        pytest.param("classification", 1, "on_train_batch_end", 12, marks=pytest.mark.campaign),
        ("stream", 1, "on_train_batch_end", 9),
    ],
)
def test_a_signal_stops_between_two_steps_and_nothing_differs(task, accumulate, hook, moment, tmp_path, undisturbed):
    options = {"accumulate_grad_batches": accumulate, "every": 0}
    whole, diary = undisturbed(task, **options)
    with pytest.raises(StopRequested) as stopped:
        fit(task, tmp_path / "cut", [At(hook, moment, ask)], **options)
    assert (stopped.value.code, stopped.value.saved) == (143, True)
    content = torch.load(tmp_path / "cut/checkpoints/last.ckpt", weights_only=True)
    assert content["global_step"] == stopped.value.step
    resumed, told_then = fit(task, tmp_path / "cut", resume=True, **options)
    assert differences(resumed, whole) == []
    assert diary[-len(told_then) :] == told_then  # with the losses of before among them


@pytest.mark.parametrize("moment", [4, 6, 8])
def test_a_run_that_went_back_to_an_older_checkpoint_goes_on_with_what_it_saved_since(moment, tmp_path, undisturbed):
    whole, _ = undisturbed("lm")
    home, older = tmp_path / "back", tmp_path / "older.ckpt"
    fit("lm", home, [At("on_train_batch_end", 6, lambda _: shutil.copy(home / "checkpoints/last.ckpt", older))])
    start = torch.load(older, weights_only=True)["global_step"]
    with pytest.raises(KeyError, match="power"):
        fit("lm", home, [At("on_train_batch_end", moment, die)], resume=older)
    newest = checkpoint_manifest.newest_intact(home / "checkpoints").path
    assert start < checkpoint_manifest.verify(newest)["step"] < start + moment
    best = home / "checkpoints/best.ckpt"
    assert not best.exists() or checkpoint_manifest.verify(best)["step"] < start + moment
    resumed, _ = fit("lm", home, resume=newest)
    assert differences(resumed, whole) == []


def end(trainer):
    trainer.should_stop = True


# how a run ends: options of the trainer, and callbacks of each of its lives
ENDS = {
    "epochs": ({"max_steps": -1, "max_epochs": 2}, list),
    "epochs before steps": ({"max_steps": 99, "max_epochs": 2}, list),
    "steps before epochs": ({"max_steps": 13, "max_epochs": 5}, list),
    "epochs that validate seldom": (
        {"max_steps": -1, "max_epochs": 2, "check_val_every_n_epoch": 3, "val_check_interval": 1.0}, list),
    "asked within a step": ({"max_epochs": 4}, lambda: [AtBatch(13)]),
    "asked after an epoch": (
        {"max_epochs": 4, "check_val_every_n_epoch": 3, "val_check_interval": 1.0}, lambda: [AtEpoch(1)]),
    "early": ({"max_steps": 40}, lambda: [EarlyStopping("val/loss", min_delta=9.0, patience=2)]),
    "early after an epoch": (
        {"max_steps": 40, "check_val_every_n_epoch": 1, "val_check_interval": 1.0},
        lambda: [EarlyStopping("val/loss", min_delta=9.0, patience=1)]),
}  # fmt: skip


class AtBatch(Callback):
    """Asks a run to end after its n-th batch, as a timer does."""

    def __init__(self, batch):
        self.batch = batch

    def on_train_batch_end(self, trainer, *_):
        if trainer.fit_loop.epoch_loop.total_batch_idx + 1 >= self.batch:
            end(trainer)


class AtEpoch(AtBatch):
    """Asks a run to end after an epoch."""

    def on_train_batch_end(self, trainer, *_):
        pass

    def on_train_epoch_end(self, trainer, *_):
        if trainer.current_epoch >= self.batch:
            end(trainer)


STOPS = [
    ("on_train_batch_end", 4),
    ("on_train_batch_end", 12),  # within the second epoch
    ("on_validation_batch_start", 2),  # the last one of some
    ("on_validation_batch_start", 3),
]


@pytest.mark.parametrize(("how", "stop", "accumulate"), choices_in_turn(ENDS, STOPS, [1, 2]))
def test_a_run_validates_what_it_ends_with_and_goes_on_exactly_however_it_ends(how, stop, accumulate, tmp_path):
    options, callbacks = ENDS[how]
    options = {**options, "accumulate_grad_batches": accumulate}
    whole, diary = fit("lm", tmp_path / "whole", callbacks(), **options)
    last = torch.load(tmp_path / "whole/checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert [step for step, name, _ in diary if name == "val/loss"].count(last) == 1
    with contextlib.suppress(StopRequested):
        fit("lm", tmp_path / "cut", [At(*stop, ask), *callbacks()], **options)
    for _ in range(2):  # the second has nothing left to do
        resumed, _ = fit("lm", tmp_path / "cut", callbacks(), resume=True, **options)
        assert differences(resumed, whole) == []


@pytest.mark.parametrize("options", [{"max_steps": 0}, {"max_epochs": 0}, {"max_time": "00:00:00:00"}], ids=str)
def test_a_run_of_no_step_is_validated_and_saved_and_goes_on_as_any_other(options, tmp_path):
    _, diary = fit("lm", tmp_path / "cut", **options)
    assert [step for step, name, _ in diary if name == "val/loss"] == [0]
    whole, _ = fit("lm", tmp_path / "whole")
    resumed, _ = fit("lm", tmp_path / "cut", resume=True)
    assert resumed["last.global_step"] == whole["last.global_step"]
    if "max_time" in options:  # another number of steps is another schedule, from its first step on
        assert resumed["last.state_dict"] == whole["last.state_dict"]


LATER_ENDS = {
    "within an epoch": (lambda: [AtBatch(6)], lambda: [AtBatch(15)]),
    "where an epoch ends": (lambda: [AtBatch(9)], lambda: [AtBatch(15)]),
    "an epoch later": (lambda: [AtEpoch(0)], lambda: [AtEpoch(1)]),
    "more patience": (
        lambda: [EarlyStopping("val/loss", min_delta=9.0, patience=1)],
        lambda: [EarlyStopping("val/loss", min_delta=9.0, patience=3)]),
    "endless patience": (lambda: [EarlyStopping("val/loss", min_delta=9.0, patience=1)], list),
}  # fmt: skip


@pytest.mark.parametrize(("how", "accumulate"), choices_in_turn(LATER_ENDS, [1, 2]))
def test_a_run_that_was_stopped_goes_on_with_more_patience_or_time(how, accumulate, tmp_path):
    short, more = LATER_ENDS[how]
    options = {"max_steps": 20, "accumulate_grad_batches": accumulate}
    whole, _ = fit("lm", tmp_path / "whole", more(), **options)
    before, _ = fit("lm", tmp_path / "cut", short(), **options)
    same, _ = fit("lm", tmp_path / "cut", short(), resume=True, **options)
    assert differences(same, before) == []
    resumed, _ = fit("lm", tmp_path / "cut", more(), resume=True, other_callbacks=True, **options)
    training = ("last.state_dict", "last.optimizer_states", "last.lr_schedulers", "last.ranks", "last.global_step")
    assert [name for name in differences(resumed, whole) if name in training] == []


@pytest.mark.parametrize(("batches", "step"), [(2, 3), (2, 8), (4, 3), (5, 4), (9, 2), (4, 2)])
def test_steps_that_an_epoch_cuts_short_are_counted_and_said(batches, step, tmp_path, capsys):
    options = {"limit_train_batches": batches, "accumulate_grad_batches": step, "max_steps": 3}
    if batches < step:
        with pytest.raises(UsageError, match=f"{step} batches does not fit an epoch of {batches}"):
            fit("lm", tmp_path / "run", **options)
        assert not any(tmp_path.rglob("*.ckpt"))
        return
    fit("lm", tmp_path / "run", **options)
    line = f"the last step of each epoch has {batches % step} batches instead of {step}"
    assert (line in capsys.readouterr().out) == bool(batches % step)


BATCHES = 11  # of a stream's epoch


def last_batch(trainer):
    """Fail unless the stream has ended."""
    assert not trainer.train_dataloader.has_more
    ask(trainer)


@pytest.mark.parametrize(
    ("stops", "accumulate", "workers"),
    [
        ([("on_train_batch_end", 3, ask), ("on_train_batch_end", 4, ask)], 1, 2),  # twice in an epoch
        pytest.param(  # where one ends
            [("on_train_batch_end", BATCHES, last_batch), ("on_train_batch_start", 1, die)],
            1,
            0,
            marks=pytest.mark.campaign,
        ),
        pytest.param(
            [("on_train_batch_end", BATCHES, last_batch), ("on_train_batch_end", 2, ask)],
            1,
            2,
            marks=pytest.mark.campaign,
        ),
        ([("on_train_batch_start", 1, die), ("on_train_batch_end", 1, ask)], 1, 0),  # before the first batch
        pytest.param(
            [("on_validation_batch_start", 1, ask), ("on_train_batch_end", BATCHES - 5, last_batch)],
            1,
            0,
            marks=pytest.mark.campaign,
        ),
        ([("on_validation_batch_start", 1, ask), ("on_validation_batch_start", 1, ask)], 2, 2),  # the same validation
        ([("on_train_batch_end", BATCHES, last_batch), ("on_train_batch_end", 1, ask)], 3, 0),  # the last step is short
    ],
)
def test_a_stream_goes_on_where_it_stood(stops, accumulate, workers, tmp_path, undisturbed):
    options = {"accumulate_grad_batches": accumulate, "every": 2, "limit_train_batches": 1.0}
    whole, diary = undisturbed("stream", **options)
    for turn, (hook, moment, act) in enumerate(stops):
        with pytest.raises((StopRequested, KeyError)):
            fit("stream", tmp_path / "cut", [At(hook, moment, act)], turn > 0, workers=workers * turn, **options)
    resumed, told_then = fit("stream", tmp_path / "cut", resume=True, workers=workers, **options)
    assert differences(resumed, whole) == []
    assert diary[-len(told_then) :] == told_then


def test_a_limit_ends_a_streams_epoch_and_validates(tmp_path):
    epochs = []

    class Note(Callback):
        def on_train_batch_start(self, trainer, *_):
            epochs.append((trainer.current_epoch, trainer.train_dataloader.served))

    options = {"limit_train_batches": 4, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
    _, diary = fit("stream", tmp_path / "limited", [Note()], **options)
    assert epochs == [(step // 4, step % 4 + 1) for step in range(STEPS)]
    assert [step for step, name, _ in diary if name == "val/loss"] == [4, 8, 12, 14]


def test_a_stream_validates_where_its_epoch_ends(tmp_path):
    options = {"limit_train_batches": 1.0, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
    _, diary = fit("stream", tmp_path / "whole", **options)
    assert [step for step, name, _ in diary if name == "val/loss"] == [BATCHES, STEPS]


@pytest.mark.parametrize(
    ("task", "workers", "accumulate"),
    [
        ("lm", 0, 1),
        ("translation", 0, 2),
        pytest.param("classification", 2, 1, marks=pytest.mark.campaign),
    ],
)
def test_a_validation_that_is_stopped_again_after_each_resume_loses_no_batch(
    task, workers, accumulate, tmp_path, undisturbed
):
    options = {"accumulate_grad_batches": accumulate, "every": 0, "workers": workers}
    whole, diary = undisturbed(task, **{**options, "workers": 0})
    for turn in range(3):
        with pytest.raises(StopRequested):
            fit(task, tmp_path / "cut", [At("on_validation_batch_start", 2, ask)], turn > 0, **options)
    resumed, told_then = fit(task, tmp_path / "cut", resume=True, **options)
    assert differences(resumed, whole) == []
    assert diary[-len(told_then) :] == told_then


@pytest.mark.parametrize("kill", ["on_train_batch_start", "on_train_batch_end"])
def test_a_run_that_dies_after_it_has_repeated_a_validation_loses_no_batch(kill, tmp_path, undisturbed):
    options = {"every": 0, "accumulate_grad_batches": 1}
    whole, diary = undisturbed("lm", **options)
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "cut", [At("on_validation_batch_start", 2, ask)], **options)
    with pytest.raises(KeyError):
        fit("lm", tmp_path / "cut", [At(kill, 1, die)], resume=True, **options)
    resumed, told_then = fit("lm", tmp_path / "cut", resume=True, **options)
    assert differences(resumed, whole) == []
    assert diary[-len(told_then) :] == told_then


@pytest.mark.parametrize("batches", [3, 4])  # the validation after the fifth is within an epoch
def test_batches_that_all_epochs_repeat_go_on_where_they_stood(batches, tmp_path):
    options = {"overfit_batches": batches, "limit_train_batches": None}
    whole, _ = fit("lm", tmp_path / "whole", **options)
    for turn, moment in enumerate((batches, 2, 1)):  # at the end of an epoch, and within others
        with pytest.raises(StopRequested):
            fit("lm", tmp_path / "cut", [At("on_train_batch_end", moment, ask)], turn > 0, **options)
    resumed, _ = fit("lm", tmp_path / "cut", resume=True, **options)
    assert differences(resumed, whole) == []


def test_a_checkpoint_of_an_older_version_goes_on_where_it_was_taken(tmp_path, undisturbed):
    whole, _ = undisturbed("lm")
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "cut", [At("on_train_batch_end", 7, ask)])
    last = tmp_path / "cut/checkpoints/last.ckpt"
    content = torch.load(last, weights_only=True)
    del content["saves"], content["callbacks"]["CheckpointSaver"]["metrics"]
    del content["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["plan"][-1]
    AtomicCheckpointIO({}).save_checkpoint(content, last)
    resumed, _ = fit("lm", tmp_path / "cut", resume=True)
    assert differences(resumed, whole) == []


def test_what_was_measured_is_there_after_a_resume_for_those_who_stop_early_by_it(tmp_path):
    measured = []
    look = At("on_train_batch_start", 1, lambda trainer: measured.append(dict(trainer.callback_metrics)))
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "a", [At("on_train_batch_end", 7, ask)])
    fit("lm", tmp_path / "a", [look], resume=True)
    assert {"loss", "val/loss"} <= measured[0].keys()  # of steps 6 and 5


def test_values_of_other_data_are_no_longer_the_best(tmp_path):
    home = tmp_path / "a"
    path = home / "checkpoints" / "best.ckpt"

    def states():
        """The saver's best value, the task's, and what early stopping remembers, of last.ckpt."""
        content = torch.load(path.with_name("last.ckpt"), weights_only=True)
        callbacks = content["callbacks"].items()
        saver = next(state for name, state in callbacks if "CheckpointSaver" in name)
        stopping = next(state for name, state in callbacks if "EarlyStopping" in name)
        return saver["best"], content["best"].get("loss"), float(stopping["best_score"])

    def fit_with_patience(moment, **options):
        callbacks = [EarlyStopping("val/loss", patience=9), At("on_train_batch_end", moment, ask)]
        with pytest.raises(StopRequested):
            fit("lm", home, callbacks, **options)

    fit_with_patience(7)
    assert len({round(value, 5) for value in states()}) == 1
    fit_with_patience(1, resume=True, other_data=True)  # stops before the new data are validated
    assert states() == (None, None, float("inf"))
    assert not path.exists()
    fit_with_patience(3, resume=True)
    assert len({round(value, 5) for value in states()}) == 1
    assert path.exists()


@pytest.mark.parametrize("task", [pytest.param("lm", marks=pytest.mark.campaign), "translation", "classification"])
def test_the_same_recipe_and_seed_give_the_same_run_twice(task, tmp_path):
    one, two = (fit(task, tmp_path / name, workers=workers) for name, workers in (("a", 0), ("b", 2)))
    assert differences(one[0], two[0]) == []
    assert one[1] == two[1]


@pytest.mark.parametrize(("accumulate", "workers"), [(1, 0), (3, 2)])
def test_a_run_that_died_is_repeated_from_its_last_checkpoint(accumulate, workers, tmp_path, undisturbed):
    options = {"accumulate_grad_batches": accumulate, "workers": workers}
    whole, diary = undisturbed("lm", **{**options, "workers": 0})
    with pytest.raises(KeyError):
        fit("lm", tmp_path / "cut", [At("on_train_batch_end", 7 * accumulate, die)], **options)
    assert torch.load(tmp_path / "cut/checkpoints/last.ckpt", weights_only=True)["global_step"] < 7
    resumed, told_then = fit("lm", tmp_path / "cut", resume=True, **options)
    assert differences(resumed, whole) == []
    assert diary[-len(told_then) :] == told_then


def test_a_kill_between_the_best_and_the_last_loses_neither(tmp_path, monkeypatch):
    from zoo.training import checkpoint

    upside_down = {"goal": ("loss", "max")}  # the first validation stays the best
    whole, _ = fit("lm", tmp_path / "whole", **upside_down)
    real, names = checkpoint.atomic_files.link_file, []

    def link(source, path):
        names.append(path.name)
        if names.count("last.ckpt") == 1:
            raise KeyError("killed")
        real(source, path)

    monkeypatch.setattr(checkpoint.atomic_files, "link_file", link)
    with pytest.raises(KeyError):
        fit("lm", tmp_path / "cut", **upside_down)
    monkeypatch.setattr(checkpoint.atomic_files, "link_file", real)
    newest = checkpoint_manifest.newest_intact(tmp_path / "cut").path
    assert newest.name == "best.ckpt"
    resumed, _ = fit("lm", tmp_path / "cut", resume=newest, **upside_down)
    assert differences(resumed, whole) == []


def test_a_kill_between_the_best_and_the_last_after_the_last_step_leaves_both_names(tmp_path, monkeypatch):
    from zoo.training import checkpoint

    real, names = checkpoint.atomic_files.link_file, []

    def link(source, path):
        names.append(path.name)
        if names.count("last.ckpt") == deadly:
            raise KeyError("killed")
        real(source, path)

    monkeypatch.setattr(checkpoint.atomic_files, "link_file", link)
    deadly = -1
    whole, _ = fit("lm", tmp_path / "whole")
    deadly, names[:] = names.count("last.ckpt"), []
    with pytest.raises(KeyError):
        fit("lm", tmp_path / "cut")
    deadly = -1
    newest = checkpoint_manifest.newest_intact(tmp_path / "cut")
    assert (newest.path.name, checkpoint_manifest.verify(newest.path)["step"]) == ("best.ckpt", STEPS)
    resumed, _ = fit("lm", tmp_path / "cut", resume=newest.path)
    assert differences(resumed, whole) == []


def test_generators_go_on_where_they_stood():
    import random

    import numpy as np

    here = torch.device("cpu")
    before = rng_state.capture(here)
    first = torch.rand(3).tolist(), np.random.rand(), random.gauss(0, 1)
    rng_state.restore(torch.load(saved(before), weights_only=True), here)
    assert (torch.rand(3).tolist(), np.random.rand(), random.gauss(0, 1)) == first


def saved(value):
    import io

    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_a_run_that_ended_says_so_again_and_one_with_more_steps_goes_on_within_the_epoch(tmp_path):
    whole, _ = fit("lm", tmp_path / "whole")
    again, diary = fit("lm", tmp_path / "whole", resume=True)
    assert (differences(again, whole), diary) == ([], [])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_other_processes_report_each_loss_once(world, tmp_path, capsys):
    import types

    from tests.tasks.training import build
    from zoo.tasks.task import Loss

    losses = [[(1.0, 2), (3.0, 4)], [(5.0, 6)], []]  # of three processes
    ranks = []
    for own in losses:
        task, _ = build("lm", 4, tmp_path)
        task.loss_log.losses = [Loss(torch.tensor(total), torch.tensor(size)) for total, size in own]
        ranks.append({"chance": rng_state.capture(torch.device("cpu")), "unreported": task.loss_log.state()})
    result = []
    for rank in range(world):
        saver, (task, _) = CheckpointSaver(tmp_path), build("lm", 4, tmp_path)
        strategy = types.SimpleNamespace(root_device=torch.device("cpu"))
        saver.trainer = types.SimpleNamespace(
            global_rank=rank, world_size=world, is_global_zero=rank == 0, strategy=strategy,
            train_dataloader=types.SimpleNamespace(anew=world == 1),
        )  # fmt: skip
        saver.task, saver.state.processes = task, ranks
        saver.on_loop_start()
        result += [(float(one.total), int(one.size)) for one in task.loss_log.losses]
    assert sorted(result) == [(1.0, 2), (3.0, 4), (5.0, 6)]
    reports = {
        1: "warning: from 3 processes to 1: the batches are others; data.batch_size or data.max_tokens times 3 / 1",
        2: "warning: from 3 processes to 2: the batches stay the same, random numbers such as those of dropout do not",
    }
    assert capsys.readouterr().err.startswith(reports.get(world, ""))


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_is_removed_while_its_run_trains_ends_it(again, tmp_path):
    def remove(trainer):
        shutil.rmtree(tmp_path / "run")
        if again:
            (tmp_path / "run/checkpoints").mkdir(parents=True)

    with pytest.raises(CheckpointError, match="was removed or moved while its run was training"):
        fit("lm", tmp_path / "run", [At("on_train_batch_end", 6, remove)])


@pytest.mark.parametrize("precision", ["64-true", "16-true", "bf16-true", "bf16-mixed", "16-mixed"])
def test_a_run_of_any_precision_goes_on_exactly(precision, tmp_path):
    """Beside float32, in which all tests above train."""
    whole, _ = fit("lm", tmp_path / "whole", precision=precision)
    with pytest.raises(StopRequested):
        fit("lm", tmp_path / "cut", [At("on_train_batch_end", 7, ask)], precision=precision)
    resumed, _ = fit("lm", tmp_path / "cut", resume=True, precision=precision)
    assert differences(resumed, whole) == []
