"""The products of attention on a CPU equal the textbook with every feature, with and without gradients."""

import contextlib

import pytest
import torch
from torch.testing import assert_close

from zoo.parts import cpu_attention
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern

VALID = torch.tensor([[True, True, False, True, True], [False, False, True, True, True]])
FEATURES = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 2},
    "padding": {"valid": VALID},
    "bias": {"bias": lambda head, query, key: 0.3 * (head + 1) * (query - 2 * key)},
    "bias, mask": {"bias": lambda head, query, key: 0.3 * (head + 1) * (query - 2 * key), "causal": True},
}


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.no_grad], ids=["training", "no_grad"])
@pytest.mark.usefixtures("double")
def test_it_is_the_textbook(fields, scale, context):
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 5, 6), torch.randn(2, 2, 5, 3)
    with context():
        out = cpu_attention.attention(q, k, v, Pattern(**fields), scale=scale)
    assert_close(out, Naive()(q, k, v, Pattern(**fields), scale=scale), atol=1e-10, rtol=0)
