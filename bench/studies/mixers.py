"""Token mixers against softmax attention: training speed at 512 tokens, and the cost of a token up to ``--longest``.

Each mixer and softmax attention take turns in one process, and a ratio is that of two neighbouring turns: what else the
machine does weighs on both. Needs zoo-frontier; zoo-efficient's are measured where it is installed.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.arena import CLOCKS
from bench.study import Options, Table, exponent, fresh

SOFTMAX = "MultiHead"
MIXERS = ("GatedDeltaNet", "Mamba2", "Performer")
DIM, DEPTH, HEADS, LENGTH, ROWS = 128, 4, 4, 512, 2
SHORTEST, LONGEST = 256, 8192


def study(options: Options) -> list[Table]:
    """Tokens per second as a ratio, and microseconds of a token by length; with a folder also ``mixers.png``."""
    from zoo import registry

    names = [part.name for part in registry.parts("attention") if part.name in MIXERS]
    lengths = [SHORTEST << n for n in range(20) if SHORTEST << n <= min(LONGEST, options.longest)]
    arguments = {"names": names, "turns": options.turns, "clock": options.clock}
    seconds = fresh("bench.studies.mixers:steps", **arguments)
    speed = Table(
        f"Training steps at {LENGTH} tokens ({ROWS} rows, {DEPTH} layers, dim {DIM}, fp32): softmax attention's time "
        "over the mixer's",
        ["mixer", "ms a step", "ms of softmax attention", "ratio", "lowest and highest"],
    )
    for name in names:
        ratios = [a / b for a, b in zip(seconds[SOFTMAX], seconds[name], strict=True)]
        times = [statistics.median(seconds[one]) * 1e3 for one in (name, SOFTMAX)]
        speed.rows.append([name, *times, statistics.median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"])
    costs = fresh("bench.studies.mixers:costs", lengths=lengths, **arguments)
    growth = Table(
        f"Microseconds of a token, forward and backward of one layer (1 row, dim {DIM}, {HEADS} heads, fp32)",
        ["mixer", *(f"{n:,}" for n in lengths), "power of the length"],
    )
    for name, by_length in costs.items():
        row = [by_length[n] * 1e6 / n for n in lengths]
        growth.rows.append([name, *row, exponent(lengths, row)])
    if options.figures:
        draw({row[0]: row[1:-1] for row in growth.rows}, lengths, options.figures / "mixers.png")
    return [speed, growth]


def steps(names: list[str], turns: int, clock: str) -> dict[str, list[float]]:
    """Seconds of training steps of a language model by mixer, in turns."""
    import torch

    from bench.language_parts import language_parts
    from zoo import registry
    from zoo.tasks.lm import CausalLM

    tokens = torch.randint(1024, (ROWS, LENGTH + 1))
    batch, entrants = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}, {}
    for name in (SOFTMAX, *names):
        sizes = {"vocab_size": 1024, "max_length": LENGTH, "dim": DIM, "depth": DEPTH, "heads": HEADS}
        task = CausalLM(**sizes, attention=registry.get("attention", name), **language_parts())
        entrants[name] = task, task.make_optimizer()

    def step(name: str) -> None:
        task, optimizer = entrants[name]
        total, size = task.loss(batch)
        optimizer.zero_grad()
        (total / size).backward()
        optimizer.step()

    return take_turns({name: lambda name=name: step(name) for name in entrants}, turns, clock)


def costs(names: list[str], lengths: list[int], turns: int, clock: str) -> dict[str, dict[int, float]]:
    """Seconds of a layer's forward and backward by mixer and length: the least of the turns."""
    import torch

    from zoo import registry
    from zoo.models.stack import Stack
    from zoo.parts.position import Extent, RoPE

    result: dict[str, dict[int, float]] = {name: {} for name in (SOFTMAX, *names)}
    for length in lengths:
        x = torch.randn(1, length, DIM)
        stacks = {
            name: Stack(Extent((length,), causal=True), dim=DIM, depth=1, heads=HEADS, hidden=8, position=RoPE,
                        attention=registry.get("attention", name))
            for name in result
        }  # fmt: skip
        work = {name: lambda stack=stack, x=x: stack(x).sum().backward() for name, stack in stacks.items()}
        for name, seconds in take_turns(work, max(2, turns // 3), clock).items():
            result[name][length] = min(seconds)
    return result


def take_turns(work: dict[str, Any], turns: int, clock: str) -> dict[str, list[float]]:
    """Seconds of each call by name, after one untimed call each."""
    now, seconds = CLOCKS[clock], {name: [] for name in work}
    for call in work.values():
        call()
    for _ in range(turns):
        for name, call in work.items():
            start = now()
            call()
            seconds[name].append(now() - start)
    return seconds


def draw(costs: dict[str, list[float]], lengths: list[int], file: Path) -> None:
    """Microseconds of a token over the length, one line per mixer."""
    from zoo.palette import LIGHT, SERIES
    from zoo.plotting import new_figure, style, to_png

    with style():
        figure = new_figure(420, 240)
        axes = figure.add_axes((0.13, 0.19, 0.6, 0.76))
        for (name, row), colour in zip(costs.items(), SERIES, strict=False):
            axes.plot(lengths, row, color=LIGHT[colour], label=name, marker="o", markersize=3)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
        ticks = [
            2**n for n in range(0, 14) if min(map(min, costs.values())) / 2 < 2**n < 2 * max(map(max, costs.values()))
        ]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("tokens")
        axes.set_ylabel("µs per token")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        file.write_bytes(to_png(figure))
