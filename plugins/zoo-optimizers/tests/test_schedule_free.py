"""Weights of evaluation and of training stand in each other's place, and an interrupted run goes on exactly."""

import sys

import pytest
import torch
from torch import nn
from zoo_optimizers import SOAP, ScheduleFreeAdamW

from zoo.data.text import TextFiles
from zoo.errors import UsageError
from zoo.tasks.lm import CausalLM
from zoo.tasks.schedule import Constant


@pytest.fixture
def schedulefree():
    return pytest.importorskip("schedulefree", reason="it computes ScheduleFreeAdamW")


@pytest.fixture
def pytorch_optimizer():
    return pytest.importorskip("pytorch_optimizer", reason="it computes SOAP")


def fit(folder, **options):
    from lightning.pytorch import Callback, Trainer

    class Watch(Callback):
        """Keeps the weights by the moment at which they are seen."""

        def __init__(self):
            self.weights = {}

        def keep(self, moment, module):
            self.weights.setdefault(moment, []).append(nn.utils.parameters_to_vector(module.net.parameters()).clone())

        def on_after_backward(self, trainer, module):
            self.keep("gradient", module)

        def on_validation_batch_start(self, trainer, module, *batch):
            self.keep("validation", module)

        def on_save_checkpoint(self, trainer, module, checkpoint):
            self.keep("checkpoint", module)

    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("a bird in the hand is worth two in the bush. " * 40)
    data = TextFiles(str(folder / "text.txt"), tokenizer="chars", max_length=16, batch_size=4)
    data.ready()
    torch.manual_seed(1)
    sizes = {"max_length": 16, **data.sizes(), "dim": 16, "depth": 1, "heads": 2}
    task = CausalLM(**sizes, lr=0.01, optimizer=ScheduleFreeAdamW, schedule=Constant)
    watch = Watch()
    trainer = Trainer(
        max_steps=6, val_check_interval=3, limit_val_batches=1, num_sanity_val_steps=0, logger=False, callbacks=[watch],
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, accelerator="cpu", **options,
    )  # fmt: skip
    trainer.fit(task, data)
    trainer.save_checkpoint(folder / "end.ckpt")
    return watch.weights, task, trainer


def test_validations_and_checkpoints_have_the_average_and_gradients_do_not(tmp_path, schedulefree):
    weights, task, trainer = fit(tmp_path)
    optimizer = trainer.optimizers[0]
    assert isinstance(optimizer.members[0], schedulefree.AdamWScheduleFree)
    assert not any(group["train_mode"] for group in optimizer.param_groups)
    assert torch.equal(weights["checkpoint"][-1], weights["validation"][-1])
    optimizer.train()
    interpolated = nn.utils.parameters_to_vector(task.net.parameters()).clone()
    assert not torch.equal(interpolated, weights["validation"][-1])
    newest = torch.cat([optimizer.members[0].state[p]["z"].flatten() for p in task.net.parameters()])
    expected = 0.9 * weights["validation"][-1] + 0.1 * newest
    torch.testing.assert_close(interpolated, expected, atol=1e-6, rtol=0)
    assert not torch.equal(weights["gradient"][3], weights["validation"][0])


def test_both_learn_a_quadratic_as_the_libraries_do(schedulefree, pytorch_optimizer):
    for own, theirs, options in (
        (SOAP, pytorch_optimizer.SOAP, {"betas": (0.9, 0.95), "weight_decay": 0.1}),
        (ScheduleFreeAdamW, schedulefree.AdamWScheduleFree, {"betas": (0.9, 0.99), "weight_decay": 0.1}),
    ):
        torch.manual_seed(0)
        start, target = torch.randn(2, 6, 4)
        results = []
        for cls in (own, theirs):
            parameter = nn.Parameter(start.clone())
            optimizer = cls([parameter], lr=0.02, **options)
            getattr(optimizer, "train", lambda: None)()
            for _ in range(15):
                parameter.grad = parameter.detach() - target
                optimizer.step()
            results.append(parameter.detach())
        assert torch.equal(*results)
        assert (results[0] - target).norm() < (start - target).norm()


@pytest.mark.parametrize(("cls", "module"), [(SOAP, "pytorch_optimizer"), (ScheduleFreeAdamW, "schedulefree")])
def test_a_library_that_is_not_installed_is_named(cls, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"pip install {module.replace('_', '-')}"):
        cls([nn.Parameter(torch.zeros(2))])


@pytest.mark.parametrize(("cls", "options", "words"), [
    (SOAP, {"precondition_frequency": 0}, "counts steps"), (SOAP, {"betas": (1.0, 0.9)}, "from 0 to below 1"),
    (ScheduleFreeAdamW, {"betas": (0.0, 0.9)}, "begin above 0"),
    (ScheduleFreeAdamW, {"weight_decay": -1.0}, "weight_decay must be at least 0"),
])  # fmt: skip
def test_impossible_options_are_refused(cls, options, words):
    with pytest.raises(UsageError, match=words):
        cls([nn.Parameter(torch.zeros(2))], **options)
