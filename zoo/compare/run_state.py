"""How far a run has come, by the files in its folder. Needs no torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from zoo.console import LOG
from zoo.inference import checkpoint_manifest
from zoo.inference.find_run import FINISHED, STARTING
from zoo.inference.part_versions import FILE as PARTS
from zoo.io import limits

State = Literal["finished", "continue", "started", "missing"]
LEDGER = "ledger.json"


def path_beside(folder: Path, suffix: str) -> Path:
    """A file of a run that must outlive its folder: ``s1.lock``, ``s1.log``."""
    return folder.with_name(folder.name + suffix)


def read_state(folder: Path) -> State:
    """finished; or with a checkpoint to continue from; or started without one; or missing."""
    if not folder.is_dir():
        return "missing"
    if (folder / FINISHED).is_file() and (unrecorded(folder) or ledger(folder).get("finished")):
        return "finished"
    return "continue" if checkpoint(folder) else "started"


def unrecorded(folder: Path) -> bool:
    """Whether a run was finished by a zoo that kept no ledger."""
    return (folder / FINISHED).is_file() and not (folder / LEDGER).exists()


def ledger(folder: Path) -> Mapping[str, Any]:
    """What a run says of itself; nothing where it cannot be read."""
    try:
        content = limits.json_file(folder / LEDGER)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is intact."""
    return checkpoint_manifest.newest(folder).path


def should_run_again(folder: Path) -> list[str]:
    """The options with which `zoo fit` goes on with a run, or begins it. Removes what a kill left half made."""
    state = read_state(folder)
    if state == "continue":
        return ["--resume", f"--ckpt_path={checkpoint(folder)}"]
    if state == "started" and {path.name for path in folder.iterdir()} <= {PARTS, STARTING, LOG}:
        # killed before its configuration was written: zoo fit would not know the folder as its own
        shutil.rmtree(folder)
        return []
    return [] if state == "missing" else ["--overwrite"]
