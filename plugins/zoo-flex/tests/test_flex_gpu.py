"""On a GPU: Flex is Naive in values and gradients, fused and not, and trains a model."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close
from zoo_flex import Flex

from zoo.models.stack import Stack
from zoo.parts.backend import SDPA, Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import T5, ALiBi, Extent

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: on a CPU flex_attention has no backward"
)
PATTERNS = ["", "causal", "causal window", "valid bias", "causal window valid bias sparse"]
SHAPES = {"whole": (150, 150, 0, 0), "step": (1, 150, 149, 0), "chunk": (20, 150, 130, 0), "kept": (3, 20, 147, 130)}


def pattern_of(words, S, offset, start, table):
    return Pattern(
        causal="causal" in words,
        window=40 if "window" in words else None,
        valid=(torch.arange(S, device="cuda") >= torch.tensor([[S], [S // 3]], device="cuda"))
        if "valid" in words
        else None,
        bias=(lambda head, query, key: table[head] * (query - 2 * key) / 100) if "bias" in words else None,
        sparse=(lambda query, key: (query - key) % 3 != 1) if "sparse" in words else None,
        offset=offset,
        start=start,
    )


@pytest.mark.parametrize("part", [Flex, partial(Flex, compile=False)], ids=["fused", "eager"])
@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("words", PATTERNS)
def test_values_and_gradients_are_those_of_naive(part, words, shape, groups):
    T, S, offset, start = SHAPES[shape]
    results = []
    for backend in (part(), Naive()):
        torch.manual_seed(0)
        shapes = (2, 4, T, 20), (2, groups, S, 20), (2, groups, S, 12)
        leaves = [torch.randn(each, device="cuda").requires_grad_() for each in shapes]
        table = torch.linspace(-0.4, 0.5, 4, device="cuda").requires_grad_()
        out = backend(*leaves, pattern_of(words, S, offset, start, table))
        probe = torch.arange(out.numel(), device="cuda").sin().view(out.shape)
        grads = torch.autograd.grad((out * probe).sum(), [*leaves, table], allow_unused=True, materialize_grads=True)
        results.append((out, *grads))
    for ours, naive in zip(*results, strict=True):
        assert_close(ours, naive, atol=5e-3, rtol=5e-3)  # float32 products may be rounded to tf32


@pytest.mark.parametrize("position", [ALiBi, T5])
def test_a_stack_learns_what_it_learns_with_sdpa(position):
    losses = []
    for backend in (SDPA, Flex):
        torch.manual_seed(0)
        net = Stack(Extent((200,), causal=True), dim=64, heads=4, depth=2, position=position, backend=backend).cuda()
        x, target = torch.randn(4, 200, 64, device="cuda"), torch.randn(4, 200, 64, device="cuda")
        optimiser = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            with torch.autocast("cuda", torch.bfloat16):
                loss = (net(x) - target).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
