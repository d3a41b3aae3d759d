"""The folder of a scoreboard, ``runs/compare/<recipes>/<name>``: which comparisons it joins, and its report."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.compare import comparison_folder, scoreboard
from zoo.compare.charts import IntervalRow, ReportChart, clip_name, draw_intervals
from zoo.compare.report import render, write_files
from zoo.compare.scoreboard import Scoreboard
from zoo.config.run_folder import slug
from zoo.errors import UsageError
from zoo.io import atomic_files, limits

FILE, FORMAT = "recipes.json", 1
TEMPLATE = "scoreboard.html"


@dataclass(frozen=True)
class ScoreboardMember:
    """One recipe's comparison: its folder, and by variant (a folder's name) what all recipes call it."""

    folder: Path
    names: Mapping[str, str]


def scoreboard_path(root: Path, recipes: Sequence[str], title: str) -> Path:
    """``<root>/compare/<recipe>+<recipe>/<title>``."""
    return root / comparison_folder.FOLDER / slug("+".join(recipes)) / title


def save_members(home: Path, members: Sequence[ScoreboardMember], command: str) -> None:
    """Write recipes.json, with folders relative to it."""
    home.mkdir(parents=True, exist_ok=True)
    comparisons = [{"folder": os.path.relpath(member.folder, home), "names": dict(member.names)} for member in members]
    content = {"format": FORMAT, "comparisons": comparisons, "command": command}
    atomic_files.write_json(home / FILE, content, end="\n")


def load_members(home: Path) -> tuple[list[ScoreboardMember], str] | None:
    """The comparisons of a scoreboard and its command; None for any other folder. Raises UsageError if damaged."""
    path = home / FILE
    if not path.is_file():
        return None
    try:
        content: Any = limits.read_json(path)
        members = [
            ScoreboardMember(
                Path(os.path.normpath(home / comparison["folder"])),
                {str(k): str(v) for k, v in comparison["names"].items()},
            )
            for comparison in content["comparisons"]
        ]
        return members, str(content["command"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {error!r:.80}. Run the comparison again: it repeats no run.") from error


def write_report(board: Scoreboard, reports: Mapping[str, Path], folder: Path) -> list[Path]:
    """Write scoreboard.md, .csv, .json and .html and a PNG per chart, and return their paths.

    ``reports`` are the folders of the recipes' own reports. Raises UsageError if the folder cannot be written to.
    """
    charts = draw_charts(board)
    links = {recipe: os.path.relpath(place / "comparison.html", folder) for recipe, place in reports.items()}
    texts = {"md": scoreboard.as_markdown(board), "csv": scoreboard.as_csv(board), "json": scoreboard.as_json(board)}
    return write_files("scoreboard", texts | {"html": page(board, charts, links)}, charts, folder)


def page(board: Scoreboard, charts: Sequence[ReportChart], links: Mapping[str, str]) -> str:
    """The scoreboard as one HTML page that needs nothing from elsewhere; ``links`` lead to the recipes' reports."""
    return render(
        TEMPLATE, board=board, question=scoreboard.question(board), sentences=scoreboard.sentences(board),
        legend=scoreboard.legend(board), overall=scoreboard.overall_cells(board), tasks=scoreboard.task_cells(board),
        flags=scoreboard.flags(board), charts=charts, links=links,
    )  # fmt: skip


def draw_charts(board: Scoreboard) -> list[ReportChart]:
    """P(improvement) of every variant, and the normalised score of every run."""
    rows = [row for row in board.rows if row.name != board.baseline and not math.isnan(row.improvement.value)]
    charts = []
    if rows:
        charts.append(draw_intervals(
            "improvement", f"P(improvement) on {board.baseline}",
            [IntervalRow(row.name, *row.improvement) for row in rows],
            "P(a run of the variant is better), mean over tasks", 0.5, (0.0, 1.0),
            "With 95 % intervals of a bootstrap of seeds within each task. The line: no difference.",
        ))  # fmt: skip
    scores = []
    for task in board.tasks:
        for row in board.rows:
            values = list(row.scores.get(task.recipe, {}).values())
            if values and row.name != board.baseline:
                mean = sum(values) / len(values)
                scores.append(IntervalRow(f"{clip_name(task.recipe, 16)}: {row.name}", mean, points=tuple(values)))
    if scores:
        charts.append(draw_intervals(
            "scores", "Every run, by task", scores, f"score: relative to the mean of {board.baseline} in the task",
            1.0, None, "Small: a run. Large: the mean of the runs of a task. A failed run scores 0.",
        ))  # fmt: skip
    return charts


def same_recipes(home: Path) -> list[Path]:
    """The folders of scoreboards of the same recipes, in whatever order they were named; this one is among them."""
    recipes = _recipe_folders(home)
    folders = sorted(path.parent for path in home.parent.parent.glob(f"*/*/{FILE}"))
    return [folder for folder in folders if recipes and _recipe_folders(folder) == recipes]


def _recipe_folders(home: Path) -> set[Path]:
    """The folders of a scoreboard's recipes; none for a folder that is no scoreboard, or a damaged one."""
    try:
        saved = load_members(home)
    except UsageError:
        return set()
    return {member.folder.resolve().parents[1] for member in saved[0]} if saved else set()
