"""What every run carries: a logger, checkpoints, a cost meter, and a progress bar or lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import RichProgressBar

from zoo.study.callbacks import CostMeter, Lines, checkpoints
from zoo.study.cost import Cost
from zoo.study.tensorboard import RunLogger
from zoo.tasks.task import Task

Choice = str | float | bool


def equip(task: Task, cost: Cost, folder: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """Logger and callbacks for a Trainer that trains ``task`` in ``folder``, ``runs/<recipe>/<variant>/s<seed>``.

    ``model`` is the configuration of the task, ``{"class_path": ..., "init_args": {...}}``.
    """
    logger = RunLogger(folder, "/".join(folder.parts[-3:-1]), choices(model))
    progress: Callback = RichProgressBar() if sys.stderr.isatty() and sys.stdout.isatty() else Lines()
    callbacks = [checkpoints(task, folder / "checkpoints"), CostMeter(cost), progress]
    return {"logger": logger, "callbacks": callbacks}


def choices(model: Mapping[str, Any]) -> dict[str, Choice]:
    """One hyper-parameter per option of the model; a part with its options is one value: ``RoPE(base=500000)``."""
    return {name: told(value) for name, value in model.get("init_args", {}).items()}


def told(value: Any) -> Choice:
    """A value of a configuration as a person would say it."""
    if isinstance(value, Mapping) and "class_path" in value:
        options = ", ".join(f"{name}={told(option)}" for name, option in (value.get("init_args") or {}).items())
        name = str(value["class_path"]).rsplit(".", 1)[-1]
        return f"{name}({options})" if options else name
    if isinstance(value, str) and value.count(".") > 1 and value.replace(".", "").replace("_", "").isalnum():
        return value.rsplit(".", 1)[-1]  # a class path
    return value if isinstance(value, (bool, int, float, str)) else str(value)
