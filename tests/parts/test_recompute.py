"""Computed again: the same numbers, the same gradients, and nothing kept in between."""

import pytest
import torch
from torch.testing import assert_close

from zoo.parts.recompute import recomputed


def curve(x, y):
    return torch.nn.functional.dropout(x.sin() * y, 0.5).cumsum(0)


def grown(wrap, *tensors):
    torch.manual_seed(0)
    out = wrap(*tensors)
    after = torch.rand(1)
    return out, after, *torch.autograd.grad(out.square().sum(), [x for x in tensors if x.requires_grad])


@pytest.mark.parametrize("learns", [(True, True), (True, False), (False, True)])
def test_values_gradients_and_chance_are_those_of_the_function(learns):
    x, y = (torch.randn(9, dtype=torch.float64).requires_grad_(expected) for expected in learns)
    for got, want in zip(grown(lambda *t: recomputed(curve, *t, chance=True), x, y), grown(curve, x, y), strict=True):
        assert_close(got, want, atol=0, rtol=0)


def test_the_backward_pass_leaves_the_generator_where_it_was():
    x = torch.randn(5, requires_grad=True)
    out = recomputed(curve, x, x.detach(), chance=True)
    before = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_but_the_arguments_is_kept():
    saved_tensors = []
    x = torch.randn(100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved_tensors.append(t.data_ptr()) or t, lambda t: t):
        out = recomputed(lambda t: (t.exp().sin() * t).cos(), x)
    assert saved_tensors == [x.data_ptr()]
    assert [edge for edge, _ in out.grad_fn.next_functions if edge is not None] == [
        x.expand_as(x).grad_fn.next_functions[0][0]
    ]


def test_autocast_holds_in_the_second_computation_too():
    dtypes = []

    def product(x):
        dtypes.append((x @ x).dtype)
        return (x @ x).float()

    x = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = recomputed(product, x)
    out.sum().backward()
    assert dtypes == [torch.bfloat16] * 2


def test_a_result_that_depends_on_nothing_has_no_gradient():
    x = torch.randn(3, requires_grad=True)
    recomputed(lambda t: torch.zeros(3), x).sum().backward()
    assert x.grad is None
