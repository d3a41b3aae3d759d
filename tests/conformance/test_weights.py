"""The comparison of gradients with differences: a kink nearby is no fault, a wrong gradient is one at every step."""

import pytest
import torch
from torch import nn

from zoo.conformance import checks, parameter_checks, token_checks
from zoo.parts.norm import LayerNorm


class Kinked(nn.Module):
    """relu(x - at), whose kinks lie within the longer of the two steps, with its gradient times `factor`."""

    def __init__(self, at, factor):
        super().__init__()
        self.at, self.factor = at, factor

    def forward(self, x):
        y = torch.relu(x - self.at)
        return y * self.factor + (y * (1 - self.factor)).detach()


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.999, False), (0.5, False)])
def test_a_kink_nearby_is_not_a_wrong_gradient(factor, right):
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    ((_, off),) = parameter_checks.slopes_off(Kinked(x - 2e-6, factor), x.clone())
    assert (off < 1e-4) is right, off


@pytest.mark.parametrize(("seconds", "right"), [(1.9, True), (2.1, False)])
def test_an_import_that_takes_two_seconds_is_too_slow(seconds, right, monkeypatch):
    check = next(check for check in checks(LayerNorm) if check.name == "clean_import")
    report = {"seconds": seconds, "said": "", "network": False, "cuda": False}
    monkeypatch.setitem(token_checks.IMPORTS, (LayerNorm.__module__, token_checks.ready_for("norm")), report)
    assert (check.outcome().status == "ok") is right
