"""What a computation keeps and makes, and how that grows."""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def saved_bytes(run, parameters=()):
    """Bytes that ``run`` keeps for its backward pass, parameters aside."""
    excluded = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()  # kept until the sizes are counted, so that no storage is used twice
    del out
    return sum(storages.values())


class Largest(TorchDispatchMode):
    """The most numbers that any operation within gives at once."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


def exponent(sizes):
    """The power of the length that {length: size} grows with, by least squares in logarithms."""
    xs, ys = [math.log(n) for n in sizes], [math.log(size) for size in sizes.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def padded(rows, on_left, width):
    """Rows (1, n, dim) in one batch, padding on one side filled with rubbish, and where the real tokens are."""
    x, valid = 10 * torch.randn(len(rows), width, rows[0].size(-1)), torch.zeros(len(rows), width, dtype=torch.bool)
    for b, row in enumerate(rows):
        place = slice(width - row.size(1), width) if on_left else slice(0, row.size(1))
        x[b, place], valid[b, place] = row[0], True
    return x, valid
