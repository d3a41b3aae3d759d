"""The autograd functions of zoo's plugins, where they are installed: every derivative right, or refused."""

from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck

from tests.parts.test_derivatives import draws, functions, gradients
from zoo.errors import UsageError
from zoo.models.initialization import initialize
from zoo.models.stack import Stack
from zoo.parts.backend import SDPA
from zoo.parts.norm import LayerNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition

ROOT = Path(__file__).parents[2]
REFUSALS = (UsageError, RuntimeError, NotImplementedError)


def reversible():
    """A reversible stack in float64."""
    module = pytest.importorskip("zoo_efficient.reversible")
    net = Stack(
        Extent((8,), causal=True), cross=False, block=module.Reversible, dim=4, heads=2, hidden=6, depth=2,
        position=NoPosition, norm=LayerNorm,
    )  # fmt: skip
    return initialize(net).double()


def flex():
    """Flex where it has no backward pass."""
    module = pytest.importorskip("zoo_flex.flex")
    backend = module.Flex(compile=False)
    return lambda q, k, v: backend(q, k, v, Pattern(causal=True))


CASES = {"zoo_efficient.reversible.Run": reversible, "zoo_flex.flex._ForwardOnly": flex}


# sums over processes, whose gradients zoo-scale compares with those of one process, in test_tensor_parallel.py
BETWEEN_PROCESSES = {f"zoo_scale.tensor_parallel.{name}" for name in ("Gathered", "Shared", "Summed")}


def test_every_autograd_function_of_a_plugin_is_tried_here():
    names = {name for folder in (ROOT / "plugins").glob("*/src/*") for name in functions(folder)}
    assert names == {*CASES} | BETWEEN_PROCESSES


def test_gradients_of_the_reversible_stack():
    net = reversible()
    (x,) = (one.requires_grad_() for one in draws((2, 3, 4)))
    assert gradcheck(net, (x,))
    grad = gradients(net, [x])[0]
    for name, weight in net.named_parameters():
        slope = torch.autograd.grad(net(x).sum(), weight)[0]
        step, place = 1e-6, (0,) * weight.dim()
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * step
            ends.append(net(x).sum().item())
            with torch.no_grad():
                weight[place] -= sign * step
        assert slope[place].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-7), name
    torch.testing.assert_close(gradients(net, [x])[0], grad)


def ways(call, inputs):
    """Every way to derivatives beyond a gradient, of the sum of a result."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    along = [torch.ones_like(x) for x in inputs]
    total = lambda *xs: call(*xs).sum()  # noqa: E731

    def twice():
        grads = torch.autograd.grad(call(*leaves).pow(2).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.pow(2).sum() for grad in grads), leaves)[0]

    yield "double backward", twice
    yield "torch.func.grad", lambda: torch.func.grad(total)(*inputs)
    yield "jvp", lambda: torch.func.jvp(total, tuple(inputs), tuple(along))[1]
    yield "vmap", lambda: torch.func.vmap(call)(*(x[None] for x in inputs))[0]
    yield "compile", lambda: gradients(torch.compile(call, backend="aot_eager"), leaves)[0]


def expected(name, call, inputs):
    """The same by finite differences in float64, or by the plain call."""
    if name == "vmap":
        return call(*inputs).detach()
    if name == "jvp":
        ends = [call(*(x + sign * 1e-6 for x in inputs)).sum().detach() for sign in (1, -1)]
        return (ends[0] - ends[1]) / 2e-6
    return gradients(call, [x.clone().requires_grad_() for x in inputs])[0]


def test_further_derivatives_of_the_reversible_stack_are_right_or_refused():
    net = reversible()
    inputs = draws((2, 3, 4))
    for name, way in ways(net, inputs):
        torch.compiler.reset()
        try:
            result = way().detach()
        except REFUSALS:
            continue
        assert name != "double backward", "a second derivative that is no refusal"
        torch.testing.assert_close(result, expected(name, net, inputs), rtol=1e-5, atol=1e-7, msg=name)


def test_flex_on_a_cpu_is_right_forward_and_refuses_every_derivative():
    call, inputs = flex(), draws(*((2, 2, 3, 4),) * 3)
    torch.testing.assert_close(call(*inputs), SDPA()(*inputs, Pattern(causal=True)))
    with pytest.raises(UsageError, match="trains on a GPU only"):
        gradients(call, [x.requires_grad_() for x in draws(*((2, 2, 3, 4),) * 3)])
    for name, way in ways(call, inputs):
        torch.compiler.reset()
        try:
            result = way().detach()
        except REFUSALS:
            continue
        assert name == "vmap", f"{name} gives a derivative that Flex does not have"
        torch.testing.assert_close(result, expected(name, call, inputs))
