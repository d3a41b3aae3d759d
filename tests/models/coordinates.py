"""muP's coordinate check: ``python -m tests.models.coordinates`` trains language models of several widths.

For each rule it prints the root mean square of what the blocks and the logits change by in some steps, relative to the
start, per width, and the slope of its logarithm over the logarithm of the width: flat is 0.
"""

import argparse
import math

import torch

from zoo.models.initialization import FanIn, Init, MuP
from zoo.tasks.lm import CausalLM

WIDTHS = (64, 128, 256, 512)
HEAD = 16  # width of a head, at every width of the model
WORDS, LENGTH, ROWS = 64, 32, 8


def changes(rule: type[Init], dim: int, steps: int = 5, lr: float = 1e-2, seed: int = 1) -> dict[str, float]:
    """Root mean square of the change, from the start to after ``steps``, of each block's output and of the logits."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS, "max_length": LENGTH, "dim": dim, "depth": 2, "heads": dim // HEAD, "tie": False}
    task = CausalLM(**sizes, lr=lr, init=rule).eval()
    optimizer = task.make_optimizer()
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=draw)
    start = activations(task, tokens[:, :-1])
    for _ in range(steps):
        total, size = task.loss({"inputs": tokens[:, :-1], "targets": tokens[:, 1:]})
        optimizer.zero_grad()
        (total / size).backward()
        optimizer.step()
    end = activations(task, tokens[:, :-1])
    return {name: float((end[name] - start[name]).square().mean().sqrt()) for name in start}


@torch.no_grad()
def activations(task: CausalLM, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs of the blocks and logits, (B, T, …), of tokens (B, T)."""
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        block.register_forward_hook(lambda _, inputs, output, name=f"block {number}": seen.update({name: output}))
        for number, block in enumerate(task.net.stack.blocks)
    ]
    seen["logits"] = task.net(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def slope(sizes: dict[int, float]) -> float:
    """The slope of log2 size over log2 width, by least squares."""
    points = [(math.log2(width), math.log2(size)) for width, size in sizes.items()]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def slopes(rule: type[Init], widths: tuple[int, ...], **options: float) -> dict[str, float]:
    """The slope of each activation over these widths, the mean of three seeds."""
    table = {width: [changes(rule, width, seed=seed, **options) for seed in (1, 2, 3)] for width in widths}
    names = table[widths[0]][0]
    return {name: slope({w: sum(run[name] for run in runs) / len(runs) for w, runs in table.items()}) for name in names}


def main() -> None:
    """Print the table of both rules."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--lr", type=float, default=1e-2)
    chosen = options.parse_args()
    for rule in (FanIn, MuP):
        table = {dim: changes(rule, dim, chosen.steps, chosen.lr) for dim in WIDTHS}
        print(f"{rule.__name__:8}{'':10}" + "".join(f"{dim:>9}" for dim in WIDTHS) + "    slope")
        for name in table[WIDTHS[0]]:
            sizes = {dim: table[dim][name] for dim in WIDTHS}
            print(f"{'':8}{name:10}" + "".join(f"{size:9.3g}" for size in sizes.values()) + f"{slope(sizes):9.2f}")


if __name__ == "__main__":
    main()
