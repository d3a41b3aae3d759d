"""muP's coordinate check: by how much a few steps of training change activations, against the width of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from zoo.conformance.short_training import learn_tokens
from zoo.models.initialization import Init
from zoo.tasks.lm import CausalLM
from zoo.tasks.optimizers import OptimizerFactory

HEAD = 16  # width of a head, at every width of the model
WORDS, LENGTH, ROWS = 64, 32, 8

Rule = Callable[[int], Init]


def changes(
    rule: Rule, dim: int, steps: int = 5, lr: float = 1e-2, seed: int = 1, optimizer: OptimizerFactory = AdamW
) -> dict[str, float]:
    """Root mean square of the change, from the start to after ``steps``, of each block's output and of the logits."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS, "max_length": LENGTH, "dim": dim, "depth": 2, "heads": dim // HEAD}
    options: dict[str, Any] = {**sizes, "tie": False, "lr": lr, "init": rule, "optimizer": optimizer}
    task = CausalLM(**options).eval()
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=draw)
    start = activations(task, tokens[:, :-1])
    learn_tokens(task, tokens, steps)
    end = activations(task, tokens[:, :-1])
    return {name: float((end[name] - start[name]).square().mean().sqrt()) for name in start}


@torch.no_grad()
def activations(task: CausalLM, tokens: Tensor) -> dict[str, Tensor]:
    """Outputs of the blocks and logits, (B, T, …), of tokens (B, T)."""
    recorded: dict[str, Tensor] = {}
    hooks = [
        block.register_forward_hook(lambda _, inputs, output, name=f"block {number}": recorded.update({name: output}))
        for number, block in enumerate(task.net.stack.blocks)
    ]
    recorded["logits"] = task.net(tokens)
    for hook in hooks:
        hook.remove()
    return recorded


def slope(sizes: dict[int, float]) -> float:
    """The slope of log2 size over log2 width, by least squares."""
    return float(np.polyfit(np.log2(list(sizes)), np.log2(list(sizes.values())), 1)[0])


def slopes(rule: Rule, widths: Sequence[int], **options: Any) -> dict[str, float]:
    """The slope of each activation over these widths, the mean of three seeds."""
    table = {width: [changes(rule, width, seed=seed, **options) for seed in (1, 2, 3)] for width in widths}
    names = table[widths[0]][0]
    return {name: slope({w: sum(run[name] for run in runs) / len(runs) for w, runs in table.items()}) for name in names}
