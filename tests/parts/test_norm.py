"""Every norm is its paper's formula."""

import oracle
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from zoo.parts.norm import LayerNorm, RMSNorm

pytestmark = pytest.mark.usefixtures("double")
# from values so small that eps decides, to large ones
scales = pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])


def shuffled(part):
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    return part


@scales
@pytest.mark.parametrize("eps", [1e-5, 0.3])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_the_formula(scale, eps, bias):
    part, x = shuffled(LayerNorm(6, eps, bias)), torch.randn(4, 3, 6) * scale + scale
    shift = part.bias.tolist() if bias else [0.0] * 6
    expected = [[oracle.layer_norm(row, part.weight.tolist(), shift, eps) for row in rows] for rows in x.tolist()]
    assert_close(part(x), torch.tensor(expected), atol=1e-10, rtol=0)


@scales
@pytest.mark.parametrize("eps", [1e-6, 0.3])
def test_rms_norm_is_the_formula(scale, eps):
    part, x = shuffled(RMSNorm(6, eps)), torch.randn(4, 3, 6) * scale + scale
    expected = [[oracle.rms_norm(row, part.weight.tolist(), eps) for row in rows] for rows in x.tolist()]
    assert_close(part(x), torch.tensor(expected), atol=1e-10, rtol=0)


def test_layer_norm_of_2_4_6_8_is_that_of_the_notes():
    expected = torch.tensor([-1.342, -0.447, 0.447, 1.342])
    assert_close(LayerNorm(4)(torch.tensor([2.0, 4.0, 6.0, 8.0])), expected, atol=5e-4, rtol=0)


def test_layer_norm_of_the_notes_cat_vector_is_recomputed():
    expected = torch.tensor([-0.09091, 1.18182, -1.54545, 0.45455])
    assert_close(LayerNorm(4)(torch.tensor([0.5, 1.2, -0.3, 0.8])), expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize(("ours", "theirs"), [(LayerNorm(6), nn.LayerNorm(6)), (RMSNorm(6), nn.RMSNorm(6, eps=1e-6))])
def test_a_norm_equals_torchs_in_values_and_gradients(ours, theirs):
    ours, theirs = shuffled(ours.double()), theirs.double()
    theirs.load_state_dict(ours.state_dict())
    x, weight = torch.randn(5, 6), torch.randn(5, 6)
    results = []
    for part in (ours, theirs):
        leaf = x.clone().requires_grad_()
        out = part(leaf)
        results.append((out, *torch.autograd.grad((out * weight).sum(), [leaf, *part.parameters()])))
    for mine, torchs in zip(*results, strict=True):
        assert_close(mine, torchs, atol=1e-10, rtol=0)


def test_default_epsilons_are_torchs_and_llamas():
    assert (LayerNorm(4).eps, RMSNorm(4).eps) == (nn.LayerNorm(4).eps, 1e-6)


@pytest.mark.parametrize(("part", "shift", "count"), [(LayerNorm, True, 12), (RMSNorm, False, 6)])
def test_scale_goes_and_only_layer_norm_removes_a_shift(part, shift, count):
    norm, x = part(6, eps=0.0), torch.randn(3, 6)
    assert_close(norm(7 * x), norm(x), atol=1e-10, rtol=0)
    assert torch.allclose(norm(x + 5), norm(x), atol=1e-10) == shift
    assert sum(p.numel() for p in norm.parameters()) == count


@pytest.mark.parametrize("part", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("value", [0.0, 1e-8, 300.0, 6e4])
def test_float16_neither_overflows_nor_vanishes(part, value):
    x = torch.tensor([value, -value, value, -value], dtype=torch.float16)
    norm = part(4)
    out = norm.half()(x)
    assert out.dtype == torch.float16
    assert_close(out.double(), norm.double()(x.double()), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("part", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("x", [torch.full((2, 6), 3.0), torch.zeros(2, 6), torch.arange(12.0).view(2, 6) / 1e3])
def test_plain_steps_equal_the_kernel_where_epsilon_decides(part, x):
    norm, x = shuffled(part(6)), x.double()
    assert_close(norm.reference(x), norm(x), atol=1e-10, rtol=0)
