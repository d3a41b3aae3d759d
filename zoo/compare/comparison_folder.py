"""The folder of a comparison, ``runs/<recipe>/compare/<name>``: the list of its runs (runs.json) and its report."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zoo.compare.run_records import OTHER_SEED, RunRecord, name_pieces, parse_record, read_crash, read_records
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.io.content_digests import check_digest, with_digest
from zoo.logging.run_state import LEDGER

FILE, FORMAT = "runs.json", 2
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
    tuning: Mapping[str, Any] = field(default_factory=dict)  # `tuning_runs.Tuning.as_data`
    scale: Mapping[str, Any] = field(default_factory=dict)  # `scale_runs.ScalePlan.as_data`


def comparison_path(root: Path, recipe: str, title: str) -> Path:
    """``<root>/<recipe>/compare/<title>``."""
    return root / recipe / FOLDER / title


def save_record(home: Path, record: Record) -> None:
    """Write runs.json, with run folders relative to it, so that all of them can be moved together."""
    home.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "runs": [os.path.relpath(folder, home) for folder in record.folders],
        "baseline": record.baseline,
        "goal": record.goal,
        "budget": record.budget,
        "tuned": dict(record.tuned),
        "command": record.command,
        "varied": None if record.varied is None else list(record.varied),
        "at": record.at,
        "margin": record.margin,
        "until": record.until,
        "tuning": dict(record.tuning),
        "scale": dict(record.scale),
    }
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
