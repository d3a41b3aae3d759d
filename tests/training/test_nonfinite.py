"""Steps that are not finite, parts wrong by more than rounding, parameters without use, memory that ran out."""

import json
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import StrategyRegistry, ddp
from lightning.pytorch.utilities import rank_zero_only

from tests.tasks.training import build, train
from tests.training.test_resume import At
from zoo.errors import NonFiniteError, UsageError
from zoo.parts.norm import LayerNorm
from zoo.tasks.lm import CausalLM
from zoo.tasks.loss_log import Loss
from zoo.training import distributed, out_of_memory
from zoo.training.checkpoint import CheckpointSaver
from zoo.training.nonfinite import NonFiniteGuard
from zoo.training.precision_check import PrecisionCheck, compare_with_float64, report_errors


def spoil(monkeypatch, number):
    """The loss of one batch, by its number, becomes infinite times nothing."""
    real, steps = CausalLM.training_step, []

    def training_step(self, batch, batch_idx):
        steps.append(batch_idx)
        loss = real(self, batch, batch_idx)
        if len(steps) in ([number] if isinstance(number, int) else number):
            self.step_losses[-1] = self.step_losses[-1] * float("nan")
            return loss * float("nan")
        return loss

    monkeypatch.setattr(CausalLM, "training_step", training_step)


def guarded(home, policy="stop", **options):
    saver = CheckpointSaver(home / "checkpoints", every=1)
    return train("lm", 4, home, {}, callbacks=[NonFiniteGuard(home, policy), saver], **options)


def test_a_step_that_is_not_finite_stops_before_the_weights_change(tmp_path, monkeypatch):
    spoil(monkeypatch, 5)
    with pytest.raises(NonFiniteError) as caught:
        guarded(tmp_path, accumulate_grad_batches=2, enable_checkpointing=True)
    text = str(caught.value)
    assert text.startswith("step 2: the loss is not finite, in epoch 0 batch 4, epoch 0 batch 5 (samples ")
    assert f"last good checkpoint: {tmp_path}/checkpoints/last.ckpt" in text
    assert "reproduce it: zoo fit" in text
    assert len(text.splitlines()) == 4
    record = json.loads((tmp_path / "nonfinite.json").read_text())
    assert [len(one) for one in record["samples"]] == [4, 4]
    checkpoint = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 2
    assert all(value.isfinite().all() for value in checkpoint["state_dict"].values() if value.is_floating_point())


def test_skipping_leaves_weights_and_optimiser_alone(tmp_path, monkeypatch, capsys):
    states = []
    look = At("on_train_batch_end", 3, lambda trainer: states.append(copied(trainer)))
    after = At("on_train_batch_end", 4, lambda trainer: states.append(copied(trainer)))
    spoil(monkeypatch, 4)
    diary = train(
        "lm", 4, tmp_path, {}, callbacks=[NonFiniteGuard(tmp_path, "skip"), look, after], gradient_clip_val=1.0
    )
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))
    assert diary.weights.isfinite().all()
    assert "the loss is not finite, in epoch 0 batch 3" in capsys.readouterr().err


def test_the_loss_of_a_step_that_is_left_out_is_in_no_line_of_the_log(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(CausalLM, "_write", lambda self, figures, step: lines.append((step, figures.get("train/loss"))))
    for policy in ("skip", "rewind"):
        for number in (1, 2):  # batches that are accumulated: a step is left out with all of its batches
            step = [2 * number - 1, 2 * number] if number == 2 else [2]
            home = tmp_path / f"{policy}{number}"
            home.mkdir()
            real, calls, losses = CausalLM.loss, [], []

            def loss(self, batch, real=real, calls=calls, losses=losses, bad=step, number=number):
                total, size = real(self, batch)
                if torch.is_grad_enabled():  # neither a validation nor the search for the origin
                    calls.append(len(calls) + 1)
                    total = total * float("nan") if calls[-1] in bad else total
                    losses.append((float(total), int(size)))
                return Loss(total, size)

            with monkeypatch.context() as patch:
                patch.setattr(CausalLM, "loss", loss)
                lines.clear()
                savers = [CheckpointSaver(home / "checkpoints", every=1)] if policy == "rewind" else []
                options = {"accumulate_grad_batches": number, "enable_checkpointing": bool(savers)}
                train(
                    "lm", 4, home, {}, callbacks=[NonFiniteGuard(home, policy), *savers], log_every_n_steps=4, **options
                )
            remaining = [pair for index, pair in enumerate(losses[: 4 * number]) if index // number != 1]
            mean = sum(total for total, _ in remaining) / sum(size for _, size in remaining)
            assert dict(line for line in lines if line[1] is not None)[4] == pytest.approx(mean, rel=1e-5)


def copied(trainer):
    state = trainer.optimizers[0].state_dict()["state"]
    moments = [value.clone() for one in state.values() for value in one.values()]
    return [p.detach().clone() for p in trainer.lightning_module.parameters()] + moments


def test_steps_left_out_in_a_row_are_counted_over_a_resume(tmp_path):
    guard = NonFiniteGuard(tmp_path, "skip")
    guard.skipped, guard.in_a_row = 7, 3
    resumed = NonFiniteGuard(tmp_path, "skip")
    resumed.load_state_dict(guard.state_dict())
    assert (resumed.skipped, resumed.in_a_row) == (7, 3)


class Swapping(torch.optim.AdamW):
    """Has half of the weights for evaluation, and keeps in its groups which they are, as schedule-free AdamW does."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for group in self.param_groups:
            group["train_mode"] = False

    def change(self, mode, factor):
        for group in self.param_groups:
            for parameter in group["params"] if group["train_mode"] != mode else ():
                parameter.data.mul_(factor)
            group["train_mode"] = mode

    def train(self):
        self.change(True, 2.0)

    def eval(self):
        self.change(False, 0.5)

    def step(self, closure=None):
        self.train()
        return super().step(closure)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, Swapping])
def test_rewinding_takes_the_weights_of_the_last_checkpoint(optimizer, tmp_path, monkeypatch):
    """Behind a validation it has those of evaluation, from which training goes on with its own."""
    spoil(monkeypatch, 4)
    states = []

    def keep(trainer):
        getattr(trainer.optimizers[0], "train", lambda: None)()
        states.append(copied(trainer))

    look = At("on_train_batch_end", 4, keep)
    saver = CheckpointSaver(tmp_path / "checkpoints", every=2)
    options = {"enable_checkpointing": True, "callbacks": [NonFiniteGuard(tmp_path, "rewind"), saver, look]}
    old = []
    options["callbacks"].append(At("on_train_batch_end", 2, lambda trainer: old.append(copied(trainer))))
    train("lm", 4, tmp_path, {"optimizer": optimizer}, val_check_interval=2, **options)
    assert all(torch.equal(*pair) for pair in zip(states[0], old[0], strict=True))


def test_the_part_where_it_begins_is_named(tmp_path, monkeypatch):
    def poisoned(trainer):
        with torch.no_grad():
            for module in trainer.lightning_module.modules():
                if isinstance(module, LayerNorm):
                    module.register_forward_hook(lambda *args: args[-1] * float("inf"))
                    return

    with pytest.raises(NonFiniteError, match=r"not finite, from net\.stack\.blocks\.0\.attend\.norm on"):
        train("lm", 4, tmp_path, {}, callbacks=[NonFiniteGuard(tmp_path), At("on_train_batch_end", 2, poisoned)])


def test_rehearsal_leaves_no_trace_and_logs_small_errors(tmp_path):
    unchecked = train("lm", 4, tmp_path, {"dropout": 0.1})
    watched = train("lm", 4, tmp_path, {"dropout": 0.1}, callbacks=[PrecisionCheck()])
    assert torch.equal(unchecked.weights, watched.weights)
    errors = {name: value for _, name, value in watched.lines if name.startswith("numerics/")}
    assert 0 < max(errors.values()) < 1e-5
    assert "numerics/stack.blocks.0.attend.part" in errors


def test_a_part_that_is_wrong_by_more_than_rounding_is_named(tmp_path, capsys):
    def coarse(module, inputs, output):
        return output.to(torch.bfloat16).to(output.dtype) if output.dtype == torch.float32 else output

    class Spoil(PrecisionCheck):
        def on_train_batch_start(self, trainer, pl_module, *args):
            pl_module.net.stack.blocks[0].ffn.part.register_forward_hook(coarse)
            super().on_train_batch_start(trainer, pl_module, *args)

    train("lm", 4, tmp_path, {}, callbacks=[Spoil(policy="warn")], max_steps=1)
    errors = capsys.readouterr().err
    assert "warning: stack.blocks.0.ffn.part differs from float64 by" in errors
    assert "warning: stack.blocks.0.ffn.part, ffn MLP, differs from its formula in float64 by" in errors


def test_a_part_that_enlarges_rounding_of_its_inputs_is_not_named(tmp_path):
    """Nearly equal numbers lose digits; exact differences of rounded numbers are no fault of the part."""

    class Difference(torch.nn.Module):
        def forward(self, x):
            return (x.double() - x.double().mean(-1, keepdim=True)).to(x.dtype)

    class Coarse(Difference):
        def forward(self, x):
            return super().forward(x).to(torch.bfloat16).to(x.dtype) if x.dtype == torch.float32 else super().forward(x)

    class Large(torch.nn.Module):
        def __init__(self, part):
            super().__init__()
            self.add, self.part = Add(), part

        def forward(self, x, *others):
            return self.part(self.add(x))

    class Add(torch.nn.Module):
        def forward(self, x):
            return x + 3000.0

    class Fake:
        precision, loggers = "32-true", ()

        class precision_plugin:  # noqa: N801
            forward_context = staticmethod(torch.enable_grad)

    for part, names in ((Difference(), set()), (Coarse(), {"stack.norm.part"})):
        module, data = build("lm", 4, tmp_path)
        module.net.stack.norm = Large(part)
        data.setup()
        comparison = compare_with_float64(Fake, module, next(iter(data.train_dataloader())))
        assert comparison.errors["stack.norm.part"] > 1e-4
        assert comparison.wrong.keys() & {"stack.norm.part"} == names


def test_parameters_without_use_are_named_before_training(tmp_path, capsys):
    module, data = build("lm", 4, tmp_path)
    module.net.stack.spare = torch.nn.Linear(3, 3)
    data.setup()

    class Fake:
        precision, loggers, strategy = "32-true", (), SimpleNamespace(model=module)

        class precision_plugin:  # noqa: N801
            forward_context = staticmethod(torch.enable_grad)

    comparison = compare_with_float64(Fake, module, next(iter(data.train_dataloader())))
    assert comparison.unused == ["net.stack.spare.weight", "net.stack.spare.bias"]
    report_errors(Fake, comparison)
    assert "nothing uses the parameters net.stack.spare.weight, net.stack.spare.bias" in capsys.readouterr().err
    Fake.strategy = SimpleNamespace(model=SimpleNamespace(find_unused_parameters=False))
    with pytest.raises(UsageError, match="ddp_find_unused_parameters_true"):
        report_errors(Fake, comparison)


class FakeProcessGroup:
    accumulate_grad_batches, global_step = 2, 7

    class strategy:  # noqa: N801
        root_device = torch.device("cpu")


class Batched:
    batch_size = 12


class Masked:
    batch_size = 12

    def __init__(self, text):
        self.text = text


def test_what_would_fit():
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
    assert out_of_memory.is_out_of_memory(error)
    assert not out_of_memory.is_out_of_memory(RuntimeError("something else"))
    text = str(out_of_memory.explain_out_of_memory(error, FakeProcessGroup, Batched))
    assert "out of memory at step 7 with data.batch_size=12: about batch_size=6 would fit" in text
    assert text.endswith("--data.batch_size 6 --trainer.accumulate_grad_batches 4")
    FakeProcessGroup.val_check_interval, FakeProcessGroup.limit_val_batches = 50, 1.0
    text = str(out_of_memory.explain_out_of_memory(error, FakeProcessGroup, Masked(Batched)))
    assert "with data.text.batch_size=12" in text
    right = "--data.text.batch_size 6 --trainer.accumulate_grad_batches 4 --trainer.val_check_interval 100"
    assert text.endswith(right)
    assert out_of_memory.scale_batch(64, 100, 160, 20) == 36
    assert out_of_memory.required_bytes("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0") == int(1.5 * 2**30)


def test_processes_that_agree_wait_no_longer_than_the_job(monkeypatch):
    from zoo.training import signals

    timeouts = []
    monkeypatch.setattr(signals.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(signals.dist, "new_group", lambda **options: timeouts.append(options))

    class Trainer:
        world_size = 2

    signals.Agreement(Trainer)
    assert timeouts == [{"backend": "gloo", "timeout": distributed.PATIENCE}]


@pytest.mark.parametrize("name", ["ddp", "ddp_find_unused_parameters_true"])
def test_a_strategy_by_name_waits_no_longer_than_that(name, monkeypatch):
    from lightning.pytorch import Trainer

    for entry in StrategyRegistry.values():
        monkeypatch.setitem(entry, "init_params", dict(entry["init_params"]))
    distributed.set_timeouts()
    trainer = Trainer(strategy=name, devices=2, accelerator="cpu", logger=False, enable_checkpointing=False)
    timeouts = []
    monkeypatch.setattr(ddp, "_init_dist_connection", lambda *_, **options: timeouts.append(options["timeout"]))
    trainer.strategy.setup_environment()
    assert timeouts == [distributed.PATIENCE]


def test_of_a_job_the_first_process_says_what_is_not_finite(monkeypatch, capsys):
    from zoo.cli.error_report import report_error

    error = NonFiniteError("step 3: the loss is not finite")
    for everywhere, rank, count in ((True, 0, 1), (True, 1, 0), (False, 1, 1)):
        error.everywhere = everywhere
        monkeypatch.setattr(rank_zero_only, "rank", rank)
        assert report_error(error) == 4
        assert capsys.readouterr().err.count("step 3") == count


def test_a_lost_process_is_told_from_other_errors():
    class Trainer:
        world_size, global_rank = 2, 1

        class strategy:  # noqa: N801
            launcher = None

    message = distributed.explain_lost_process(
        RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1234"), Trainer
    )
    assert "process 1 of 2 lost the connection to another one" in str(message)
    assert distributed.explain_lost_process(RuntimeError("shapes do not match"), Trainer) is None
    assert distributed.error_text(1, -9, 2) == "process 1 of 2 was ended by SIGKILL"
