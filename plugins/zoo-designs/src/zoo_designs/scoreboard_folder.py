"""The folder of a scoreboard: recipes.json, which names the comparisons, and what TensorBoard shows."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.compare.run_records import FOLDER
from zoo.compare.tensorboard_summary import MOST, start_summary, write_row
from zoo.config.run_folder import slug
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo_designs import scoreboard
from zoo_designs.scoreboard import OverallRow, Scoreboard

SCOREBOARD, SCOREBOARD_FORMAT = "recipes.json", 1
TAG = "scoreboard"
SCOREBOARD_TAGS = ("scoreboard/all tasks", "scoreboard/P(improvement)")


def scoreboard_path(root: Path, recipes: Sequence[str], title: str) -> Path:
    """``<root>/compare/<recipe>+<recipe>/<title>``."""
    return root / FOLDER / slug("+".join(recipes)) / title


def save_members(home: Path, members: Mapping[Path, Mapping[str, str]], command: str) -> None:
    """Write recipes.json: the folders of comparisons, relative to it, with what all recipes call their variants."""
    home.mkdir(parents=True, exist_ok=True)
    comparisons = [{"folder": os.path.relpath(folder, home), "names": names} for folder, names in members.items()]
    content = {"format": SCOREBOARD_FORMAT, "comparisons": comparisons, "command": command}
    atomic_files.write_json(home / SCOREBOARD, content, end="\n")


def load_members(home: Path) -> tuple[dict[Path, dict[str, str]], str]:
    """The comparisons of a scoreboard and its command. Raises UsageError if its file is damaged."""
    path = home / SCOREBOARD
    try:
        content: Any = limits.read_json(path)
        members = {
            Path(os.path.normpath(home / comparison["folder"])): {
                str(name): str(shared) for name, shared in comparison["names"].items()
            }
            for comparison in content["comparisons"]
        }
        return members, str(content["command"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {error!r:.80}. Run the comparison again: it repeats no run.") from error


def same_recipes(home: Path) -> list[Path]:
    """The folders of scoreboards of the same recipes, in whatever order they were named; this one is among them."""

    def recipes(folder: Path) -> set[Path]:
        """The folders of a scoreboard's recipes; none for a damaged one."""
        try:
            return {comparison.resolve().parents[1] for comparison in load_members(folder)[0]}
        except UsageError:
            return set()

    folders = sorted(path.parent for path in home.parent.parent.glob(f"*/*/{SCOREBOARD}"))
    return [folder for folder in folders if recipes(home) and recipes(folder) == recipes(home)]


def write_summary(home: Path, board: Scoreboard) -> None:
    """Write the scoreboard for TensorBoard: its table as text, and a run per variant with its scores as scalars and
    its name as hyperparameter, so that Scalars and HParams show a row per variant and a column per task.
    """
    folder, writer = start_summary(home, TAG, scoreboard.describe(board).as_markdown())
    writer.close()
    for row in board.rows:
        values = {f"{TAG}/{name}": value for name, value in scores(board, row).items()}
        choices = {"variant": row.name, "verdict": row.verdict.word}
        write_row(folder / (slug(row.name) or "variant"), row.name, choices, values)


def scores(board: Scoreboard, row: OverallRow) -> dict[str, float]:
    """The figures of a variant by what they are: the mean score in every task, the score over all, P(improvement)."""
    means = {recipe: sum(by_seed.values()) / len(by_seed) for recipe, by_seed in row.scores.items() if by_seed}
    improvement = 0.5 if row.name == board.baseline else row.improvement.value
    values = {**means, "all tasks": row.score.value, "P(improvement)": improvement}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def pinned_scores(board: Scoreboard) -> tuple[str, ...]:
    """The charts that the link pins: the score over all tasks, P(improvement), then the figure of every task."""
    goals = dict.fromkeys(f"val/{task.answer.goal}" for task in board.tasks)
    return (*SCOREBOARD_TAGS, *goals)[:MOST]
