"""Training with shares of the weights: equal to that of one process, what it refuses, and a step that is not finite."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from worlds import in_processes
from zoo_optimizers.adamw8bit import AdamW8bit
from zoo_optimizers.lion import Lion
from zoo_scale.strategies import check_optimizer, prepare_optimizer, shard_module, share_like

from zoo.errors import UsageError
from zoo.models.language import LanguageModel
from zoo.parts.attention import MultiHead
from zoo.parts.block import PreNorm
from zoo.tasks.muon import Muon
from zoo.training.nonfinite import all_finite

OPTIMIZERS = {
    "AdamW": lambda pairs: torch.optim.AdamW([p for _, p in pairs], lr=0.01),
    "SGD": lambda pairs: torch.optim.SGD([p for _, p in pairs], lr=0.1, momentum=0.9),
    "Lion": lambda pairs: Lion([p for _, p in pairs], lr=0.001),
    "Muon": lambda pairs: Muon(pairs, lr=0.01),
}


class Net(nn.Module):
    def __init__(self, block, attention=MultiHead):
        super().__init__()
        sizes = {"max_length": 8, "dim": 16, "depth": 2, "heads": 2, "hidden": 32}
        self.net = LanguageModel(16, **sizes, block=block, attention=attention)
        for number, parameter in enumerate(self.parameters()):
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) / 4)

    def training_step(self, tokens):
        states = self.net.states(tokens[:, :-1])
        return self.net.token_loss(states, tokens[:, 1:]) / tokens[:, 1:].numel()


class WholeStack(PreNorm):
    """Blocks that a stack does not call one by one."""

    @classmethod
    def through(cls, blocks, x, contexts):
        for block, context in zip(blocks, contexts, strict=True):
            x = block.forward(x, context)
        return x


def losses(net, optimizer, batches, parts):
    """The loss of each step, whose gradient is the mean over the parts of a batch: bit for bit that of two processes,
    which Muon needs, since bfloat16 makes the last digit of a gradient large.
    """
    values = []
    for batch in batches:
        optimizer.zero_grad()
        of_parts = [net.training_step(part) / parts for part in batch.chunk(parts)]
        for loss in of_parts:
            loss.backward()
        optimizer.step()
        values.append(sum(of_parts).detach())
    return torch.stack(values)


def compare_with_whole(rank, world, port, name, block):
    """Run in each process: a few steps with shares of the weights, and the same ones with whole weights."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    batches = torch.randint(16, (6, 4, 8), generator=torch.Generator().manual_seed(1))
    single, shared = Net(block), Net(block)
    expected = losses(single, OPTIMIZERS[name](list(single.named_parameters())), batches, world)
    shard_module(shared, init_device_mesh("cpu", (world,)))
    assert all(isinstance(p, DTensor) for p in shared.parameters())
    optimizer = OPTIMIZERS[name](list(shared.named_parameters()))
    prepare_optimizer(optimizer)
    actual = losses(shared, optimizer, [batch.chunk(world)[rank] for batch in batches], 1)
    dist.all_reduce(actual)
    torch.testing.assert_close(actual / world, expected, atol=1e-6, rtol=0)
    for (name, whole), share in zip(single.named_parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(share.full_tensor(), whole, atol=1e-6, rtol=0, msg=name)
        assert torch.equal(share_like(share.full_tensor(), share).to_local(), share.to_local())
    dist.barrier()
    dist.destroy_process_group()


def judge_values(rank, world, port):
    """Run in each process: a value that is not finite, in the share of one of them, is seen by both."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    for shape in ((6, 3), (7,), (1,)):
        for wrong in (None, float("nan"), float("inf"), -float("inf")):
            for place in (0, -1):
                whole = torch.ones(shape)
                if wrong is not None:
                    whole.view(-1)[place] = wrong
                share = share_like(whole, distribute_tensor(torch.ones(shape), mesh, [Shard(0)]))
                norm = torch.nn.utils.get_total_norm([share, share])
                assert all_finite(share) is all_finite(norm) is all_finite(torch.ones(1), share) is (wrong is None)
    dist.barrier()
    dist.destroy_process_group()


def compare_part_of_a_package(rank, world, port, attention, steps):
    """Run in each process: many steps in float64, where rounding does not hide a difference."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    batches = torch.randint(16, (steps, 4, 8), generator=torch.Generator().manual_seed(1))
    single, shared = Net(PreNorm, attention).double(), Net(PreNorm, attention).double()
    expected = losses(single, OPTIMIZERS["AdamW"](list(single.named_parameters())), batches, 1)
    shard_module(shared, init_device_mesh("cpu", (world,)))
    optimizer = OPTIMIZERS["AdamW"](list(shared.named_parameters()))
    actual = losses(shared, optimizer, [batch.chunk(world)[rank] for batch in batches], 1)
    dist.all_reduce(actual)
    torch.testing.assert_close(actual / world, expected, atol=1e-10, rtol=0)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("steps", [12, pytest.param(50, marks=pytest.mark.campaign)])
@pytest.mark.parametrize(
    "name",
    ["GatedDeltaNet", "MLA", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("Mamba2", "Differential"))],
)
def test_many_steps_of_a_part_of_a_package_are_those_of_one_process(name, steps):
    module = "mixer" if name in ("GatedDeltaNet", "Mamba2") else "attention"
    parts = pytest.importorskip(f"zoo_frontier.{module}", reason="the parts are those of the package zoo-frontier")
    in_processes(compare_part_of_a_package, 2, getattr(parts, name), steps)


CASES = [("AdamW", PreNorm), ("SGD", PreNorm), ("Lion", PreNorm), ("Muon", PreNorm), ("AdamW", WholeStack)]


@pytest.mark.parametrize(("optimizer", "block"), CASES)
def test_shares_train_as_the_whole(optimizer, block):
    in_processes(compare_with_whole, 2, optimizer, block)


def test_every_process_sees_a_share_that_is_not_finite():
    in_processes(judge_values, 2)


SPOIL = """
from lightning.pytorch import Callback
class Spoil(Callback):
    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        if trainer.global_rank == 1 and batch_idx == 4:
            def once(module, inputs, output):
                handle.remove()
                return output * float("nan")
            handle = task.net.stack.norm.register_forward_hook(once)
"""


@pytest.mark.campaign
@pytest.mark.parametrize(("policy", "code"), [("stop", 4), ("skip", 0), ("rewind", 0)])
def test_a_loss_that_is_not_finite_in_one_process_is_one_step_of_all(tmp_path, policy, code):
    (tmp_path / "spoil.py").write_text(SPOIL)
    words = (
        "fit lm-tiny --model.dim 32 --model.depth 1 --data.batch_size 4 --data.max_length 16 --trainer.max_steps 8 "
        "--trainer.val_check_interval 4 --trainer.limit_val_batches 2 --trainer.accelerator cpu --trainer.devices 2 "
        f"--trainer.strategy fsdp2 --allow-import spoil --save-every 2 --on-nonfinite {policy}"
    ).split()
    words += ["--trainer.callbacks", "[{class_path: spoil.Spoil}]"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "zoo", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.count("step 4: the loss is not finite, in epoch 0 batch 4") == 1


def test_an_optimizer_with_blocks_of_whole_tensors_is_refused_by_name():
    for kind in (AdamW8bit, torch.optim.Adafactor):
        with pytest.raises(UsageError, match=f"{kind.__name__}.*fsdp2"):
            check_optimizer(kind([nn.Linear(4, 4).weight]))
    with pytest.raises(UsageError, match=r"torch\.optim\.Muon.*bfloat16"):
        check_optimizer(torch.optim.Muon([nn.Linear(4, 4).weight]))
    check_optimizer(torch.optim.AdamW(nn.Linear(4, 4).parameters()))


def test_a_package_names_its_strategies():
    from zoo import registry

    assert registry.strategies()["fsdp2"] == "zoo_scale.strategies:FSDP2"
    assert not any("zoo.strategies" in flaw.reason for flaw in registry.metadata_flaws())


def test_disabling_a_package_takes_its_strategies_away(monkeypatch):
    from zoo import registry

    monkeypatch.setenv(registry.DISABLE_VARIABLE, "zoo-scale")
    assert "fsdp2" not in registry.strategies()
