"""What every part of the package is measured by."""

import torch

from zoo.models.stack import Stack
from zoo.parts.position import Extent, RoPE


def causal_stack(length=24, dim=16, heads=2, **options):
    """A causal stack of two blocks, its parameters moved off zeros and ones, in evaluation."""
    net = Stack(Extent((length,), causal=True), **{"dim": dim, "heads": heads, "depth": 2, "position": RoPE} | options)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net.eval()


def decoding_gap(net, length=13):
    """The largest difference of decoding in chunks of 4, 1, 3, 1, … tokens from one pass over (3, length) tokens,
    where two rows change places after the second chunk.
    """
    x, rows = torch.randn(3, length, net.dim), torch.tensor([2, 0, 1])
    whole, caches, steps, at = net(x), net.caches(length), [], 0
    for size in [4, 1, 3, *[1] * (length - 8)]:
        steps.append(net(x[:, at : at + size], caches=caches) - whole[:, at : at + size])
        at += size
        if at == 5:
            for cache in caches:
                cache.own.select(rows)
            x, whole = x[rows], whole[rows]
    return torch.cat(steps, 1).abs().max().item()


def padding_gap(net, pad_left=True):
    """The largest difference of rows of 9 and 4 tokens in a padded batch from each row alone."""
    rows, width = [torch.randn(1, n, net.dim) for n in (9, 4)], 11
    x, valid = 10 * torch.randn(2, width, net.dim), torch.zeros(2, width, dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(width - row.size(1), width) if pad_left else slice(0, row.size(1))
        x[number, place], valid[number, place] = row[0], True
    out = net(x, valid)
    return max((out[n][valid[n]] - net(row)[0]).abs().max().item() for n, row in enumerate(rows))


def padded_decoding_gap(net, length=9, shorter=6):
    """The largest difference of two prompts decoded together, the shorter one padded on the left, from each alone."""
    rows = [torch.randn(1, length, net.dim), torch.randn(1, shorter, net.dim)]
    valid = torch.arange(length) >= torch.tensor([[0], [length - shorter]])
    filled = torch.cat([torch.randn(1, length - shorter, net.dim), rows[1]], 1)
    x, caches = torch.cat([rows[0], filled]), net.caches(length)
    steps = torch.cat([net(x[:, a:b], valid[:, :b], caches=caches) for a, b in ((0, 5), (5, 6), (6, length))], 1)
    return max((steps[n][valid[n]] - net(row)[0]).abs().max().item() for n, row in enumerate(rows))
