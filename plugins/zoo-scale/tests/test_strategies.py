"""Training with shares of the weights equals training in one process, and so do its checkpoints."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn
from zoo_scale.strategies import check_optimizer

from zoo.errors import UsageError
from zoo.tasks.adamw8bit import AdamW8bit

WORKER = """
import sys, os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from zoo.models.language import LanguageModel
from zoo_scale.strategies import shard_module, share_like

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = LanguageModel(16, max_length=8, dim=16, depth=2, heads=2, hidden=32, seed=3)
    def training_step(self, tokens):
        states = self.net.states(tokens[:, :-1])
        return self.net.token_loss(states, tokens[:, 1:]) / tokens[:, 1:].numel()

def losses(net, optimizer, batches, each):
    out = []
    for batch in batches:
        optimizer.zero_grad()
        loss = net.training_step(each(batch))
        loss.backward()
        optimizer.step()
        out.append(loss.detach())
    return torch.stack(out)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
batches = torch.randint(16, (6, 4, 8), generator=torch.Generator().manual_seed(1))
torch.manual_seed(0)
make = {"AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}[sys.argv[1]]
matrices = lambda net: [p for p in net.parameters() if p.dim() == 2]
single, shared = Net(), Net()
expected = losses(single, make(matrices(single)), batches, lambda b: b)
shard_module(shared, init_device_mesh("cpu", (world,)))
assert sum(isinstance(p, DTensor) for p in shared.parameters()) == len(list(shared.parameters()))
optimizer = make(matrices(shared))
actual = losses(shared, optimizer, batches, lambda b: b.chunk(world)[rank])
dist.all_reduce(actual, op=dist.ReduceOp.SUM)
assert torch.allclose(actual / world, expected, atol=1e-5), (actual / world, expected)

whole = {name: p.full_tensor() for name, p in shared.named_parameters()}
for name, p in single.named_parameters():
    assert torch.allclose(whole[name], p, atol=2e-4), name
    back = share_like(whole[name], dict(shared.named_parameters())[name])
    assert torch.equal(back.to_local(), dict(shared.named_parameters())[name].to_local())
dist.barrier()
dist.destroy_process_group()
"""


def start_processes(count: int, *words: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *words], env={**os.environ, **places, "RANK": str(rank)},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, "\n".join(errors)


@pytest.mark.parametrize("optimizer", ["AdamW", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("SGD",))])
def test_shares_train_as_the_whole(optimizer):
    start_processes(2, optimizer)


def test_an_optimizer_with_blocks_of_whole_tensors_is_refused_by_name():
    for kind in (AdamW8bit, torch.optim.Muon):
        with pytest.raises(UsageError, match=f"{kind.__name__}.*fsdp2"):
            check_optimizer(kind([nn.Linear(4, 4).weight]))
    check_optimizer(torch.optim.AdamW(nn.Linear(4, 4).parameters()))


def test_a_package_names_its_strategies():
    from zoo import registry

    assert registry.strategies()["fsdp2"] == "zoo_scale.strategies:FSDP2"
    assert not any("zoo.strategies" in flaw.reason for flaw in registry.metadata_flaws())


def test_disabling_a_package_takes_its_strategies_away(monkeypatch):
    from zoo import registry

    monkeypatch.setenv(registry.DISABLE_VARIABLE, "zoo-scale")
    assert "fsdp2" not in registry.strategies()
