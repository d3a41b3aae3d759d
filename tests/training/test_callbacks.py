"""What a run measures about itself, and that its last step is validated and kept."""

import itertools
import math
import sys
import types
from collections.abc import Iterable
from functools import partial

import lightning.pytorch.callbacks
import lightning.pytorch.loggers
import pytest
import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger

from tests.rows import try_each
from tests.tasks.training import build, train
from tests.training.test_resume import At, ask, fit
from zoo.cli.error_report import trainer_error
from zoo.errors import UsageError, root_cause
from zoo.inference.import_policy import LIGHTNING, apply_policy
from zoo.logging.tensorboard import RunLogger
from zoo.parts.attention import MultiHead
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.training.callbacks import CostMeter, PrintedLines
from zoo.training.checkpoint import CheckpointSaver
from zoo.training.distributed import watch_process
from zoo.training.ema import EMA
from zoo.training.model_cost import Cost, cost, state_bytes
from zoo.training.setup import display_value, refuse_unsupported
from zoo.training.signals import StopRequested


def steps(diary, name):
    return [step for step, metric, _ in diary.lines if metric == name]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("interval", "want"), [(4, [4, 8, 10]), (100, [10]), (5, [5, 10])])
def test_a_run_ends_with_a_validation(interval, want, accumulate, tmp_path):
    diary = train(
        "lm",
        4,
        tmp_path,
        max_steps=10,
        val_check_interval=interval * accumulate,
        accumulate_grad_batches=accumulate,
        callbacks=[CheckpointSaver(tmp_path / "checkpoints")],
        enable_checkpointing=True,
    )
    assert steps(diary, "val/loss") == want


def test_costs_are_logged_as_figures_of_the_run(tmp_path):
    meter = CostMeter(Cost(2_000_000, 3_000_000.0))
    diary = train("lm", 4, tmp_path, max_steps=20, val_check_interval=10, callbacks=[meter])
    assert diary.curve("cost/params_m") == [2.0]
    assert diary.curve("cost/mflops_per_token") == [3.0]
    assert all(value > 10 for value in diary.curve("cost/peak_memory_mb"))
    assert all(0 < value < math.inf for value in diary.curve("cost/tokens_per_s"))
    assert len(meter.rates) == 18  # a validation lies between two windows, and does not count


def test_speed_is_measured_over_the_steps_between_two_lines_of_the_log(tmp_path):
    meter = CostMeter(Cost(2_000_000, 3_000_000.0))
    train("lm", 4, tmp_path, max_steps=20, val_check_interval=20, callbacks=[meter], log_every_n_steps=5)
    assert len(meter.rates) == 3  # from step 5 to 10, 15 and 20


@pytest.mark.parametrize("accumulate", [1, 2, 5])
@pytest.mark.parametrize("every", [1, 4])
def test_speed_is_that_of_whole_steps_however_many_batches_they_have(tmp_path, monkeypatch, accumulate, every):
    """A clock that only optimizer steps move: a second each."""

    class Clock(Callback):
        now = 0.0

        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            self.now += 1.0

    clock, meter = Clock(), CostMeter(Cost(1, 1.0))
    monkeypatch.setattr("zoo.training.callbacks.time", types.SimpleNamespace(perf_counter=lambda: clock.now))
    options = {"log_every_n_steps": every, "accumulate_grad_batches": accumulate, "max_steps": 12}
    train("lm", 4, tmp_path, val_check_interval=24 * accumulate, callbacks=[clock, meter], **options)
    predictions = 4 * 12 * accumulate  # of a step
    assert meter.rates == [predictions] * (12 // every - 1)


def test_what_was_measured_before_a_resume_is_not_lost_and_not_said_twice(tmp_path):
    def meter_at(*stops):
        meter, options = CostMeter(Cost(2_000_000, 3_000_000.0)), {"every": 0}
        for turn, stop in enumerate(stops):
            with pytest.raises(StopRequested):
                fit("lm", tmp_path / str(stops), [meter, At("on_train_batch_end", stop, ask)], turn > 0, **options)
            meter = CostMeter(meter.cost)
        diary = fit("lm", tmp_path / str(stops), [meter], bool(stops), **options)[1]
        return len(meter.rates), [(step, name) for step, name, _ in diary if name.startswith("cost/")]

    count, logged = meter_at()
    for stops in ((4,), (2, 1, 3, 1), (5, 1, 1)):
        other, other_value = meter_at(*stops)
        assert other == count
        assert other_value == logged[-len(other_value) :]
    assert "cost/params_m" not in dict(map(reversed, other_value))


def test_the_peak_of_memory_is_that_of_all_lives_of_a_run():
    meter = CostMeter(Cost(1, 1.0))
    meter.load_state_dict({**meter.state_dict(), "peak": 2**50})
    assert meter.peak_memory() == meter.state_dict()["peak"] == 2**50


def test_flops_of_a_language_model_are_those_of_its_matrix_products(tmp_path):
    module, data = build("lm", 4, tmp_path, dim=16, depth=2, heads=2)
    result = cost(module)
    dim, length, vocabulary = 16, 12, data.sizes()["vocab_size"]
    block = 2 * (4 * dim * dim + 2 * dim * length + 8 * dim * dim)  # projections, scores and sums, feed-forward
    assert result.flops == 2 * block + 2 * dim * vocabulary
    assert result.parameters == sum(p.numel() for p in module.net.parameters())


@pytest.mark.parametrize(("options", "numbers"), [
    ({}, 2 * 2 * 12 * 16),  # keys and values of each layer
    ({"attention": partial(MultiHead, kv_heads=1)}, 2 * 2 * 12 * 8),
])  # fmt: skip
def test_the_state_of_a_language_model_is_what_decoding_keeps_of_a_text(options, numbers):
    module = CausalLM(vocab_size=20, max_length=12, dim=16, depth=2, heads=2, **options)
    assert cost(module).state_bytes == 4 * numbers


def test_a_state_that_looks_at_numbers_is_not_counted():
    class Hasty(torch.nn.Module):
        def begin(self, capacity):
            return self

        def step(self, tokens):
            return tokens[0, 0].item()

    text = torch.zeros(1, 4, dtype=torch.long, device="meta")
    assert state_bytes(Hasty(), text) is None
    assert state_bytes(torch.nn.Linear(2, 2), text) is None


def test_counting_leaves_the_model_alone(tmp_path):
    module, _ = build("translation", 4, tmp_path, tie="all")
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    cost(module)
    assert module.net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert module.net.source_embedding.weight is module.net.target_embedding.weight


def test_best_and_last_are_kept(tmp_path):
    saver = CheckpointSaver(tmp_path / "kept", ("top1", "max"))
    options = {"callbacks": [saver], "enable_checkpointing": True, "max_steps": 24, "val_check_interval": 4}
    diary = train("classification", 8, tmp_path, {"lr": 1e-12}, **options)
    scores = diary.curve("val/top1")
    assert scores == [scores[0]] * 6  # nothing is learned, so the first state stays the best
    steps_by_name = {
        path.stem: torch.load(path, weights_only=True)["global_step"] for path in saver.folder.glob("*.ckpt")
    }
    assert steps_by_name == {"best": 4, "previous": 20, "last": 24}
    assert saver.state.best == pytest.approx(scores[0])
    assert len(list((saver.folder / "manifests").iterdir())) == 3


def test_a_line_per_validation(tmp_path, capsys):
    train("lm", 4, tmp_path, max_steps=4, val_check_interval=2, callbacks=[PrintedLines()])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert [line.split(" · ")[0] for line in lines] == ["step 2/4", "step 4/4"]
    assert all("val/loss" in line and "val/bits_per_byte" in line for line in lines)


def test_a_part_is_told_by_its_name_and_what_it_changes():
    import zoo.parts.position  # noqa: F401  # defaults are looked up in imported modules only

    rope = "zoo.parts.position.RoPE"
    assert display_value({"class_path": rope, "init_args": {"base": 10000.0}}) == "RoPE"
    assert display_value({"class_path": rope, "init_args": {"base": 5.0}}) == "RoPE(base=5.0)"
    assert display_value(None) == "None"
    assert display_value(0.1) == 0.1


def test_a_model_that_begins_with_learned_tokens_can_be_counted():
    sizes = {"num_classes": 4, "image_size": 8, "channels": 1, "patch_size": 4, "dim": 16, "depth": 1, "heads": 2}
    more, less = (cost(Classification(**sizes, pool=pool)).flops for pool in ("cls", "mean"))
    assert more > less


def test_a_run_may_log_nothing_and_keeps_nothing_for_a_log(tmp_path):
    meter = CostMeter(Cost(1, 1.0))
    diary = train("lm", 4, tmp_path, log_every_n_steps=0, callbacks=[meter])
    assert not diary.curve("train/loss")
    assert not meter.rates


# callbacks with which the campaign of sequences has resumed runs to the bit, or that only watch
RESUMED = {
    "DeviceStatsMonitor", "EarlyStopping", "LearningRateMonitor", "ModelCheckpoint", "ModelSummary",
    "RichModelSummary", "RichProgressBar", "Timer", "TQDMProgressBar",
}  # fmt: skip


@try_each(itertools.product(sorted(LIGHTNING["callbacks"] | LIGHTNING["loggers"]), [False, True]))
def test_what_no_checkpoint_restores_is_refused_by_name(name, derived):
    cls = getattr(lightning.pytorch.callbacks, name, None) or getattr(lightning.pytorch.loggers, name)
    item = object.__new__(type("Own", (cls,), {}) if derived else cls)
    trainer = types.SimpleNamespace(callbacks=[item], loggers=[], strategy=None)
    if name in RESUMED:
        refuse_unsupported(trainer)
        return
    with pytest.raises(UsageError, match=f"^{'Own' if derived else name} cannot be used: "):
        refuse_unsupported(trainer)


def test_own_callbacks_and_the_own_logger_are_not_refused(tmp_path):
    refuse_unsupported(types.SimpleNamespace(callbacks=[EMA()], loggers=[RunLogger(tmp_path, "a", {})], strategy=None))


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_spawn_find_unused_parameters_true"])
def test_strategies_that_spawn_or_fork_are_refused(strategy):
    trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, logger=False, enable_checkpointing=False)
    with pytest.raises(UsageError, match=r"'trainer.strategy' starts processes by spawn or fork.* Take ddp"):
        watch_process(trainer)


STATEFUL = {"EarlyStopping": {"monitor": "val/loss"}, "EMA": {}, "ModelCheckpoint": {}, "Timer": {}}


@pytest.mark.parametrize("name", STATEFUL)
def test_two_callbacks_that_share_their_state_are_refused(name):
    cls = EMA if name == "EMA" else getattr(lightning.pytorch.callbacks, name)
    with pytest.raises(RuntimeError) as raised:
        Trainer(callbacks=[cls(**STATEFUL[name]), cls(**STATEFUL[name])], logger=False, accelerator="cpu")
    error = trainer_error(raised.value)
    assert isinstance(error, UsageError)
    assert name in str(error)


class Fussy(Callback, CSVLogger):
    """A callback and a logger that refuses its options."""

    def __init__(self, error: str = "UsageError"):
        raise {"UsageError": UsageError, "ValueError": ValueError, "RuntimeError": RuntimeError}[error]("too large")


UNIONS = {"callbacks": list[Callback] | Callback | None, "logger": Logger | Iterable[Logger] | bool | None}


@pytest.mark.parametrize("option", UNIONS)
@pytest.mark.parametrize("wrap", [lambda item: item, lambda item: [item]], ids=["single", "list"])
@pytest.mark.parametrize("error", ["UsageError", "ValueError", "RuntimeError"])
def test_the_cause_is_what_a_constructor_says_whatever_else_the_option_may_be(option, wrap, error, monkeypatch):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--x", type=UNIONS[option])
    config = Namespace(x=wrap(Namespace(class_path=f"{Fussy.__module__}.Fussy", init_args=Namespace(error=error))))
    monkeypatch.setitem(sys.modules, Fussy.__module__, types.SimpleNamespace(Fussy=Fussy))
    apply_policy((Fussy.__module__.partition(".")[0],))  # a command may have set one in this process
    try:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - jsonargparse's own
            parser.instantiate(config)
    finally:
        apply_policy()
    cause = root_cause(raised.value)
    assert (type(cause).__name__, str(cause)) == (error, "too large")


@pytest.mark.parametrize("kind", [KeyError, OSError, RuntimeError])
def test_an_error_that_is_its_own_cause_has_an_end(kind):
    error = kind("broken")
    error.__cause__ = error  # as `raise error from error` leaves it
    assert root_cause(error) is error
    assert trainer_error(error) is None
