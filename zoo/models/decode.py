"""Generate token by token from a trained model."""

import torch
from torch import Tensor

from zoo.models.seq2seq import Seq2Seq


@torch.no_grad()
def greedy(model: Seq2Seq, source: Tensor, valid: Tensor, ends: tuple[int, int], longest: Tensor) -> Tensor:
    """The likeliest next token, again and again, for source (B, S) of which ``valid`` (B, S) is not padding.

    ``ends`` are the tokens that begin and end a target. A row stops at its end token or after ``longest[row]`` tokens;
    the result (B, L) holds what was generated, without the begin token, and the end token from where a row stopped.
    """
    begin, end = ends
    memory = model.encode(source, valid)
    limit = min(int(longest.max()), model.max_length)
    caches = model.decoder.caches(limit)
    token = source.new_full((len(source), 1), begin)
    done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    out = []
    for step in range(limit):
        token = model.decode(token, memory, caches)[:, -1:].argmax(-1)
        done = done | (longest <= step)
        token = token.masked_fill(done[:, None], end)
        out.append(token)
        done = done | (token[:, 0] == end)
        if done.all():
            break
    return torch.cat(out, 1)
