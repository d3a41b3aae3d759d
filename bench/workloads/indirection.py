"""What it costs that a part comes from a plugin: lm-tiny's sizes with zoo-hello's norm, and the same code inlined.

    python -m bench.workloads.indirection 60

times both in one process, in turns: two processes differ by a few percent in where their memory lies, more than what is
measured here.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.training import RATE, Step, our_optimizer, ours
from bench.workloads import language

DIM, DEPTH, HEADS, LENGTH, ROWS, VOCAB = 128, 4, 4, 64, 12, 1024
PLUGIN = Path(__file__).parents[2] / "plugins" / "zoo-hello" / "src"


def batches() -> list[tuple[Tensor, Tensor]]:
    """The language model's, at these sizes."""
    before = language.ROWS, language.LENGTH
    language.ROWS, language.LENGTH = ROWS, LENGTH
    tokens = language.batches(VOCAB)
    language.ROWS, language.LENGTH = before
    return tokens


def plugged() -> Step:
    """zoo with the plugin's class, in the place that `--model.norm dyt` gives it."""
    sys.path.insert(0, str(PLUGIN))
    from zoo_hello import DyT

    from zoo.parts.position import Learned
    from zoo.tasks.lm import CausalLM

    sizes = {"dim": DIM, "depth": DEPTH, "heads": HEADS}
    task = CausalLM(VOCAB, LENGTH, lr=RATE, position=Learned, norm=DyT, **sizes)
    data = [{"inputs": inputs, "targets": targets} for inputs, targets in batches()]
    return Step(task.net, ours(task), data, "fp32", our_optimizer(task))


class Scale(nn.Module):
    """The numbers of one DyT."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.weight, self.bias = (nn.Parameter(torch.ones(size)) for size in (1, DIM, DIM))


class Layer(nn.Module):
    """The matrices of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Scale(), Scale()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)


class Inlined(nn.Module):
    """The same function written in one piece: no part, no pattern, no context."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.table = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.layers, self.last = nn.ModuleList(Layer() for _ in range(DEPTH)), Scale()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.table(torch.arange(tokens.size(1)))
        for layer in self.layers:
            own = layer.first
            y = torch.tanh(own.alpha * x) * own.weight + own.bias
            heads = layer.qkv(y).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
            q, k, v = heads.split(HEADS, 1)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + layer.out(mixed)
            own = layer.second
            y = torch.tanh(own.alpha * x) * own.weight + own.bias
            x = x + layer.down(F.gelu(layer.up(y)))
        own = self.last
        return torch.tanh(own.alpha * x) * own.weight + own.bias


def inlined() -> Step:
    """The peer."""
    from zoo.models.loss import cross_entropy

    net = Inlined()

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(net(batch[0]), net.embedding.weight, batch[1]) / batch[1].numel()

    return Step(net, loss, batches(), "fp32", lambda each: torch.optim.AdamW(each, lr=RATE, fused=True))


def together(turns: int, first: int = 20) -> dict[str, list[float]]:
    """Milliseconds of processor time of each turn of each entrant, after the untimed ones."""
    steps = {"plugged": plugged(), "inlined": inlined()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-first, turns):
        for name in sorted(steps, reverse=turn % 2 == 0):
            start = time.process_time()
            steps[name](turn + first)
            if turn >= 0:
                times[name].append((time.process_time() - start) * 1e3)
    return times


if __name__ == "__main__":
    from zoo.system import malloc

    malloc.keep_freed_memory()
    torch.set_num_threads(1)
    medians = together(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    for name, each in medians.items():
        print(f"{name}  median {statistics.median(each):.1f} ms, least {min(each):.1f} ms")
    ratios = [inline / plug for plug, inline in zip(medians["plugged"], medians["inlined"], strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"speed of the part of a plugin over the same code inlined: {statistics.mean(ratios):.3f} ± {error:.3f}")
