"""What it costs that a part comes from a plugin: lm-tiny's sizes with zoo-hello's norm, and the same code inlined."""

from __future__ import annotations

import sys
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
    found = language.batches(VOCAB)
    language.ROWS, language.LENGTH = before
    return found


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
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + layer.out(seen)
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
