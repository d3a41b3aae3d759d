"""Slow kernels with the signatures and semantics that flash-attn and torch document, one segment after the other."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def attend(*args):
    """(Q, H, D), (K, G, D), (K, G, D') to (Q, H, D'), in O(N) memory."""
    with torch.autocast("cpu", enabled=False):
        return checkpoint(segments, *args, use_reentrant=False)


def segments(q, k, v, query_ends, key_ends, scale, window, slopes=None, dropout=0.0):
    """Query i of a segment sees i + S - T - left <= j <= i + S - T + right; all is summed in float32 or wider."""
    share, rows, dtype = q.size(1) // k.size(1), [], q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    pairs = zip(query_ends.tolist(), key_ends.tolist(), strict=True)
    before = next(pairs)
    for ends in pairs:
        (first, begin), (last, end), before = before, ends, ends
        T, S = last - first, end - begin
        keys, values = (x[begin:end].repeat_interleave(share, 1) for x in (k, v))
        scores = torch.einsum("thd,shd->hts", q[first:last], keys) * scale
        lead = torch.arange(T)[:, None] + S - T - torch.arange(S)
        if slopes is not None:
            scores = scores - slopes.to(wide)[:, None, None] * lead.abs()
        visible = torch.ones(T, S, dtype=torch.bool)
        visible &= True if window[0] < 0 else lead <= window[0]
        visible &= True if window[1] < 0 else -lead <= window[1]
        weights = scores.masked_fill(~visible, torch.finfo(wide).min).softmax(-1).masked_fill(~visible, 0.0)
        rows.append(torch.einsum("hts,shd->thd", F.dropout(weights, dropout), values))
    return torch.cat(rows).to(dtype)


def checked(q, query_ends, key_ends, max_q, max_k):
    """What the kernels of a GPU rely on."""
    for ends, longest in ((query_ends, max_q), (key_ends, max_k)):
        assert ends.dtype == torch.int32
        assert ends[0] == 0
        assert ends.is_contiguous()
        assert ends.diff().min() > 0, "a segment without rows"
        assert ends.diff().max() == longest
    assert query_ends[-1] == len(q)


def flash_attn_varlen_func(
    q, k, v, *ends, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None
):
    """flash-attn 2.8: causality is aligned at the bottom right, ALiBi is -slope |i + S - T - j|."""
    assert q.size(-1) == k.size(-1) == v.size(-1)
    assert q.size(-1) % 8 == 0
    assert alibi_slopes is None or (alibi_slopes.dtype == torch.float32 and alibi_slopes.shape == q.shape[1:2])
    checked(q, *ends)
    window = (window_size[0], 0) if causal else window_size
    scale = q.size(-1) ** -0.5 if softmax_scale is None else softmax_scale
    return attend(q, k, v, *ends[:2], scale, window, alibi_slopes, dropout_p)


def varlen_attn(query, key, value, *ends, scale=None, window_size=(-1, -1), enable_gqa=False):
    """torch 2.15: (-1, 0) is causal, aligned at the bottom right, or at the top left where both ends are one tensor."""
    assert enable_gqa or query.size(1) == key.size(1)
    assert scale is None or scale > 0
    checked(query, *ends)
    assert ends[0] is not ends[1] or torch.equal(ends[0], ends[1])
    scale = query.size(-1) ** -0.5 if scale is None else scale
    return attend(query, key, value, *ends[:2], scale, window_size)
