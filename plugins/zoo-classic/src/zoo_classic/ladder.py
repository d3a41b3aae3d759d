"""The history of language models in bits per byte, from the runs of six recipes: a table, and a picture.

zoo fit history-1-laplace ... zoo fit history-6-transformer
python -m zoo_classic.ladder [--runs runs] [--picture ladder.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from zoo.errors import UsageError
from zoo.palette import LIGHT
from zoo.plotting import new_figure, style, to_image

RUNGS = {
    "history-1-laplace": "bigram, add-one (Laplace)",
    "history-2-ngram": "4-gram, Kneser-Ney",
    "history-3-nnlm": "NNLM, five tokens",
    "history-4-rnn": "RNN",
    "history-5-lstm": "LSTM",
    "history-6-transformer": "Transformer",
}
MARGIN, ROW, TOP, WIDTH = 210, 34, 46, 630


class Rung(NamedTuple):
    """A recipe, what it is, and what its runs reached: bits per byte of the best validation, one for each seed."""

    recipe: str
    name: str
    reached: list[float]

    @property
    def mean(self) -> float:
        """The mean over seeds, in bits per byte."""
        return sum(self.reached) / len(self.reached)


def rungs(runs: Path) -> list[Rung]:
    """Every rung that has a finished run. Raises UsageError where none has."""
    result = []
    for recipe, name in RUNGS.items():
        reached = [measured(path.parent) for path in sorted(runs.glob(f"{recipe}/default/*/finished.json"))]
        if reached:
            result.append(Rung(recipe, name, reached))
    if not result:
        raise UsageError(f"no rung has a finished run in {runs}. Train one: zoo fit {next(iter(RUNGS))}")
    return result


def measured(run: Path) -> float:
    """The bits per byte that a run reached at its end."""
    return float(json.loads((run / "finished.json").read_text("utf-8"))["val/bits_per_byte"])


@style()
def draw(ladder: list[Rung]) -> Figure:
    """A bar for each rung, oldest first; a mark for each seed."""
    height = TOP + ROW * len(ladder) + 20
    figure = new_figure(WIDTH, height)
    axes = figure.add_axes((MARGIN / WIDTH, 20 / height, (WIDTH - 90 - MARGIN) / WIDTH, ROW * len(ladder) / height))
    axes.set_title("bits per byte of held-out text (less is better)", loc="left", fontsize=13, pad=12)
    axes.set_axis_off()
    best = min(rung.mean for rung in ladder)
    most = max(max(rung.reached) for rung in ladder)
    axes.set(xlim=(0, most), ylim=(len(ladder) - 0.5, -0.5))
    for y, rung in enumerate(ladder):
        axes.barh(y, rung.mean, 18 / ROW, color=LIGHT["c3" if rung.mean == best else "c1"], alpha=0.85)
        if len(rung.reached) > 1:
            mark: dict[str, Any] = {"markersize": 6, "markeredgecolor": LIGHT["paper"], "clip_on": False}
            axes.plot(rung.reached, [y] * len(rung.reached), "o", color=LIGHT["ink"], **mark)
        label: dict[str, Any] = {
            "textcoords": "offset points",
            "va": "center_baseline",
            "fontsize": 13,
            "annotation_clip": False,
        }
        axes.annotate(rung.name, (0, y), (-12, 0), ha="right", **label)
        axes.annotate(f"{rung.mean:.3f}", (max(rung.reached), y), (10, 0), **label)
    return figure


def main() -> None:
    """Print the table; draw the picture where a file for it is named."""
    parser = argparse.ArgumentParser(prog="python -m zoo_classic.ladder", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    try:
        ladder = rungs(arguments.runs)
    except UsageError as error:
        parser.exit(2, f"error: {error}\n")
    for rung in ladder:
        print(f"{rung.name:<28} {rung.mean:.3f} bits per byte   {rung.recipe}")
    if arguments.picture:
        to_image(draw(ladder)).save(arguments.picture)


if __name__ == "__main__":
    main()
