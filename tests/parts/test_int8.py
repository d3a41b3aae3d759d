"""Products in eight bits: equal to a slow oracle's, near the real ones, and refused where they cannot be."""

import pytest
import torch
import torch.nn.functional as F

from zoo.errors import UsageError
from zoo.models import LanguageModel
from zoo.parts import int8 as module
from zoo.parts.few_row_linear import Linear, _packed, linear
from zoo.parts.int8 import ENGINE, quantize, scales

pytestmark = pytest.mark.skipif(
    ENGINE not in torch.backends.quantized.supported_engines, reason="this build of torch has no 8-bit products"
)


def rounded_x(x):
    """x on the grid of 256 steps (128 without VNNI) that holds its least and largest value, and zero; its step."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    top = 255 if torch.cpu._is_vnni_supported() else 127
    step = (high - low) / top or 1.0
    zero = min(max(round(-low / step), 0), top)
    return (torch.clamp((x / step).round() + zero, 0, top) - zero) * step, step


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_values_are_those_of_rounded_numbers_and_near_the_real_ones(rows, bias):
    x, weight = torch.randn(rows, 3, 96), torch.randn(40, 96) * torch.rand(40, 1)
    weight[3] = 0
    b = torch.randn(40) if bias else None
    packed = quantize([weight])
    result = linear(x, weight, b)
    scale = scales(weight)[:, None]
    grid = (weight / scale).round().clamp(-128, 127).double() * scale
    near, step = rounded_x(x.double())
    added = 0 if b is None else b
    torch.testing.assert_close(result.double(), near @ grid.T + added, atol=2e-4, rtol=2e-4)
    # half a step of x times |w|, half a step of w times |x|, and both
    bound = (
        step / 2 * weight.abs().sum(1) + scale[:, 0] / 2 * (x.abs().sum(-1, keepdim=True) + 96 * step / 2)
    ).double()
    assert ((result - F.linear(x, weight, b)).abs() <= bound + 1e-4).all()
    assert (result - F.linear(x, weight, b)).abs().max() > 1e-4  # it is not the float product
    del packed
    torch.testing.assert_close(linear(x, weight, b), F.linear(x, weight, b))


@torch.no_grad()
def test_every_matrix_of_a_model_is_served_and_let_go():
    model = LanguageModel(61, 32, dim=32, depth=2, heads=4).eval()
    tokens = torch.randint(61, (2, 20))
    reference = model(tokens)
    linears = [part.weight for part in model.modules() if isinstance(part, Linear)]
    assert len(linears) == 8
    packed = quantize([*linears, model.output])
    assert len(_packed) == 9
    error = (model(tokens) - reference).std() / reference.std()
    assert 1e-4 < error < 0.05
    state = model.begin(32)
    steps = torch.cat([state.step(tokens[:, n : n + 1])[:, None] for n in range(20)], 1)
    assert (steps - reference).std() / reference.std() < 0.05
    del packed, state
    torch.testing.assert_close(model(tokens), reference)
    assert not _packed


def test_training_computes_in_full():
    part = Linear(8, 5)
    with torch.no_grad():
        packed = quantize([part.weight])
    x = torch.randn(3, 8)
    torch.testing.assert_close(part(x), F.linear(x, part.weight, part.bias), rtol=0, atol=0)
    del packed


@pytest.mark.parametrize(
    ("weights", "word"),
    [
        ([], "no matrix"),
        ([torch.zeros(2, 2, dtype=torch.float64)], "float64 on cpu"),
        ([torch.zeros(2, 2, device="meta")], "float32 on meta"),
        ([torch.full((2, 2), torch.nan)], "not finite"),
    ],
)
def test_what_cannot_be_is_refused(weights, word):
    with pytest.raises(UsageError, match=word):
        quantize(weights)


def test_a_torch_without_these_products_is_told(monkeypatch):
    monkeypatch.setattr(module, "ENGINE", "elsewhere")
    with pytest.raises(UsageError, match="no 8-bit products"):
        quantize([torch.zeros(2, 2)])
