"""Training with shares of the weights: equal to that of one process, what it refuses, and a step that is not finite."""

import socket

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing import start_processes
from zoo_scale.strategies import check_optimizer, prepare_optimizer, shard_module, share_like

from zoo.errors import UsageError
from zoo.models.language import LanguageModel
from zoo.parts.block import PreNorm
from zoo.tasks.adamw8bit import AdamW8bit
from zoo.tasks.lion import Lion
from zoo.tasks.muon import Muon

OPTIMIZERS = {
    "AdamW": lambda named: torch.optim.AdamW([p for _, p in named], lr=0.01),
    "SGD": lambda named: torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9),
    "Lion": lambda named: Lion([p for _, p in named], lr=0.001),
    "Muon": lambda named: Muon(named, lr=0.01),
}


class Net(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.net = LanguageModel(16, max_length=8, dim=16, depth=2, heads=2, hidden=32, block=block)
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


def in_processes(function, count, *words):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_processes(function, (count, port, *words), nprocs=count, start_method="fork")


CASES = [("AdamW", PreNorm), ("SGD", PreNorm), ("Lion", PreNorm), ("Muon", PreNorm), ("AdamW", WholeStack)]


@pytest.mark.parametrize(("optimizer", "block"), CASES)
def test_shares_train_as_the_whole(optimizer, block):
    in_processes(compare_with_whole, 2, optimizer, block)


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
