"""Chunked and recurrent forms agree, with each other and with loops over numbers; decoding needs one state."""

import pytest
import torch
from torch.testing import assert_close
from zoo_frontier.mixer import linear_chunks, linear_step

double = pytest.mark.usefixtures("double")


def inputs(T, delta):
    q, k = torch.randn(2, 2, 3, T, 4)
    v, g, S = torch.randn(2, 3, T, 5), -torch.rand(2, 3, T), torch.randn(2, 3, 4, 5)
    return q, torch.nn.functional.normalize(k, dim=-1), v, g, torch.rand(2, 3, T) if delta else None, S


@double
@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("T", [1, 7, 32, 33, 100])
def test_chunks_are_the_recurrence(T, delta):
    arguments = inputs(T, delta)
    assert_close(linear_chunks(*arguments), linear_step(*arguments), atol=1e-10, rtol=0)


@double
@pytest.mark.parametrize("delta", [True, False])
def test_the_recurrence_is_its_formula(delta):
    q, k, v, g, beta, S = inputs(6, delta)
    out, last = linear_step(q, k, v, g, beta, S)
    for b in range(2):
        for h in range(3):
            state = S[b, h]
            for t in range(6):
                key, decay = k[b, h, t], g[b, h, t].exp()
                if delta:  # S (1 - beta k k') decay + beta v k', transposed
                    erased = torch.eye(4) - beta[b, h, t] * torch.outer(key, key)
                    state = decay * erased @ state + beta[b, h, t] * torch.outer(key, v[b, h, t])
                else:
                    state = decay * state + torch.outer(key, v[b, h, t])
                assert_close(out[b, h, t], state.T @ q[b, h, t], atol=1e-10, rtol=0)
            assert_close(last[b, h], state, atol=1e-10, rtol=0)
