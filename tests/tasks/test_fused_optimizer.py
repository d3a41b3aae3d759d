"""The fused optimiser is the plain one, chosen unless the user said otherwise."""

import pytest
import torch
from torch import nn

from zoo.tasks.optimizers import fuse


def steps(optimizer, net, data):
    for x in data:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_the_fused_steps_are_the_plain_ones(kind):
    data = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0))
    result = []
    for change in (fuse, lambda optimizer: optimizer):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = change(kind(net.parameters(), lr=1e-2))
        result.append((bool(optimizer.param_groups[0]["fused"]), steps(optimizer, net, data)))
    (fused, got), (unfused, want) = result
    assert (fused, unfused) == (True, False)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("option", [{"fused": False}, {"foreach": True}, {"capturable": False, "foreach": True}])
def test_what_the_user_said_stays(option):
    optimizer = fuse(torch.optim.AdamW([nn.Parameter(torch.ones(3))], **option))
    assert not optimizer.param_groups[0]["fused"]


def test_an_optimiser_without_a_fused_kernel_is_left_alone():
    optimizer = torch.optim.RMSprop([nn.Parameter(torch.ones(3))])
    assert "fused" not in fuse(optimizer).param_groups[0]


def test_a_state_saved_by_the_plain_optimiser_goes_on():
    net = nn.Linear(3, 2)
    unfused = torch.optim.AdamW(net.parameters(), lr=1e-2)
    steps(unfused, net, torch.ones(2, 1, 3))
    going = fuse(torch.optim.AdamW(net.parameters(), lr=1e-2))
    going.load_state_dict(unfused.state_dict())
    steps(going, net, torch.ones(2, 1, 3))
    assert all(state["step"] == 4 for state in going.state.values())
