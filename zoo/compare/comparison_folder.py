"""The folder of a comparison, ``runs/<recipe>/compare/<name>``, with the list of its runs (runs.json), and that of a
scoreboard, ``runs/compare/<recipes>/<name>``, with the list of its comparisons (recipes.json).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from zoo.compare.run_records import OTHER_SEED, RunRecord, name_pieces, parse_record, read_crash, read_records
from zoo.config.run_folder import slug
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.io.content_digests import check_digest, with_digest
from zoo.logging.run_state import LEDGER

FILE, FORMAT = "runs.json", 2
SCOREBOARD, SCOREBOARD_FORMAT = "recipes.json", 1
FOLDER = "compare"


@dataclass(frozen=True)
class Record:
    """The content of runs.json: a comparison's run folders and the options that the run records do not hold."""

    folders: tuple[Path, ...]
    baseline: str | None
    goal: str | None = None
    budget: str | None = None
    tuned: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    varied: tuple[str, ...] | None = None  # the options that vary; None where only the runs can tell
    at: str | None = None  # when the decisive figure is taken; None: the default
    margin: float | None = None
    until: str | None = None
    tuning: Mapping[str, Any] = field(default_factory=dict)  # as of `tuning_runs.tune_variants`
    scale: Mapping[str, Any] = field(default_factory=dict)  # `scale_runs.ScalePlan.as_data`


def comparison_path(root: Path, recipe: str, title: str) -> Path:
    """``<root>/<recipe>/compare/<title>``."""
    return root / recipe / FOLDER / title


def save_record(home: Path, record: Record) -> None:
    """Write runs.json, with run folders relative to it, so that all of them can be moved together."""
    home.mkdir(parents=True, exist_ok=True)
    runs = [os.path.relpath(folder, home) for folder in record.folders]
    content = {"format": FORMAT, "runs": runs, **asdict(replace(record, folders=()))}
    del content["folders"]
    atomic_files.write_json(home / FILE, with_digest(content), end="\n")


def load_record(home: Path) -> Record | None:
    """The record in a comparison's folder; None for any other folder. Raises UsageError if it is damaged."""
    path = home / FILE
    if not path.is_file():
        return None
    try:
        content: Any = limits.read_json(path)
        check_digest(content)
        folders = tuple(Path(os.path.normpath(home / run)) for run in content["runs"])
        tuned = {str(name): str(sentence) for name, sentence in content["tuned"].items()}
        fields = {name: content[name] for name in ("baseline", "goal", "budget", "command", "at", "until")}
        margin = content["margin"]
        wrong = [name for name, value in fields.items() if not isinstance(value, str | None)]
        if margin is not None and not (type(margin) in (int, float) and 0 < margin < math.inf):
            wrong.append("margin")
        if wrong:
            raise ValueError(f"no valid {', '.join(wrong)}")
        return Record(
            folders, tuned=tuned, tuning=dict(content["tuning"]), scale=dict(content["scale"]),
            varied=content["varied"] and tuple(map(str, content["varied"])), margin=margin, **fields,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"{path} is damaged: {error!r:.80}. Run the comparison again: it repeats no run.") from error


def read_ledgers(folders: Sequence[Path], budget: str | None = None) -> list[RunRecord]:
    """The records of those of ``folders`` that have one; ``budget`` is added to their settings.

    Raises UsageError for a record that belongs to the run of another folder.
    """
    ledgers: list[RunRecord] = []
    for folder in folders:
        try:
            ledgers += read_records(folder)
        except UsageError:  # not started, or no record yet
            ledgers += [parse_record(folder / LEDGER)] if read_crash(folder) else []
    for ledger in ledgers:
        folder = ledger.path.parent
        copied = sorted(name_pieces(ledger.variant)) != sorted(name_pieces(folder.parent.name))
        if OTHER_SEED in ledger.problem or (copied and not ledger.problem):
            whose = "" if ledger.problem else f": {ledger.name}"
            raise UsageError(
                f"{ledger.path} is the record of another run{whose}.\nRestore it, or remove {folder} and run the "
                "comparison again."
            )
    if budget is None:
        return ledgers
    return [replace(ledger, setting={**ledger.setting, "budget": budget}) for ledger in ledgers]


def scoreboard_path(root: Path, recipes: Sequence[str], title: str) -> Path:
    """``<root>/compare/<recipe>+<recipe>/<title>``."""
    return root / FOLDER / slug("+".join(recipes)) / title


def save_members(home: Path, members: Mapping[Path, Mapping[str, str]], command: str) -> None:
    """Write recipes.json: the folders of comparisons, relative to it, with what all recipes call their variants."""
    home.mkdir(parents=True, exist_ok=True)
    comparisons = [{"folder": os.path.relpath(folder, home), "names": names} for folder, names in members.items()]
    content = {"format": SCOREBOARD_FORMAT, "comparisons": comparisons, "command": command}
    atomic_files.write_json(home / SCOREBOARD, content, end="\n")


def load_members(home: Path) -> tuple[dict[Path, dict[str, str]], str] | None:
    """The comparisons of a scoreboard and its command; None for any other folder. Raises UsageError if damaged."""
    path = home / SCOREBOARD
    if not path.is_file():
        return None
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
        """The folders of a scoreboard's recipes; none for a folder that is no scoreboard, or a damaged one."""
        try:
            saved = load_members(folder)
        except UsageError:
            return set()
        return {comparison.resolve().parents[1] for comparison in saved[0]} if saved else set()

    folders = sorted(path.parent for path in home.parent.parent.glob(f"*/*/{SCOREBOARD}"))
    return [folder for folder in folders if recipes(home) and recipes(folder) == recipes(home)]
