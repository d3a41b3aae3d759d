"""A model that is built without memory: each process initialises one block at a time, to the weights of one process."""

import pytest
import torch
import torch.distributed as dist
from test_tensor_parallel import STACK, multi_head
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torchmetrics import MeanMetric
from worlds import in_processes
from zoo_scale.strategies import FSDP2, materialize, own_tensors, shard_module, whole_tensor
from zoo_scale.tensor_parallel import Divider, gather_whole

from zoo.models.initialization import GPT2, MuP, Xavier
from zoo.models.language import LanguageModel
from zoo.models.seq2seq import Seq2Seq
from zoo.models.vit import ViT
from zoo.parts.attention import MultiHead
from zoo.parts.block import Block
from zoo.parts.ffn import MLP, SwiGLU
from zoo.parts.norm import RMSNorm
from zoo.parts.position import Learned, RoPE
from zoo.training.memory_estimate import MemoryCounter

LARGE = {**STACK, "depth": 8, "dim": 32, "hidden": 96}
LLAMA = {"position": RoPE, "norm": RMSNorm, "attention": multi_head(kv_heads=2, bias=False), "ffn": SwiGLU}


class ClosedMLP(MLP):
    """It draws the layers below it itself, when the rule has drawn them."""

    def reset_parameters(self):
        nn.init.normal_(self.up.weight, std=0.5)
        nn.init.zeros_(self.down.weight)
        self.down.bias.data.add_(self.up.weight.sum())


NETWORKS = {
    "gpt2": lambda: LanguageModel(17, 8, **LARGE, position=Learned, attention=MultiHead, init=GPT2, seed=3),
    "llama": lambda: LanguageModel(19, 8, **LARGE, **LLAMA, tie=False, seed=4),
    "xavier": lambda: LanguageModel(19, 8, **LARGE, **LLAMA, tie=False, init=Xavier, seed=4),
    "mup": lambda: LanguageModel(19, 8, **LARGE, **LLAMA, tie=False, init=MuP),
    "own": lambda: LanguageModel(19, 8, **LARGE, ffn=ClosedMLP, seed=2),
    "translation": lambda: Seq2Seq(17, 19, 8, **LARGE, **LLAMA),
    "vit": lambda: ViT(5, image_size=8, patch_size=4, **LARGE, position=Learned, seed=1),
}


class LocalMemory(MemoryCounter):
    """Counts shares: what is divided among processes says the size of the whole."""

    def count(self, tensor):
        if not isinstance(tensor, DTensor):
            super().count(tensor)


class Trained(nn.Module):
    """A network as a task holds it, beside a metric."""

    def __init__(self, net):
        super().__init__()
        self.net, self.eval_loss = net, MeanMetric()

    def training_step(self, batch):
        return self.net(batch)


def built_types(task):
    """The types of tensors by owner and name."""
    return {(member, name): tensor.dtype for member in task.modules() for name, tensor in own_tensors(member).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", NETWORKS)
def test_what_is_built_without_memory_draws_the_weights_of_what_is_built_with_it(kind, dtype):
    chance = torch.get_rng_state()
    task = Trained(FSDP2.build_network(NETWORKS[kind]))
    assert all(tensor.is_meta for tensor in task.state_dict().values())
    types, names = built_types(task), {id(p): name for name, p in task.named_parameters()}
    tensors = materialize(task.to(dtype), types)
    for tensor, now in tensors:
        tensor.data = tensor.data.to(now)
    expected = NETWORKS[kind]()
    assert torch.equal(chance, torch.get_rng_state())
    for name, tensor in expected.to(dtype).state_dict().items():
        actual = task.state_dict()[f"net.{name}"]
        assert actual.dtype == tensor.dtype
        assert torch.equal(actual, tensor), name
    assert names == {id(p): name for name, p in task.named_parameters()}
    assert materialize(task, types) == []


class Remembers(nn.Module):
    """A module with a tensor that nothing sets anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))


def test_a_module_that_cannot_set_its_tensors_anew_is_built_with_memory(caplog):
    def build():
        net = NETWORKS["vit"]()
        net.memory = Remembers()
        return net

    assert FSDP2.build_network(build).memory.table.tolist() == [0, 1, 2, 3]
    assert "nothing sets memory anew" in caplog.text
    loose = FSDP2.build_network(lambda: nn.Linear(2, 2))  # that no seed initialises
    assert not loose.weight.is_meta


class Reset(LanguageModel):
    """A network that draws its blocks itself."""

    def reset_parameters(self):
        for block in self.stack.blocks:
            nn.init.ones_(block.ffn.part.down.weight)


def test_a_network_that_sets_its_blocks_itself_is_built_with_memory(caplog):
    net = FSDP2.build_network(lambda: Reset(19, 8, **LARGE))
    assert all((block.ffn.part.down.weight == 1).all() for block in net.stack.blocks)
    assert "Reset resets blocks" in caplog.text


def hold_one_block(rank, world, port, kind, tensor_parallel):
    """Run in each process: take shares of a model without memory, and count the bytes of it that are in memory."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world // tensor_parallel, tensor_parallel), mesh_dim_names=("data", "tensor"))
    group = mesh["tensor"].get_group()
    expected = NETWORKS[kind]()
    task = Trained(FSDP2.build_network(NETWORKS[kind]))
    types, divider = built_types(task), Divider(task, group) if tensor_parallel > 1 else None

    def prepare(module):
        materialize(module, types)
        if divider:
            divider.divide(module)

    with LocalMemory([]) as memory:
        shard_module(task, mesh["data"], prepare)
    own = sum(p.to_local().nbytes for p in task.parameters())
    whole = sum(p.nbytes for p in expected.parameters())
    block = max(
        sum(p.nbytes for p in module.parameters()) for module in expected.modules() if isinstance(module, Block)
    )
    divisions = divider.divisions if divider else {}
    for name, parameter in expected.named_parameters():
        actual = gather_whole(whole_tensor(task.get_parameter(f"net.{name}")), divisions.get(f"net.{name}"), group)
        assert torch.equal(actual, parameter), name
    assert own < 0.6 * whole
    assert memory.peak <= own + 1.05 * block, f"{memory.peak} in memory, {own} of its own, {block} of a block"
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "translation", "vit"])
@pytest.mark.parametrize(("world", "tensor_parallel"), [(2, 1), (2, 2), (4, 2)])
def test_a_process_holds_its_share_and_a_block(kind, world, tensor_parallel):
    in_processes(hold_one_block, world, kind, tensor_parallel)
