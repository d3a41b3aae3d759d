"""The state of a run by the files of its folder. Does not import torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from zoo.console import LOG
from zoo.io import limits

LEDGER, CONFIG, TEST = "ledger.json", "config.yaml", "test.json"  # the last: figures of the test split
State = Literal["finished", "diverged", "continue", "started", "missing"]
END_STATES = ("finished", "diverged")  # states of runs that need not go on: divergence is an outcome


def path_beside(folder: Path, suffix: str) -> Path:
    """A file of a run that must outlive its folder: ``s1.lock``, ``s1.log``."""
    return folder.with_name(folder.name + suffix)


def read_state(folder: Path) -> State:
    """The state of a run: finished, diverged, continue (it has a checkpoint), started (it has none), or missing."""
    from zoo.inference.find_run import FINISHED
    from zoo.io import checkpoint_manifest

    if not folder.is_dir():
        return "missing"
    record = read_record(folder)
    if (folder / FINISHED).is_file() and (has_no_record(folder) or record.get("finished")):
        return "finished"
    if (record.get("outcome") or {}).get("state") == "diverged":
        return "diverged"
    return "continue" if checkpoint_manifest.has_checkpoint(folder) else "started"


def has_no_record(folder: Path) -> bool:
    """Whether a run was finished and its ledger.json is gone."""
    from zoo.inference.find_run import FINISHED  # here: it needs yaml, which reading records does not

    return (folder / FINISHED).is_file() and not (folder / LEDGER).exists()


def read_record(folder: Path) -> Mapping[str, Any]:
    """The content of a run's ledger.json as it is; empty if it cannot be read."""
    try:
        content = limits.read_json(folder / LEDGER)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def resume_options(folder: Path) -> list[str]:
    """The options with which `zoo fit` resumes or starts a run. Removes the folder of a run killed before it began."""
    from zoo.inference.find_run import STARTING
    from zoo.inference.part_versions import FILE as PARTS
    from zoo.io.checkpoint_manifest import newest_intact

    state = read_state(folder)
    if state == "continue" and (newest := newest_intact(folder).path):
        return ["--resume", f"--ckpt_path={newest}"]
    if state == "started" and {path.name for path in folder.iterdir()} <= {PARTS, STARTING, LOG}:
        # killed before its configuration was written: zoo fit would not recognise the folder as a run
        shutil.rmtree(folder)
        return []
    return [] if state == "missing" else ["--overwrite"]
