"""Mixers of tokens with a state of one size: a gated delta rule, and Mamba-2's selective state space."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.parts.attention import Attention, MultiHead
from zoo.parts.backend import Backend, Naive
from zoo.parts.cache import PartState
from zoo.parts.few_row_linear import Linear
from zoo.parts.norm import RMSNorm

CHUNK = 32  # tokens that are computed by matrix products; between chunks a state goes on


class State(PartState):
    """What a mixer remembers: S (B, H, D_k, D_v), and the inputs (B, width - 1, C) that its convolution still reads."""

    def __init__(self) -> None:
        self.state: Tensor | None = None
        self.inputs: Tensor | None = None


def decays(g: Tensor) -> Tensor:
    """exp(g_s+1 + ... + g_t) for s <= t and 0 for later s, (..., C, C), of logarithms g (..., C)."""
    total = g.cumsum(-1)
    gap = total[..., :, None] - total[..., None, :]
    later = torch.ones(g.size(-1), g.size(-1), dtype=torch.bool, device=g.device).triu(1)
    return gap.masked_fill(later, -torch.inf).exp()


def linear_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrent form, token by token, of ``linear_chunks``: arguments and results have the same shapes."""
    rows = []
    for t in range(q.size(2)):
        S = S * g[:, :, t, None, None].exp()
        new = v[:, :, t]
        if beta is not None:
            new = beta[:, :, t, None] * (new - (k[:, :, t, None] @ S).squeeze(-2))
        S = S + k[:, :, t, :, None] * new[..., None, :]
        rows.append((q[:, :, t, None] @ S).squeeze(-2))
    return torch.stack(rows, 2), S


def linear_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = e^(g_t) S_t-1 + k_t' u_t and o_t = q_t S_t, in chunks: q, k (B, H, T, K), v (B, H, T, V), g (B, H, T) and
    the state S (B, H, K, V) to o (B, H, T, V) and the last state.

    u_t is v_t, or beta_t (v_t - k_t e^(g_t) S_t-1) with a beta (B, H, T): the delta rule. In a chunk with products
    G = decays(g) the u solve (1 + tril(beta k k' G, -1)) u = beta (v - k e^(sum g) S) (Yang et al., 2024).
    """
    rows = []
    for q_c, k_c, v_c, g_c, b_c in zip(
        *(y.split(CHUNK, 2) for y in (q, k, v, g)), [None] * q.size(2) if beta is None else beta.split(CHUNK, 2)
    ):
        G, first = decays(g_c), g_c.cumsum(-1).exp().unsqueeze(-1)
        u = v_c
        if b_c is not None:
            b_c = b_c.unsqueeze(-1)
            mixed = (b_c * (k_c @ k_c.mT) * G).tril(-1)
            eye = torch.eye(mixed.size(-1), dtype=mixed.dtype, device=mixed.device)
            u = torch.linalg.solve_triangular(eye + mixed, b_c * (v_c - first * (k_c @ S)), upper=False)
        rows.append(first * (q_c @ S) + (q_c @ k_c.mT * G) @ u)
        S = first[..., -1:, :] * S + (k_c * G[..., -1, :, None]).mT @ u
    return torch.cat(rows, 2), S
