"""What course notes claim and the lessons measure, over several seeds: every measured table, with intervals.

``--turns`` is the number of seeds, from 1 on. Nothing but the seed differs from ``zoo lesson NAME``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.study import Options, Table

LESSONS = {
    "recurrence": ("gradients", "layers"),
    "attention": ("sizes",),
    "transformer": ("positions", "initial weights"),
}
LEAST_SEEDS = 3
Values = list[float]  # one of each seed


def study(options: Options) -> list[Table]:
    """One table per claim. Raises UsageError below three seeds."""
    from zoo.errors import UsageError

    if options.turns < LEAST_SEEDS:
        raise UsageError(f"an interval over seeds needs at least {LEAST_SEEDS} of them: --turns {LEAST_SEEDS}")
    results = [run_lessons(seed) for seed in range(1, options.turns + 1)]
    tables = [
        gradients_table([one["gradients"] for one in results]),
        sizes_table([one["sizes"] for one in results]),
        positions_table([one["positions"] for one in results]),
        initial_weights_table([one["initial weights"] for one in results]),
        layers_table(results[0]["layers"]),
    ]
    for table in tables:
        table.notes.append(f"{len(results)} seeds; ± is half of the 95 % interval of the mean (Student's t).")
    tables[-1].notes[-1] = "Counted, so equal for all seeds."
    if options.figures is not None:
        draw(options.figures, results)
    return tables


def run_lessons(seed: int) -> dict[str, Mapping[str, Any]]:
    """The named tables and bars of the lessons with a seed, by name."""
    from zoo_learn import page, source

    results: dict[str, Mapping[str, Any]] = {}
    for name, names in LESSONS.items():
        lesson = source.get_lesson(name)
        events = page.run_lesson(lesson, source.parse_inputs(lesson, [f"seed={seed}"])).events
        by_name = {event.fields["name"]: event.fields for event in events if event.fields.get("name")}
        results |= {one: by_name[one] for one in names}
    return results


def over_seeds(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Values]]:
    """The numbers of each line of a table, for each column those of all seeds, by the line's English name."""
    lines = [{_english(line[0]): line[1:] for line in table["lines"]} for table in tables]
    return {name: [list(values) for values in zip(*(one[name] for one in lines), strict=True)] for name in lines[0]}


def _english(text: Any) -> str:
    return str(text["en"] if isinstance(text, Mapping) else text)


def interval(values: Values) -> tuple[float, float]:
    """Mean, and half of its 95 % interval."""
    from zoo.compare.statistics import ALPHA, mean_and_deviation, t_critical

    mean, deviation = mean_and_deviation(values)
    return mean, t_critical(ALPHA, len(values) - 1) * deviation / math.sqrt(len(values))


def with_interval(values: Values) -> str:
    """Mean ± half of the interval, with as many digits as the interval justifies."""
    mean, half = interval(values)
    digits = max(0, min(4, 1 - math.floor(math.log10(half)))) if half > 0 else 4
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def as_factor(values: Values, digits: int = 2) -> str:
    """Geometric mean, and the factor to the ends of its interval."""
    mean, half = interval([math.log(value) for value in values])
    factor = f"{math.exp(half):.2f}" if half < math.log(10) else f"{math.exp(half):,.0f}"
    return f"{math.exp(mean):.{digits}g} ×/÷ {factor}"


def gradients_table(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Gradients at the first token by length, and the factor by which a token more multiplies them."""
    lengths = [int(one) for one in tables[0]["headings"][1:]]
    result = Table(
        "Gradient at the first of n tokens, divided by that at the last but one (untrained, width 16)",
        ["network", *map(str, lengths), "factor a token"],
    )
    for name, columns in over_seeds(tables).items():
        factors = [slope(lengths, [math.log(one) for one in of_seed]) for of_seed in zip(*columns, strict=True)]
        result.rows.append([name, *map(as_factor, columns), as_factor([math.exp(one) for one in factors], 3)])
    return result


def sizes_table(bars: Sequence[Mapping[str, Any]]) -> Table:
    """Loss by size; the exponent is that of the power law loss = a · size^b of each seed."""
    result = Table("Loss against size (letters of Python's help texts, 120 steps)", ["parameters", "bits a letter"])
    for name in bars[0]["values"]:
        result.rows.append([name, with_interval([one["values"][name] for one in bars])])
    sizes = [math.log(size_of(name)) for name in bars[0]["values"]]
    slopes = [slope(sizes, [math.log(value) for value in one["values"].values()]) for one in bars]
    result.rows.append(["exponent", with_interval(slopes)])
    falls = sum(list(one["values"].values()) == sorted(one["values"].values(), reverse=True) for one in bars)
    result.notes.append(f"Each model is better than the next smaller one with {falls} of {len(bars)} seeds.")
    return result


def size_of(text: str) -> int:
    """A number of parameters with separators, as a number."""
    return int(text.replace(",", ""))


def positions_table(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Accuracies, and the differences of concatenated to added by seed."""
    result = Table(
        "Positions added or concatenated (write 8 to 12 letters backwards, 250 steps): share of right letters",
        ["position", "parameters", "12 letters", "24 letters (longer than in training)"],
    )
    lines = over_seeds(tables)
    for name, (parameters, *columns) in lines.items():
        result.rows.append([name, int(parameters[0]), *map(with_interval, columns)])
    pairs = zip(lines["concatenated"][1:], lines["added"][1:], strict=True)
    differences = [[one - other for one, other in zip(*pair, strict=True)] for pair in pairs]
    result.rows.append(["concatenated − added", "", *map(with_interval, differences)])
    return result


def initial_weights_table(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Spread of activations by layer, and of the gradient at the input."""
    headings = ["weights", "spread after layer 1", "after 5", "after 15", "gradient at the input"]
    result = Table("Initial weights: 15 layers of tanh, width 256", headings)
    result.rows += [[name, *map(as_factor, columns)] for name, columns in over_seeds(tables).items()]
    return result


def layers_table(table: Mapping[str, Any]) -> Table:
    """Operations, memory, path and steps that must follow each other; without the times of one machine."""
    headings = [
        "layer", "FLOPs at 512 tokens", "exponent", "exponent of memory", "longest path", "operations in a row",
    ]  # fmt: skip
    result = Table("Recurrence, convolution, attention (width 64; exponents from 256 to 512 tokens)", headings)
    result.rows += [
        [_english(name), f"{flops:,}", f"{power:.1f}", f"{memory:.1f}", path, chain]
        for name, flops, power, memory, path, chain, _ in table["lines"]
    ]
    result.notes.append("FLOPs of attention are those of its scores and weighted values.")
    return result


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the line that fits best, by least squares."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True))
    return over / sum((one - mean_x) ** 2 for one in x)


# figures


def draw(folder: Path, results: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
    """A picture of each claim that is a curve: means of the seeds, with intervals as bars."""
    from zoo.plotting import style

    folder.mkdir(parents=True, exist_ok=True)
    gradients = [one["gradients"] for one in results]
    lengths = [float(one) for one in gradients[0]["headings"][1:]]
    losses = [one["sizes"]["values"] for one in results]
    sizes = [float(size_of(name)) for name in losses[0]]
    weights = [one["initial weights"] for one in results]
    with style():
        _chart(
            folder / "claims-gradients.png", "Gradient at the first of n tokens", "n", lengths,
            over_seeds(gradients), geometric=True,
        )  # fmt: skip
        _chart(
            folder / "claims-sizes.png", "Bits a letter, one block, 120 steps", "parameters", sizes,
            {"one block, 120 steps": [[one[name] for one in losses] for name in losses[0]]},
        )  # fmt: skip
        spreads = {name: columns[:3] for name, columns in over_seeds(weights).items()}
        _chart(
            folder / "claims-weights.png", "Spread of activations", "layer", [1.0, 5.0, 15.0], spreads, geometric=True
        )


def _chart(
    path: Path, title: str, label: str, x: Sequence[float], series: Mapping[str, list[Values]], geometric: bool = False
) -> None:
    from zoo.palette import LIGHT
    from zoo.plotting import new_figure, to_png

    figure = new_figure(520, 300)
    axes = figure.add_axes((0.11, 0.16, 0.55, 0.72))
    transform: Callable[[float], float] = math.log if geometric else float
    back: Callable[[float], float] = math.exp if geometric else float
    for name, columns in series.items():
        ends = [interval([transform(value) for value in column]) for column in columns]
        means = [back(mean) for mean, _ in ends]
        bars = [[mean - back(one - half) for mean, (one, half) in zip(means, ends, strict=True)],
                [back(one + half) - mean for mean, (one, half) in zip(means, ends, strict=True)]]  # fmt: skip
        axes.errorbar(x, means, yerr=bars, label=name, marker="o", markersize=4, capsize=3)
    axes.set_xscale("log", base=2 if geometric else 10)
    axes.set_xticks(x, [f"{one:,.0f}" for one in x], fontsize=8)
    axes.minorticks_off()
    if geometric:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0e}")
    axes.set_xlabel(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y")
    axes.set_title(title, loc="left", fontsize=11, color=LIGHT["ink"])
    if len(series) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, frameon=False)
    path.write_bytes(to_png(figure))
