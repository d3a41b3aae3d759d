"""Learning rates of a narrow and a wide language model, with muP and without, on the data of recipe lm-tiny.

At ``NARROW``, muP's base width, both rules are the same, so that each rate is run three times: narrow, wide by FanIn,
wide by MuP. With muP the best rate of the narrow model is that of the wide one.
"""

from __future__ import annotations

import math
from pathlib import Path

from bench.study import Options, Table

NARROW, WIDE, DEPTH, HEAD = 64, 256, 2, 16
RATES = [1e-3 * 2**n for n in range(6)]
STEPS, BATCHES = 120, 20  # of training; of validation
SERIES = {"64, either": ("FanIn", NARROW), "256, FanIn": ("FanIn", WIDE), "256, MuP": ("MuP", WIDE)}


def study(options: Options) -> list[Table]:
    """Validation loss by rate, and the best rate of each series; with a folder for figures also ``mup.png``."""
    columns = ["width and rule", *(f"{rate:.2g}" for rate in RATES), "best rate"]
    losses = {name: [run(rule, width, rate) for rate in RATES] for name, (rule, width) in SERIES.items()}
    table = Table(f"Validation loss after {STEPS} steps, by peak learning rate", columns)
    for name, row in losses.items():
        table.rows.append([name, *row, f"{RATES[row.index(min(row))]:.2g}"])
    narrow = best(losses["64, either"])
    for name in list(SERIES)[1:]:
        table.notes.append(f"{name}: the best rate is {best(losses[name]) / narrow:.2f} times that of width {NARROW}.")
    if options.figures:
        draw(losses, options.figures / "mup.png")
    return [table]


def best(losses: list[float]) -> float:
    """The rate at the bottom of the parabola through the lowest loss and its neighbours, over the rate's logarithm."""
    place = losses.index(min(losses))
    if not 0 < place < len(losses) - 1 or not all(map(math.isfinite, losses[place - 1 : place + 2])):
        return RATES[place]
    before, lowest, after = losses[place - 1 : place + 2]
    curvature = before - 2 * lowest + after
    return RATES[place] * 2 ** (0.5 * (before - after) / curvature if curvature > 0 else 0.0)


def run(rule: str, width: int, rate: float, seed: int = 1) -> float:
    """The validation loss of one run in nats; 12 where it is not finite or more."""
    import torch
    from zoo_exercises.short_runs import train, validate

    from bench.language_parts import language_parts
    from zoo import registry
    from zoo.config.precision import has_fast_bf16
    from zoo.data.stdlib import StdlibDocs
    from zoo.tasks.lm import CausalLM

    data = StdlibDocs(tokenizer="bpe", vocab_size=1024, max_length=64, batch_size=12, seed=seed)
    data.ready()
    torch.manual_seed(seed)
    sizes = {"dim": width, "depth": DEPTH, "heads": width // HEAD, "tie": False, "max_length": 64}
    task = CausalLM(**sizes, **data.sizes(), lr=rate, init=registry.get("init", rule), **language_parts())
    train(task, data, STEPS, bf16=has_fast_bf16("cpu"))
    loss = validate(task, data, BATCHES)["loss"]
    print(f"{rule}, width {width}, rate {rate:g}: {loss:.3f}", flush=True)  # a run takes a minute
    return min(loss, 12.0) if math.isfinite(loss) else 12.0


def draw(losses: dict[str, list[float]], file: Path) -> None:
    """Loss over rate, one line per series, its lowest point marked."""
    from zoo.palette import LIGHT
    from zoo.plotting import new_figure, style, to_png

    with style():
        figure = new_figure(420, 240)
        axes = figure.add_axes((0.12, 0.19, 0.85, 0.76))
        for (name, row), colour in zip(losses.items(), ("ink", "c2", "c1"), strict=True):
            axes.plot(RATES, row, color=LIGHT[colour], label=name, marker="o", markersize=3)
            place = row.index(min(row))
            axes.plot([RATES[place]], [row[place]], color=LIGHT[colour], marker="o", markersize=8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(RATES, [f"{rate:.2g}" for rate in RATES])
        low = min(map(min, losses.values()))
        axes.set_ylim(low - 0.1, low + 1.6)
        axes.set_xlabel("peak learning rate")
        axes.set_ylabel("validation loss, nats")
        axes.legend(frameon=False)
        file.write_bytes(to_png(figure))
