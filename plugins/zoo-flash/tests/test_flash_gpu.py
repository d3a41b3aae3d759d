"""On a GPU: the kernels themselves give Naive's values and gradients."""

from importlib.util import find_spec

import pytest
import torch
from torch.testing import assert_close
from zoo_flash import FlashVarlen

from zoo.models.stack import Stack
from zoo.parts.backend import SDPA, Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import ALiBi, Extent, RoPE

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
pytestmark = pytest.mark.skipif(not GPU, reason="needs a GPU of compute capability 8.0 or newer")
PACKAGE = pytest.param(
    "flash-attn", marks=pytest.mark.skipif(find_spec("flash_attn") is None, reason="needs the package flash-attn")
)
SHAPES = {"whole": (150, 150, 0, 0), "step": (1, 150, 149, 0), "chunk": (20, 150, 130, 0), "kept": (3, 20, 147, 130),
          "memory": (40, 150, 0, 0)}  # fmt: skip
BANDS = {
    "open": {},
    "causal": {"causal": True},
    "window": {"window": 40},
    "causal window": {"causal": True, "window": 9},
}


def padding(name, S):
    place, some = torch.arange(S, device="cuda"), torch.tensor([[S], [S // 3], [0]], device="cuda")
    return {"none": None, "right": place < some, "left": place >= some, "gaps": place % 5 != some % 5}[name]


def assert_near(pattern, kernel, T, S, groups=4, width=40):
    """At most twice the error that Naive makes in the same precision, against Naive in float64."""
    results = []
    for backend, dtype in ((FlashVarlen(kernel), torch.bfloat16), (Naive(), torch.bfloat16), (Naive(), torch.float64)):
        make = torch.Generator("cuda").manual_seed(0)
        shapes = (3, 4, T, width), (3, groups, S, width), (3, groups, S, width)
        tensors = [torch.randn(each, generator=make, device="cuda") for each in shapes]
        leaves = [x.to(torch.bfloat16).to(dtype).requires_grad_() for x in tensors]
        out = backend(*leaves, pattern)
        assert out.dtype == dtype
        probe = torch.arange(out.numel(), device="cuda").sin().view(out.shape).to(dtype)
        results.append((out, *torch.autograd.grad((out * probe).sum(), leaves)))
    for ours, naive, exact in zip(*results, strict=True):
        bound = 2 * (naive - exact).abs().max().item() + 1e-2
        assert_close(ours.double(), exact, atol=bound, rtol=0)


@pytest.mark.parametrize("kernel", ["torch", PACKAGE])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("padded", ["none", "right", "left", "gaps"])
def test_a_band_with_padding_is_naive(kernel, shape, name, padded):
    T, S, offset, start = SHAPES[shape]
    pattern = Pattern(offset=offset, start=start, valid=padding(padded, S), **BANDS[name])
    assert_near(pattern, kernel, T, S)


@pytest.mark.parametrize("kernel", ["torch", PACKAGE])
@pytest.mark.parametrize(("groups", "width"), [(4, 40), (2, 64), (1, 12)])
def test_heads_may_share_keys_and_have_any_width(kernel, groups, width):
    assert_near(Pattern(causal=True), kernel, 150, 150, groups, width)


@pytest.mark.parametrize("kernel", [PACKAGE])
@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("padded", ["none", "right", "left"])
def test_alibi_is_naive(kernel, name, padded):
    scheme = ALiBi(160, 4, Extent((512,))).cuda()
    assert_near(Pattern(bias=scheme.bias, valid=padding(padded, 150), **BANDS[name]), kernel, 150, 150)


def test_a_stack_learns_what_it_learns_with_sdpa():
    losses = []
    for backend in (SDPA, lambda: FlashVarlen("torch")):
        torch.manual_seed(0)
        net = Stack(Extent((200,), causal=True), dim=64, heads=4, depth=2, position=RoPE, backend=backend).cuda()
        x, target = torch.randn(4, 200, 64, device="cuda"), torch.randn(4, 200, 64, device="cuda")
        valid = torch.arange(200, device="cuda") < torch.tensor([[200], [150], [90], [1]], device="cuda")
        optimiser = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            with torch.autocast("cuda", torch.bfloat16):
                loss = (net(x, valid) - target)[valid].square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
