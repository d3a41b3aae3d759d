"""How probable a text is to a masked language model: each token predicted from all others (Salazar et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TOKENS = 1 << 14  # tokens at once


@torch.no_grad()
def pseudo_log_probabilities(
    net: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: tuple[Tensor, Tensor, Tensor], scored: Tensor, mask: int
) -> Tensor:
    """log p(t_i | all other tokens), (N,) for the N places ``scored`` (B, T) in order, with one forward for each.

    ``net`` maps ``inputs``, which are tokens, valid and segments, each (B, T), to logits (B, T, V).
    """
    tokens, valid, segments = inputs
    rows, columns = scored.nonzero(as_tuple=True)
    parts, step = [], max(1, TOKENS // tokens.size(1))
    for begin in range(0, len(rows), step):
        row, column = rows[begin : begin + step], columns[begin : begin + step]
        here = torch.arange(len(row), device=tokens.device)
        hidden = tokens[row]
        hidden[here, column] = mask
        log_probs = net(hidden, valid[row], segments[row])[here, column].float().log_softmax(-1)
        parts.append(log_probs.gather(1, tokens[row, column][:, None])[:, 0])
    return torch.cat(parts) if parts else torch.zeros(0, device=tokens.device)
