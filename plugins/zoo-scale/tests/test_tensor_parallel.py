"""Tensor parallelism: equal to one process for every kind of model; a part without a plan is refused by name."""

import random

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from worlds import in_processes
from zoo_scale.strategies import shard_module
from zoo_scale.tensor_parallel import (
    Divider,
    Division,
    RowLinear,
    check_network,
    check_part,
    divide_vocabulary,
    gather_whole,
    plan_of,
)

from zoo.errors import UsageError
from zoo.models.language import LanguageModel
from zoo.models.layer_overrides import Override
from zoo.models.loss import IGNORED
from zoo.models.seq2seq import Seq2Seq
from zoo.models.vit import ViT
from zoo.parts.attention import Additive, Gaussian, MultiHead, TokenQueries
from zoo.parts.block import Parallel, PostNorm, Sandwich
from zoo.parts.ffn import GEGLU, MLP, Bilinear, MoE, ReGLU, SwiGLU
from zoo.parts.norm import RMSNorm
from zoo.parts.position import ALiBi, Learned, RoPE

STACK = {"dim": 16, "depth": 2, "heads": 4, "hidden": 24}


def multi_head(**options):
    return lambda dim, heads, backend, dropout: MultiHead(dim, heads, backend, dropout, **options)


def frontier_parts():
    """Parts of a package that declare plans."""
    from zoo_frontier.attention import Softcap
    from zoo_frontier.ffn import ClampedSwiGLU, SquaredReLU

    gated = lambda dim, hidden: ClampedSwiGLU(dim, hidden)  # noqa: E731
    return {"attention": Softcap, "ffn": SquaredReLU, "overrides": [Override(layers="first", ffn=gated)]}


class Net(nn.Module):
    """A model with a loss: of language, translation or pictures."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        gpt2 = {"position": Learned, "attention": multi_head(), "ffn": MLP}
        llama = {"position": RoPE, "norm": RMSNorm, "attention": multi_head(kv_heads=2, bias=False), "ffn": SwiGLU}
        if kind in ("gpt2", "llama", "parallel", "gaussian", "frontier", "capped"):
            parts = {
                "gpt2": gpt2,
                "llama": {**llama, "recompute": True},
                "parallel": {**gpt2, "block": Parallel, "ffn": GEGLU},
                "frontier": {**llama, **frontier_parts()} if kind == "frontier" else {},
                "capped": {**llama, "logit_cap": 5.0, "head_bias": True, "logit_scale": 0.5, "tie": False},
                "gaussian": {**gpt2, "attention": Gaussian, "block": Sandwich, "ffn": ReGLU},
            }[kind]
            self.net = LanguageModel(17, max_length=8, **{"tie": kind != "llama", **STACK, **parts})
        elif kind == "translation":
            self.net = Seq2Seq(17, 19, max_length=8, **STACK, **llama, block=PostNorm)
        elif kind == "smoothed":
            self.net = Seq2Seq(17, 17, max_length=8, tie="all", output_bias=True, **STACK, **llama, block=PostNorm)
        else:
            self.net = ViT(5, image_size=8, patch_size=4, **STACK, **{**gpt2, "ffn": Bilinear})
        for number, parameter in enumerate(self.parameters()):
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) / 4)
        self.double()

    def training_step(self, rows):
        if self.kind == "vit":
            pictures = torch.sin(rows[:, :1, None, None] + torch.arange(192.0).view(3, 8, 8)).double()
            return F.cross_entropy(self.net(pictures), rows[:, 0] % 5)
        if self.kind == "translation":
            logits = self.net(rows[:, :5], rows[:, 3:-1], torch.arange(5) < rows[:, :1] % 4 + 1)
            return F.cross_entropy(logits.flatten(0, 1), rows[:, 4:].flatten())
        if self.kind == "smoothed":  # and padding, whose states may hold anything
            targets = rows[:, 4:].masked_fill(rows[:, 4:] % 3 == 0, IGNORED)
            states = self.net.states(rows[:, :5], rows[:, 3:-1], None)
            return self.net.token_loss(states, targets, 0.2) / rows.size(0)
        states = self.net.states(rows[:, :-1])
        return self.net.token_loss(states, rows[:, 1:]) / rows[:, 1:].numel()


def train(net, batches):
    """The losses of some steps, by an optimizer that rounding hardly changes."""
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(net.training_step(batch))
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach()


def compare_with_whole(rank, world, port, kind, tensor_parallel):
    """Run in each process: a few steps with parts of the model, and the same ones with the whole."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world // tensor_parallel, tensor_parallel), mesh_dim_names=("data", "tensor"))
    group, (share, shares) = mesh["tensor"].get_group(), (mesh["data"].get_local_rank(), mesh["data"].size())
    batches = torch.randint(17, (5, 4, 8), generator=torch.Generator().manual_seed(1))
    whole, divided = Net(kind), Net(kind)
    expected = train(whole, batches)
    before = sum(p.numel() for p in divided.parameters())
    divider = Divider(divided, group)
    divider.divide(divided)
    divisions = divider.divisions
    assert sum(p.numel() for p in divided.parameters()) < before
    if shares > 1:
        shard_module(divided, mesh["data"])
    actual = train(divided, [batch.chunk(shares)[share] for batch in batches])
    dist.all_reduce(actual, group=mesh["data"].get_group())
    torch.testing.assert_close(actual / shares, expected, atol=1e-11, rtol=0)
    for name, parameter in divided.named_parameters():
        own = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
        if name not in divisions:  # computed by every process, and in all the same
            everywhere = [torch.empty_like(own) for _ in range(tensor_parallel)]
            dist.all_gather(everywhere, own.contiguous(), group=group)
            assert all(torch.equal(own, one) for one in everywhere), name
        actual_whole = gather_whole(own, divisions.get(name), group)
        torch.testing.assert_close(actual_whole, whole.get_parameter(name).detach(), atol=1e-11, rtol=0, msg=name)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "capped", "parallel", "gaussian", "translation", "smoothed", "vit"])
def test_two_processes_train_as_one(kind):
    in_processes(compare_with_whole, 2, kind, 2)


def compare_vocabulary(rank, world, port, kind):
    """Run in each process: what a network with a part of the vocabulary gives, in training and in an evaluation."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    whole, divided = Net(kind).net, Net(kind).net
    divisions = divide_vocabulary(divided, dist.group.WORLD)
    assert divisions.keys() == {name for name, p in whole.state_dict().items() if len(p) in (17, 19)}
    states = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    targets = torch.tensor([[16, 0, IGNORED], [8, 9, 16]])
    results = []
    for net in (whole, divided):
        values = net.logits(states), net.output * 2, net.token_loss(states, targets)
        gradients = torch.autograd.grad(
            sum((value**2).sum() for value in values), (states, *net.parameters()), allow_unused=True
        )
        results.append((*values, gradients[0]))
        owners = [name for name, _ in net.named_parameters()]
        results.append(dict(zip(owners, gradients[1:], strict=True)))
    for expected, actual in zip(results[0], results[2], strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    for name, expected in results[1].items():
        if expected is not None:
            actual = gather_whole(results[3][name], divisions.get(name), dist.group.WORLD)
            torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12, msg=name)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["gpt2", "capped", "translation", "smoothed"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_divided_vocabulary_gives_logits_loss_and_gradients_of_the_whole(kind, world):
    in_processes(compare_vocabulary, world, kind)


class ReadsVocabulary(LanguageModel):
    """Code of its own, and no plan of its own."""

    def logits(self, states):
        return super().logits(states) + self.embedding.weight.mean()


@pytest.mark.parametrize("world", [1])
def test_a_vocabulary_that_others_read_stays_whole(world):
    in_processes(keep_vocabulary, world)


def keep_vocabulary(rank, world, port):
    """Run in a process: networks whose vocabulary is not divided."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    shared = nn.ModuleList([LanguageModel(17, max_length=8, **STACK), nn.Linear(16, 17, bias=False)])
    shared[1].weight = shared[0].embedding.weight
    padded = LanguageModel(17, max_length=8, **STACK)
    padded.embedding.padding_idx = 0
    for net in (
        ReadsVocabulary(17, max_length=8, **STACK),
        shared,
        padded,
        ViT(5, image_size=8, patch_size=4, **STACK),
    ):
        assert divide_vocabulary(net, dist.group.WORLD) == {}
    assert divide_vocabulary(LanguageModel(17, max_length=8, **STACK), dist.group.WORLD)
    dist.destroy_process_group()


def test_parts_of_a_package_that_declare_plans_train_as_one():
    pytest.importorskip("zoo_frontier", reason="the parts are those of the package zoo-frontier")
    in_processes(compare_with_whole, 2, "frontier", 2)


@pytest.mark.parametrize("kind", ["llama", "translation"])
def test_two_pairs_that_divide_the_batch_train_as_one(kind):
    in_processes(compare_with_whole, 4, kind, 2)


@pytest.mark.parametrize("seed", range(20))
def test_parts_make_the_whole(seed):
    draw = random.Random(seed)
    count, dim = draw.choice([1, 2, 4]), draw.choice([0, 1])
    sections = tuple(count * draw.randint(1, 3) for _ in range(draw.randint(1, 4)))
    sections = draw.choice([sections, (draw.randint(count, 20),)])  # a vocabulary need not be divisible
    shape = (sum(sections), 3) if dim == 0 else (3, sum(sections))
    whole, division = torch.arange(3.0 * sum(sections)).view(shape), Division(dim, sections)
    parts = [division.part(whole, rank, count) for rank in range(count)]
    assert torch.equal(division.whole(parts), whole)
    assert [part.size(dim) for part in parts] == [sum(division.sizes(rank, count)) for rank in range(count)]


class WithMore(MultiHead):
    """Code of its own, and no plan of its own."""

    def attend(self, q, k, v, pattern):
        return super().attend(q, k, v, pattern) * 2


REFUSED = [
    (lambda: Additive(16, 4), "attention Additive.*declares no tensor_parallel"),
    (lambda: WithMore(16, 4), "attention WithMore.*declares no tensor_parallel"),
    (lambda: TokenQueries(16, 4), "attention TokenQueries.*declares no tensor_parallel"),
    (lambda: MoE(16, 24), "ffn MoE.*declares no tensor_parallel"),
    (lambda: MultiHead(15, 3), "MultiHead: heads=3 is not divisible by the 2 processes"),
    (lambda: MultiHead(16, 4, kv_heads=1), "MultiHead: kv_heads=1 is not divisible by the 2 processes"),
    (lambda: MultiHead(16, 4, dropout=0.1), "attention_dropout"),
    (lambda: MultiHead(16, 4, qk_norm=RMSNorm), "MultiHead with a qk_norm"),
    (lambda: MLP(16, 25), "MLP: the width of down=25 is not divisible"),
]


@pytest.mark.parametrize(("part", "message"), REFUSED)
def test_a_part_that_cannot_be_divided_is_refused_by_name(part, message):
    with pytest.raises(UsageError, match=message):
        check_part(part(), 2)


def test_a_bias_by_the_number_of_a_head_is_refused():
    with pytest.raises(UsageError, match="position ALiBi"):
        check_network(LanguageModel(17, max_length=8, **STACK, position=ALiBi))


def test_every_plan_names_linear_matrices_and_ends_in_rows():
    for part in (MultiHead(16, 4), Gaussian(16, 4), *(ffn(16, 24) for ffn in (MLP, SwiGLU, GEGLU, ReGLU, Bilinear))):
        ways = [(type(getattr(part, name)), way) for name, way in plan_of(part).items()]
        assert all(issubclass(cls, nn.Linear) and not issubclass(cls, RowLinear) for cls, _ in ways)
        assert [way for _, way in ways][-1] == "rows"
