"""The history of language models in bits per byte, from the runs of six recipes: a table, and a picture.

zoo fit history-1-laplace ... zoo fit history-6-transformer
python -m zoo_classic.ladder [--runs runs] [--picture ladder.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from zoo.compare.drawing import Drawing
from zoo.errors import UsageError

RUNGS = {
    "history-1-laplace": "bigram, add-one (Laplace)",
    "history-2-ngram": "4-gram, Kneser-Ney",
    "history-3-nnlm": "NNLM, five tokens",
    "history-4-rnn": "RNN",
    "history-5-lstm": "LSTM",
    "history-6-transformer": "Transformer",
}
LEFT, ROW, TOP, WIDE = 210, 34, 46, 330


class Rung(NamedTuple):
    """A recipe, what it is, and what its runs reached: bits per byte of the best validation, one for each seed."""

    recipe: str
    name: str
    reached: list[float]

    @property
    def mean(self) -> float:
        return sum(self.reached) / len(self.reached)


def rungs(runs: Path) -> list[Rung]:
    """Every rung that has a finished run. Raises UsageError where none has."""
    found = []
    for recipe, name in RUNGS.items():
        reached = [measured(path.parent) for path in sorted(runs.glob(f"{recipe}/default/*/finished.json"))]
        if reached:
            found.append(Rung(recipe, name, reached))
    if not found:
        raise UsageError(f"no rung has a finished run in {runs}. Train one: zoo fit {next(iter(RUNGS))}")
    return found


def measured(run: Path) -> float:
    """The bits per byte that a run reached at its end."""
    return float(json.loads((run / "finished.json").read_text("utf-8"))["val/bits_per_byte"])


def draw(found: list[Rung]) -> Drawing:
    """A bar for each rung, oldest first; a mark for each seed."""
    drawing = Drawing(LEFT + WIDE + 90, TOP + ROW * len(found) + 20, "bits per byte by kind of language model")
    drawing.text("bits per byte of held-out text (less is better)", LEFT, 20, 13)
    most = max(max(rung.reached) for rung in found)
    best = min(rung.mean for rung in found)
    for number, rung in enumerate(found):
        middle, end = TOP + ROW * (number + 0.5), LEFT + WIDE * rung.mean / most
        drawing.text(rung.name, LEFT - 12, middle, 13, "ink", "end")
        colour = "c3" if rung.mean == best else "c1"
        drawing.rectangle((LEFT, middle - 9, end, middle + 9), colour, 0.85)
        if len(rung.reached) > 1:
            for one in rung.reached:
                drawing.mark(LEFT + WIDE * one / most, middle, "ink", size=3)
        drawing.text(f"{rung.mean:.3f}", max(end, LEFT + WIDE * max(rung.reached) / most) + 10, middle, 13)
    return drawing


def main() -> None:
    """Print the table; draw the picture where a file for it is named."""
    parser = argparse.ArgumentParser(prog="python -m zoo_classic.ladder", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    try:
        found = rungs(asked.runs)
    except UsageError as error:
        parser.exit(2, f"error: {error}\n")
    for rung in found:
        print(f"{rung.name:<28} {rung.mean:.3f} bits per byte   {rung.recipe}")
    if asked.picture:
        draw(found).image().save(asked.picture)


if __name__ == "__main__":
    main()
