"""Products of a training step are the products, with their gradients of every order, whichever kernel computes them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from zoo.models.loss import cross_entropy, full_cross_entropy
from zoo.parts import training_products as module
from zoo.parts.few_row_linear import Linear
from zoo.system import kernel_choice, torch_internals
from zoo.tasks.lm import CausalLM

pytestmark = pytest.mark.skipif(
    not torch_internals.can_reorder_weights(), reason="torch has no products of oneDNN, and zoo uses none"
)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """oneDNN is the fastest, for products of any size; the shapes of what it multiplied."""
    shapes, multiply = [], torch_internals.dense_linear
    monkeypatch.setattr(module.kernel_choice, "choose", lambda call, kernels, prepare: "onednn")
    monkeypatch.setattr(module, "LEAST", 1)

    def dense_linear(x, weight, bias):
        shapes.append((*x.shape, *weight.shape))
        return multiply(x, weight, bias)

    monkeypatch.setattr(torch_internals, "dense_linear", dense_linear)
    return shapes


def exact(x, weight, bias, grad):
    """The product and its gradients in float64, by autograd."""
    tensors = [None if one is None else one.detach().double().requires_grad_() for one in (x, weight, bias)]
    out = F.linear(*tensors)
    return out, torch.autograd.grad(out, [one for one in tensors if one is not None], grad.double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(64, 48), (4, 16, 48), (2, 3, 11, 48), (1, 48)])
def test_a_product_and_its_gradients(shape, bias, calls):
    x = torch.randn(shape, requires_grad=True)
    weight, b = torch.randn(40, 48, requires_grad=True), torch.randn(40, requires_grad=True) if bias else None
    out = module.linear(x, weight, b)
    assert out.is_contiguous()
    grad = torch.randn(out.shape)
    gradients = torch.autograd.grad(out, [one for one in (x, weight, b) if one is not None], grad)
    rows = x.numel() // 48
    assert calls == [(rows, 48, 40, 48), (rows, 40, 48, 40), (40, rows, 48, rows)]
    exact_out, exact_gradients = exact(x, weight, b, grad)
    for one, want in zip((out, *gradients), (exact_out, *exact_gradients), strict=True):
        assert one.shape == want.shape
        torch.testing.assert_close(one.double(), want.detach(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x, x], 1)[:, : x.size(1)],
        lambda x: torch.cat([x, x], 0)[::2],
        lambda x: x.flip(0),
        lambda x: x[:1].expand(len(x), -1),
        lambda x: x[:, :1].expand(-1, x.size(1)),
        lambda x: torch.stack([x, x], 2)[..., 0],
        lambda x: x.t().contiguous().t()[:, :1].expand(-1, x.size(1)),
    ],
    ids=[
        "transposed",
        "columns of more",
        "every second row",
        "flipped",
        "one row",
        "one column",
        "apart",
        "one of transposed",
    ],
)
@pytest.mark.parametrize("which", ["x", "weight", "grad"])
def test_matrices_are_read_as_they_stand_in_memory(which, change, calls):
    matrices = {"x": torch.randn(36, 36), "weight": torch.randn(36, 36), "grad": torch.randn(36, 36)}
    matrices[which] = change(matrices[which])
    x, weight = (matrices[name].detach().requires_grad_() for name in ("x", "weight"))
    out = module.linear(x, weight)
    gradients = torch.autograd.grad(out, (x, weight), matrices["grad"])
    exact_out, exact_gradients = exact(x, weight, None, matrices["grad"])
    for one, want in zip((out, *gradients), (exact_out, *exact_gradients), strict=True):
        torch.testing.assert_close(one.double(), want.detach(), atol=1e-4, rtol=1e-5)
    assert len(calls) == 3


@pytest.mark.parametrize("frozen", ["x", "weight", "bias", "x bias", "weight bias"])
def test_what_needs_no_gradient_is_not_multiplied(frozen, calls):
    tensors = {"x": torch.randn(50, 48), "weight": torch.randn(40, 48), "bias": torch.randn(40)}
    for name, one in tensors.items():
        one.requires_grad_(name not in frozen.split())
    module.linear(**tensors).sum().backward()
    assert [one.grad is None for one in tensors.values()] == [name in frozen.split() for name in tensors]
    assert len(calls) == 1 + sum(name not in frozen.split() for name in ("x", "weight"))


def test_second_derivatives_are_those_of_the_formula():
    x, weight, bias = torch.randn(6, 5), torch.randn(4, 5), torch.randn(4)
    for one in (x, weight, bias):
        one.requires_grad_()

    def second(linear, *tensors):
        first = torch.autograd.grad(linear(*tensors).pow(3).sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(one.pow(2).sum() for one in first), tensors)

    wide = [one.detach().double().requires_grad_() for one in (x, weight, bias)]
    for one, want in zip(second(module.linear, x, weight, bias), second(F.linear, *wide), strict=True):
        torch.testing.assert_close(one.double(), want, rtol=1e-4, atol=1e-3)


def test_other_uses_go_the_ordinary_way(calls):
    """Evaluation, other types, autocast, observers, torch.func, forward mode, tracing, compiling, small products."""
    part, x = Linear(48, 40), torch.randn(64, 48)
    with torch.no_grad():
        assert torch.equal(part(x), F.linear(x, part.weight, part.bias))
    copy.deepcopy(part).double()(x.double()).sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        assert part(x).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        part(x).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 64 * 48 * 40  # x needs no gradient
    torch.func.grad(lambda weight: F.linear(x, weight).sum() + part(x).sum())(part.weight.detach())
    with forward_ad.dual_level():
        part(forward_ad.make_dual(x, torch.ones_like(x)))
    torch.jit.trace(part, x)
    torch.compile(part, backend="eager")(x).sum().backward()
    assert calls == []
    module.LEAST = 64 * 48 * 40 + 1
    part(x).sum().backward()
    assert calls == []
    module.LEAST -= 1
    part(x).sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_a_loss_over_a_vocabulary_and_its_gradients(bias, smoothing, calls):
    states, weight = torch.randn(3, 20, 24, requires_grad=True), torch.randn(31, 24, requires_grad=True)
    b = torch.randn(31, requires_grad=True) if bias else None
    targets = torch.randint(31, (3, 20)).masked_fill(torch.rand(3, 20) < 0.2, -100)
    tensors = [one for one in (states, weight, b) if one is not None]
    loss = cross_entropy(states, weight, targets, b, smoothing, rows=25)
    gradients = torch.autograd.grad(loss, tensors)
    wide = [one.detach().double().requires_grad_() for one in tensors]
    want = full_cross_entropy(
        wide[0].flatten(0, 1), wide[1], wide[2] if bias else None, targets.flatten(), smoothing, None
    )
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-4)
    for one, exact_one in zip(gradients, torch.autograd.grad(want, wide), strict=True):
        torch.testing.assert_close(one.double(), exact_one, rtol=1e-4, atol=1e-4)
    assert len(calls) == 3 * 3  # three parts of the rows, three products
    calls.clear()
    with torch.no_grad():
        cross_entropy(states, weight, targets, b, smoothing)
    assert calls == []


def test_a_model_learns_as_it_does_by_torchs_kernel(calls, monkeypatch):
    """Its weights after some steps, to within rounding; with recomputed blocks bit by bit the same."""

    def train(**options):
        torch.manual_seed(0)
        task = CausalLM(61, 16, dim=32, depth=2, heads=4, **options).train()
        optimizer = torch.optim.SGD(task.parameters(), 0.1)
        for _ in range(5):
            tokens = torch.randint(61, (8, 17))
            total, size = task.loss({"inputs": tokens[:, :-1], "targets": tokens[:, 1:]})
            optimizer.zero_grad()
            (total / size).backward()
            optimizer.step()
        return [parameter.detach() for parameter in task.parameters()]

    weights = train()
    assert calls
    assert all(map(torch.equal, weights, train(recompute=True)))
    monkeypatch.setattr(module.kernel_choice, "choose", lambda call, kernels, prepare: "linear")
    calls.clear()
    for one, other in zip(weights, train(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert calls == []


def test_the_kernel_is_chosen_once_by_a_product_and_its_gradients(monkeypatch, calls):
    monkeypatch.undo()
    classes = []

    def choose(call, kernels, prepare):
        classes.append((call, kernels))
        examples = prepare()
        assert list(examples) == list(kernels)
        for example in examples.values():
            example()
        return "linear"

    monkeypatch.setattr(module.kernel_choice, "choose", choose)
    assert not module.serves(torch.zeros(512, 384), torch.zeros(1152, 384))
    assert classes == [(("training products", 512, 384, 1152), ("linear", "onednn"))]


@pytest.mark.parametrize(
    ("choices", "kernel"),
    [({}, "linear"), ({"training products 512 x 384 x 1152": "onednn"}, "onednn"), ({"other 1": "x"}, "linear")],
)
def test_a_run_that_made_none_of_these_products_goes_on_with_torchs(choices, kernel, monkeypatch, tmp_path):
    """Such as one of a version that had no choice here: its steps keep their digits."""
    monkeypatch.undo()
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    monkeypatch.delenv(kernel_choice.SWITCH)
    try:
        kernel_choice.adopt({"mode": "measured", "choices": choices})
        assert kernel_choice.choose(module.CALL, ("linear", "onednn"), lambda: pytest.fail("measured")) == kernel
    finally:
        kernel_choice.forget()
