"""What a run writes down of itself, and that the digests tell equal runs from others."""

import contextlib
import itertools
import json
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from tests.compare.fabricate import ledger
from tests.tasks.training import build
from zoo.compare.comparability import changed_tensors, other_batches
from zoo.compare.run_records import parse_record
from zoo.errors import UsageError
from zoo.io.atomic_files import remove_drafts
from zoo.io.content_digests import content_digest
from zoo.logging import run_record as module
from zoo.logging.run_record import Ledger, changed_settings, sample, tensor_bytes, tensors, write_json
from zoo.parts.position import NoPosition
from zoo.system import kernel_choice
from zoo.training.callbacks import CostMeter
from zoo.training.checkpoint import AtomicCheckpointIO, CheckpointSaver
from zoo.training.model_cost import cost
from zoo.training.setup import describe_configuration, make_logger_and_callbacks

MODEL = {"init_args": {"lr": 1e-3, "optimizer": {"class_path": "AdamW", "init_args": {}}, "backend": None}}
DATA = {"init_args": {"batch_size": 4, "max_length": 12, "num_workers": 3, "augment": "none"}}


class Stop(Callback):
    """Ends a run as a kill does: in the middle of an epoch, after a checkpoint."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(Path(trainer.default_root_dir, "stopped.ckpt"))
            raise InterruptedError


def run(folder, task="lm", options=None, seed=3, resume=None, callbacks=(), saves=True, **trainer):
    """Ten steps with a ledger; what it wrote."""
    home = folder / "recipe" / "position=rope" / f"s{seed}"
    folder.mkdir(exist_ok=True)
    real = torch.manual_seed
    with mock.patch.object(torch, "manual_seed", side_effect=lambda number: real(seed)):
        module, data = build(task, 4, folder, **(options or {}))
    record = Ledger(home, describe_configuration(MODEL, DATA))
    settings = {"max_steps": 10, "val_check_interval": 4, "check_val_every_n_epoch": None, "log_every_n_steps": 1}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    first = [CostMeter(cost(module)), *([CheckpointSaver(folder / "checkpoints")] if saves else []), record]
    fit = Trainer(
        default_root_dir=folder, use_distributed_sampler=False, callbacks=[*first, *callbacks],
        **{**settings, **quiet, **trainer},
    )  # fmt: skip
    with contextlib.suppress(InterruptedError):
        fit.fit(module, data, ckpt_path=resume, weights_only=True)
    path = home / "ledger.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_a_ledger_says_what_a_run_was_and_what_became_of_it(tmp_path):
    result = run(tmp_path)
    assert (result["format"], result["recipe"], result["variant"], result["seed"]) == (1, "recipe", "position=rope", 3)
    assert result["choices"] == {
        "lr": 1e-3, "optimizer": "AdamW", "backend": "None",
        "data.batch_size": 4, "data.max_length": 12, "data.augment": "none",
    }  # fmt: skip
    assert result["goals"] == {
        "loss": "min",
        "bits_per_byte": "min",
        "accuracy": "max",
        "accuracy_longer": "max",
        "exact": "max",
    }
    assert result["unit"] == "token"
    assert result["data"]["class"] == "TextFiles"
    assert len(result["data"]["fingerprint"]) == 64
    assert [each["step"] for each in result["validations"]] == [4, 8, 10]
    assert [each["tokens"] for each in result["validations"]] == [192, 384, 480]
    assert (result["steps"], result["tokens"], result["finished"]) == (10, 480, True)
    losses = [each["loss"] for each in result["validations"]]
    assert result["best"]["loss"] == min(losses)
    assert result["last"]["loss"] == losses[-1]
    assert set(result["last"]) == {"loss", "bits_per_byte", "perplexity"}
    setting = result["setting"]
    assert setting["batch"] == {"batch_size": 4, "max_length": 12}
    assert (setting["max_steps"], setting["processes"], setting["kernel"], setting["device"]) == (10, 1, "SDPA", "cpu")
    assert setting["threads"] == torch.get_num_threads()
    assert result["cost"]["parameters"] > 1000
    assert result["cost"]["tokens_per_s"] > 0
    assert result["cost"]["seconds"] > 0
    assert parse_record(tmp_path / "recipe/position=rope/s3/ledger.json").figure("loss") == result["best"]["loss"]


def test_the_same_seed_sees_the_same_and_starts_the_same(tmp_path):
    one, two = (run(tmp_path / name) for name in "ab")
    assert one["batches"] == two["batches"]
    assert one["batches"]["count"] == 10
    assert len(one["batches"]["first"]) == 8
    assert len(set(one["batches"]["first"])) == 8
    assert one["start"] == two["start"]
    other = run(tmp_path / "c", seed=4)
    assert other["batches"]["digest"] != one["batches"]["digest"]
    assert other["batches"]["first"] != one["batches"]["first"]
    differing = [name for name in one["start"] if other["start"][name] != one["start"][name]]
    assert "embedding.weight" in differing


@pytest.mark.parametrize("most", [3, pytest.param(None, marks=pytest.mark.campaign)], ids=["three", "all"])
@pytest.mark.parametrize("kind", ["position", "attention", "backend", "norm", "ffn", "block"])
def test_a_swapped_part_leaves_all_else_equal(kind, most, tmp_path):
    """Of every kind three parts, and in a campaign all: the same batches, and bit-identical tensors that both have."""
    from zoo import registry

    def trained(name):
        result = run(tmp_path / name, options={"position": NoPosition, kind: registry.get(kind, name)}, max_steps=3)
        read = parse_record(tmp_path / name / "recipe" / "position=rope" / "s3" / "ledger.json")
        return result["start"], replace(read, choices={kind: name}, seed=3)

    first, *others = [part.name for part in registry.parts(kind)][:most]
    usual, base = trained(first)
    assert base.batches["count"] == 3
    for name in others:
        # of plugins, some parts need a GPU or cannot be causal
        refusal = contextlib.nullcontext() if registry.find(kind, name).builtin else contextlib.suppress(UsageError)
        start = None
        with refusal:
            start, results = trained(name)
        if start is None:
            continue
        assert results.batches == base.batches, name
        assert changed_tensors(results, base) == [], name
        assert other_batches(results, base) == "", name
        shared = [tensor for tensor in start if start[tensor] == usual.get(tensor)]
        assert len(shared) >= 8, name


@pytest.mark.parametrize(
    ("task", "accumulate"), [pytest.param("lm", 1, marks=pytest.mark.campaign), ("lm", 2), ("classification", 1)]
)
def test_a_resumed_run_writes_what_an_uninterrupted_one_does(task, accumulate, tmp_path):
    options = {"accumulate_grad_batches": accumulate, "val_check_interval": 4 * accumulate}
    whole = run(tmp_path / "a", task, **options)
    half = run(tmp_path / "b", task, callbacks=[Stop(5)], **options)
    assert not half["finished"]
    assert half["batches"]["count"] == 4 * accumulate  # written at the last validation
    result = run(tmp_path / "b", task, resume=tmp_path / "b" / "stopped.ckpt", **options)
    for key in ("batches", "start", "validations", "best", "last", "steps", "tokens", "finished"):
        assert result[key] == whole[key], key
    assert result["cost"]["seconds"] > half["cost"]["seconds"]


def test_the_start_of_a_resumed_run_is_where_training_began(tmp_path):
    run(tmp_path, callbacks=[Stop(5)])
    ours = torch.load(tmp_path / "stopped.ckpt", weights_only=True)
    name = next(name for name in ours["callbacks"] if name.startswith("Ledger"))
    ours["callbacks"][name]["start"]["embedding.weight"] = "as the checkpoint says"
    AtomicCheckpointIO({}).save_checkpoint(ours, tmp_path / "changed.ckpt")
    result = run(tmp_path, resume=tmp_path / "changed.ckpt")
    assert result["start"]["embedding.weight"] == "as the checkpoint says"


def test_the_order_of_batches_matters(tmp_path):
    def digest(batches):
        record = Ledger(tmp_path, {})
        record._pending = [list(tensors(batch)) for batch in batches]
        record._digest()
        return record.batches["digest"]

    one, two = {"x": torch.arange(4)}, {"x": torch.arange(4) + 1}
    result = {
        digest([one, two]), digest([two, one]), digest([one]), digest([one, one]), digest([{"y": torch.arange(4)}]),
        digest([{"x": torch.arange(4).int()}]), digest([[torch.arange(4)]]),
    }  # fmt: skip
    assert len(result) == 7


def test_a_large_tensor_is_sampled_evenly():
    images = torch.rand(16, 3, 64, 64)
    part = sample(images)
    assert part.numel() * 4 <= module.SAMPLE
    for row in range(16):
        other = images.clone()
        other[row] = torch.rand(3, 64, 64)
        assert tensor_bytes(sample(other)) != tensor_bytes(part)
    small = torch.rand(8)
    assert torch.equal(sample(small), small)
    assert tensor_bytes(torch.ones(2, dtype=torch.bfloat16)) == b"\x80?\x80?"
    assert tensor_bytes(torch.tensor(True)) == b"\x01"


def test_batches_of_another_device_are_digested_together(tmp_path, monkeypatch):
    record, looked = Ledger(tmp_path, {}), Ledger(tmp_path, {})

    class Elsewhere:
        device = torch.device("cuda")

    class Fit:
        is_global_zero = True

    monkeypatch.setattr(module, "sample", lambda tensor: Elsewhere())
    monkeypatch.setattr(module, "tensor_bytes", lambda tensor: b"x")
    Elsewhere.dtype = torch.float32
    for count in range(module.PENDING - 1):
        record.on_train_batch_start(Fit(), None, {"x": torch.ones(1)}, count)
    assert record.batches["count"] == 0
    assert record.state_dict()["batches"]["count"] == module.PENDING - 1  # a checkpoint waits for none
    for count in range(module.PENDING):
        looked.on_train_batch_start(Fit(), None, {"x": torch.ones(1)}, count)
    assert looked.batches["count"] == module.PENDING


def test_the_kernels_of_a_run_are_recorded_and_a_resumed_run_repeats_them(tmp_path, monkeypatch):
    monkeypatch.delenv(kernel_choice.SWITCH)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_choice, "measure", lambda kernels: {"own": 1.0, "rival": 0.5})
    call, names = ("a call", 3), ("own", "rival")
    try:
        kernel_choice.forget()
        assert kernel_choice.choose(call, names, dict) == "rival"
        result = run(tmp_path)
        assert (result["kernels"]["mode"], result["kernels"]["choices"]["a call 3"]) == ("measured", "rival")
        state = json.loads(json.dumps(Ledger(tmp_path, {}).state_dict()))
        kernel_choice.forget()
        monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "another machine"))
        monkeypatch.setattr(kernel_choice, "measure", lambda kernels: {"own": 1.0, "rival": 2.0})
        assert kernel_choice.choose(call, names, dict) == "own"
        Ledger(tmp_path, {}).load_state_dict(state)
        assert kernel_choice.choose(call, names, dict) == "rival"
        del state["kernels"]  # of a checkpoint of an earlier version
        Ledger(tmp_path, {}).load_state_dict(state)
    finally:
        kernel_choice.forget()


def test_training_that_diverged_is_said_to_have(tmp_path):
    result = run(tmp_path, options={"lr": 1e30}, saves=False, val_check_interval=5)
    assert result["finished"]
    assert result["last"]["loss"] is None
    assert parse_record(tmp_path / "recipe/position=rope/s3/ledger.json").diverged_on("loss")
    fine = run(tmp_path / "fine")
    assert not parse_record(tmp_path / "fine/recipe/position=rope/s3/ledger.json").diverged_on("loss")
    assert all(value is not None for value in fine["last"].values())


def test_a_try_of_a_few_batches_writes_nothing(tmp_path):
    assert run(tmp_path, fast_dev_run=2) is None


def test_a_reader_never_sees_half_a_ledger(tmp_path):
    def write(path):
        for value in itertools.count():
            write_json(path, {"value": value, "long": ["x" * 100] * 2000})

    path = tmp_path / "ledger.json"
    for _ in range(4):
        writer = multiprocessing.get_context("fork").Process(target=write, args=(path,))
        writer.start()
        values, deadline = set(), time.monotonic() + 60  # a busy machine may start the writer late
        while len(values) < 5 and time.monotonic() < deadline:
            if path.exists():
                ledger = json.loads(path.read_text())
                assert len(ledger["long"]) == 2000
                values.add(ledger["value"])
        writer.kill()
        writer.join()
        assert len(values) == 5
        assert len(json.loads(path.read_text())["long"]) == 2000
    assert len(list(tmp_path.iterdir())) <= 5  # a kill leaves one draft at most, which the run's next start takes
    remove_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_json_has_no_word_for_what_is_not_finite(tmp_path):
    write_json(tmp_path / "a.json", {"a": float("nan"), "b": [float("inf"), 1.5, True, None], 3: Path("x")})
    result = json.loads((tmp_path / "a.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert result.pop("digest") == content_digest(result)
    assert result == {"a": None, "b": [None, 1.5, True, None], "3": "x"}


def test_every_run_carries_a_ledger_that_comes_before_its_checkpoints_are_saved(tmp_path):
    module, _ = build("lm", 4, tmp_path)
    carried = make_logger_and_callbacks(module, cost(module), tmp_path / "r" / "v" / "s1", MODEL, DATA)["callbacks"]
    ledgers = [item for item in carried if isinstance(item, Ledger)]
    assert len(ledgers) == 1
    assert ledgers[0].about["setting"]["batch"] == {"batch_size": 4, "max_length": 12}
    run(tmp_path / "a", callbacks=[CheckpointSaver(tmp_path / "c")], saves=False)
    state = torch.load(tmp_path / "c" / "last.ckpt", weights_only=True)["callbacks"]
    result = next(value for name, value in state.items() if name.startswith("Ledger"))
    assert [each["step"] for each in result["validations"]] == [4, 8, 10]


@pytest.mark.parametrize(
    ("key", "old", "new", "counts"),
    [
        ("model.lr", 0.1, 0.2, True),
        ("model.norm", "RMSNorm", "LayerNorm", True),
        ("model.vocab_size", None, 99, False),  # filled in by the data
        ("data.batch_size", 4, 8, True),
        ("data.num_workers", 0, 2, False),
        ("trainer.max_steps", 10, 20, True),
        ("trainer.devices", 1, 2, False),
        ("trainer.strategy", "auto", "ddp", False),
        ("trainer.strategy", "auto", "deepspeed_stage_2", True),
        ("trainer.plugins", None, ["MixedPrecision"], True),
        ("trainer.callbacks", [{"class_path": "EMA"}], None, True),
        ("on_nonfinite", "stop", "skip", True),
        ("data", {"fingerprint": "a"}, {"fingerprint": "b"}, True),
    ],
)
def test_a_resume_with_other_options_leaves_its_trace(key, old, new, counts):
    usual = {"model.dim": 8, "trainer.gradient_clip_val": 1.0}
    task = SimpleNamespace(data_sizes=("vocab_size",))
    changes = changed_settings({**usual, key: old}, {**usual, key: new}, task)
    assert changes == ({key: [old, new]} if counts else {})
    assert changed_settings({}, {key: new}, task) == {}


@pytest.mark.parametrize("place", [("last", "loss"), ("seed",), ("tokens",), ("code", "zoo", "source")])
def test_a_record_that_was_changed_by_hand_does_not_count(tmp_path, place):
    path = tmp_path / "toy" / "default" / "s1" / "ledger.json"
    content = ledger(recipe="toy")
    write_json(path, content)
    assert parse_record(path).problem == ""
    edited = json.loads(path.read_text())
    inner = edited
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "c0ffee" if isinstance(inner[place[-1]], str) else inner[place[-1]] * 2
    path.write_text(json.dumps(edited))
    assert "was changed after zoo wrote it" in parse_record(path).problem


@pytest.mark.parametrize("validations", [1, 2, 5, 10])
def test_seconds_and_speed_are_of_training_however_often_it_validates(tmp_path, validations):
    class Slow(Callback):
        def on_validation_batch_start(self, *_):
            time.sleep(0.05)

    result = run(
        tmp_path, callbacks=[Slow()], val_check_interval=10 // validations, limit_val_batches=4, log_every_n_steps=50
    )
    cost_of = result["cost"]
    assert len(result["validations"]) == validations
    assert cost_of["validation_seconds"] >= validations * 4 * 0.05
    assert cost_of["tokens_per_s"] == pytest.approx(result["tokens"] / cost_of["seconds"], rel=0.2)
    assert cost_of["seconds"] < 5 * 0.05 * 4 + 3  # whatever the number of validations
