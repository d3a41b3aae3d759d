"""The scoreboard in TensorBoard: a run per variant, with a scalar per task."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from zoo.compare import scoreboard
from zoo.compare.scoreboard import Scoreboard
from zoo.compare.tensorboard_summary import MOST, NAME, SCOREBOARD_TAGS, wrap_markdown, write_row
from zoo.config.run_folder import slug
from zoo.console import printable

TAG = "scoreboard"


def write_summary(home: Path, board: Scoreboard) -> Path:
    """Write the scoreboard for TensorBoard: its table as text, and a run per variant with its scores as scalars and
    its name as hyperparameter, so that Scalars and HParams show a row per variant and a column per task.
    """
    from zoo.logging.event_files import Events

    folder = home / NAME
    shutil.rmtree(folder, ignore_errors=True)  # an earlier answer of the same comparison
    writer = Events(str(folder))
    writer.add_text(TAG, wrap_markdown(printable(scoreboard.as_markdown(board), lines=True)), 0)
    writer.close()
    for row in board.rows:
        values = {f"{TAG}/{name}": value for name, value in scalars(board, row).items()}
        choices = {"variant": row.name, "verdict": row.verdict.word}
        write_row(folder / (slug(row.name) or "variant"), row.name, choices, values)
    return folder


def scalars(board: Scoreboard, row: scoreboard.OverallRow) -> dict[str, float]:
    """The figures of a variant by what they are: the mean score in every task, the score over all, P(improvement)."""
    means = {recipe: sum(each.values()) / len(each) for recipe, each in row.scores.items() if each}
    improvement = 0.5 if row.name == board.baseline else row.improvement.value
    values = {**means, "all tasks": row.score.value, "P(improvement)": improvement}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def pinned_tags(board: Scoreboard) -> tuple[str, ...]:
    """The charts that the link pins: the score over all tasks, P(improvement), then the figure of every task."""
    goals = dict.fromkeys(f"val/{task.answer.goal}" for task in board.tasks)
    return (*SCOREBOARD_TAGS, *goals)[:MOST]
