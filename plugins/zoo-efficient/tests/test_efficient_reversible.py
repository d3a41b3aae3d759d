"""A reversible stack is its formula, has the gradients of that formula, and keeps two streams whatever its depth."""

import copy
from functools import partial

import pytest
import torch
from efficient_measures import saved_bytes
from torch import nn
from torch.testing import assert_close
from zoo_efficient.reversible import Reversible

from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.models.stack import Stack
from zoo.parts.backend import SDPA, Naive, Tiled
from zoo.parts.block import Context, Memory, PreNorm
from zoo.parts.ffn import MLP, MoE
from zoo.parts.norm import Norm
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent, NoPosition, RoPE

DIM, HEADS, LENGTH = 16, 2, 7
double = pytest.mark.usefixtures("double")
MIXTURE = partial(MoE, experts=4, aux_loss_weight=1.0)


class Ordinary(Reversible):
    """The same streams by the ordinary backward pass, which keeps everything."""

    @classmethod
    def through(cls, blocks, x, contexts):
        one = two = x
        for block, context in zip(blocks, contexts, strict=True):
            for branch, call in block.steps(context):
                one, two = two, one + branch.dropout(call(context, branch.part, branch.norm(two)))
        return (one + two) / 2


def stack(block=Reversible, cross=False, **options):
    net = Stack(Extent((64,), causal=True), cross=cross, block=block,
                **{"dim": DIM, "heads": HEADS, "hidden": 24, "depth": 3, "position": NoPosition} | options)  # fmt: skip
    return initialize(net)


def mixtures(net):
    return [module for module in net.modules() if isinstance(module, MoE)]


@double
@pytest.mark.parametrize("cross", [False, True])
def test_it_is_two_streams_that_read_each_other(cross):
    net, x, memory = stack(cross=cross, depth=2), torch.randn(2, LENGTH, DIM), torch.randn(2, 5, DIM)
    one, two = x, x
    for number, block in enumerate(net.blocks):
        attend = block.attend.part(block.attend.norm(two), pattern=Pattern(causal=True))
        if cross:
            one = one + attend
            two = two + block.cross.part(block.cross.norm(one), memory, pattern=Pattern())
            one = one + block.ffn.part(block.ffn.norm(two))
            one, two = two, one  # three branches: the next block finds the streams the other way round
        else:
            one = one + attend
            two = two + block.ffn.part(block.ffn.norm(one))
        assert number < 2
    expected = net.norm((one + two) / 2)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert_close(net(x, memory=Memory(memory) if cross else None), expected, atol=1e-10, rtol=0)


def learned(net, source, memory, seed=3):
    """The loss of one training step, every gradient, and what the step left behind."""
    torch.manual_seed(seed)
    x, encoder = source.clone().requires_grad_(), nn.Linear(DIM, DIM)
    states = None if memory is None else Memory(encoder(memory), torch.arange(5) < torch.tensor([[5], [3]]))
    loss = net(x, torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]]), states).sin().sum()
    sides = [moe.aux_loss for moe in mixtures(net)]
    for moe in mixtures(net):
        moe.aux_loss = None  # as a task takes it
    (loss + sum(sides)).backward()
    leaves = [*net.parameters(), *(encoder.parameters() if memory is not None else ()), x]
    assert all(moe.aux_loss is None for moe in mixtures(net))
    return [loss.detach(), *(leaf.grad for leaf in leaves)], [moe.load.clone() for moe in mixtures(net)], torch.rand(3)


@double
@pytest.mark.parametrize("position", [RoPE, ALiBi, T5])
@pytest.mark.parametrize("backend", [Naive, SDPA, Tiled])
@pytest.mark.parametrize("ffn", [MLP, MIXTURE])
@pytest.mark.parametrize("cross", [False, True])
def test_gradients_are_those_of_the_ordinary_computation_dropout_included(position, backend, ffn, cross):
    options = {"position": position, "backend": backend, "ffn": ffn, "dropout": 0.3, "attention_dropout": 0.2}
    source, memory = torch.randn(2, LENGTH, DIM), torch.randn(2, 5, DIM) if cross else None
    gradients = [learned(stack(block, cross, **options), source, memory) for block in (Reversible, Ordinary)]
    (ours, loads, after), (theirs, expected_loads, expected_after) = gradients
    assert all(grad is not None for grad in theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, atol=1e-10, rtol=0)
    assert all(torch.equal(one, other) for one, other in zip(loads, expected_loads, strict=True))  # counted once
    assert torch.equal(after, expected_after)  # later random numbers are the same


@double
def test_gradients_by_torch_autograd_grad_and_twice_over_one_graph_are_the_same():
    net, x = stack(dropout=0.2), torch.randn(2, LENGTH, DIM, requires_grad=True)
    loss = net(x).sin().sum()
    leaves = [x, *net.parameters()]
    first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    loss.backward()
    for leaf, one, other in zip(leaves, first, second, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(leaf.grad, one)


@double
def test_frozen_parameters_and_inputs_stay_without_gradient():
    nets = [stack(block) for block in (Reversible, Ordinary)]
    x = torch.randn(2, LENGTH, DIM)
    for net in nets:
        net.blocks[1].requires_grad_(False)
        net.blocks[0].attend.part.requires_grad_(False)
        net(x).sin().sum().backward()
    for ours, theirs in zip(*(net.parameters() for net in nets), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            assert_close(ours.grad, theirs.grad, atol=1e-10, rtol=0)


@double
def test_two_forwards_before_one_backward_do_not_mix():
    nets = [stack(block, dropout=0.2, ffn=MIXTURE) for block in (Reversible, Ordinary)]
    a, b = torch.randn(2, 2, LENGTH, DIM)
    for net in nets:
        torch.manual_seed(1)
        (net(a).sin().sum() + net(b).cos().sum() + sum(moe.aux_loss for moe in mixtures(net))).backward()
    for ours, theirs in zip(*(net.parameters() for net in nets), strict=True):
        assert_close(ours.grad, theirs.grad, atol=1e-10, rtol=0)


def test_autocast_is_that_of_the_forward_pass():
    nets, x = [stack(block) for block in (Reversible, Ordinary)], torch.randn(2, LENGTH, DIM)
    dtypes = []
    for net in nets:
        net.blocks[1].ffn.part.up.register_forward_hook(lambda module, args, out: dtypes.append(out.dtype))
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x).float().sin().sum()
        loss.backward()
    assert dtypes == [torch.bfloat16] * 3  # forward and again, and once by the ordinary way
    for (name, ours), theirs in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        assert ours.grad.dtype == torch.float32
        assert (ours.grad - theirs.grad).norm() < 0.05 * theirs.grad.norm() + 1e-3, name


def test_backward_within_autocast_is_the_same():
    net, x, gradients = stack(), torch.randn(2, LENGTH, DIM), []
    for inside in (False, True):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x).float().sin().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def undone(net, x):
    """The largest difference between what the blocks were given forwards and what they are given backwards."""
    inputs = {}
    for name, module in net.blocks.named_modules():
        if isinstance(module, Norm):
            pair = inputs.setdefault(name, [])
            module.register_forward_hook(lambda module, args, out, pair=pair: pair.append(args[0].detach().float()))
    net(x).sum().backward()
    return max((there - back).abs().max().item() for there, back in inputs.values())


def test_inputs_are_found_again_to_rounding():
    assert undone(stack(depth=4), torch.randn(2, LENGTH, DIM)) < 1e-6
    assert undone(stack(depth=32), torch.randn(2, LENGTH, DIM)) < 1e-5
    low = undone(stack(depth=4).bfloat16(), torch.randn(2, LENGTH, DIM).bfloat16())
    assert low <= 2**-6  # streams are float32: what is read differs by one rounding of bfloat16


@double
@pytest.mark.parametrize("position", [NoPosition, T5])
def test_what_is_kept_does_not_grow_with_depth(position):
    def size(block, depth):
        net = stack(block, depth=depth, position=position)
        return saved_bytes(lambda: net(torch.randn(2, 32, DIM)), net.parameters())

    ours = [size(Reversible, depth) for depth in (2, 8, 16)]
    assert ours[0] == ours[1] == ours[2]
    assert size(PreNorm, 16) > 7 * size(PreNorm, 2)
    assert ours[2] < size(PreNorm, 2) / 4


def test_the_dtype_that_comes_in_goes_out():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.randn(1, LENGTH, DIM, dtype=dtype, requires_grad=True)
        net = stack().to(dtype)
        out = net(x)
        out.sum().backward()
        assert out.dtype == x.grad.dtype == dtype
        assert {parameter.grad.dtype for parameter in net.parameters()} == {dtype}


@double
def test_decoding_with_gradients_on_caches_once():
    net, x = stack(cross=True, position=T5), torch.randn(2, LENGTH, DIM)
    memory, caches = Memory(torch.randn(2, 5, DIM)), net.caches(LENGTH)
    steps = torch.cat([net(part, memory=memory, caches=caches) for part in x.split([3, 1, 3], 1)], 1)
    assert_close(steps, net(x, memory=memory), atol=1e-10, rtol=0)
    assert caches[0].own.length == LENGTH


@double
def test_a_block_alone_is_a_stack_of_one():
    net, x = stack(depth=1), torch.randn(2, LENGTH, DIM)
    block, pattern = net.blocks[0], Pattern(causal=True)
    one = x + block.attend.part(block.attend.norm(x), pattern=pattern)
    two = x + block.ffn.part(block.ffn.norm(one))
    assert_close(block(x, Context(pattern)), (one + two) / 2, atol=1e-10, rtol=0)
    assert_close(net.norm(block(x, Context(pattern))), net(x), atol=1e-10, rtol=0)


def test_what_cannot_work_says_so():
    net, x = stack(), torch.randn(2, LENGTH, DIM, requires_grad=True)
    with pytest.raises(UsageError, match="block Reversible has no second derivatives"):
        torch.autograd.grad(net(x).sum(), x, create_graph=True)
    swapped = {name: parameter.detach().clone().requires_grad_() for name, parameter in net.named_parameters()}
    out = torch.func.functional_call(net, swapped, (x,))
    with pytest.raises(RuntimeError, match="its parameters have been replaced"):
        out.sum().backward()


def test_compiled_it_runs_beside_the_graph_and_gives_the_same():
    net, x = stack(), torch.randn(2, LENGTH, DIM)
    fast = torch.compile(copy.deepcopy(net), backend="eager")
    for each in (net, fast):
        each(x).sin().sum().backward()
    for ours, theirs in zip(fast.parameters(), net.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=0)
