"""Figures of the test split, measured once per run with its last state: no choice during training has seen them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from zoo.compare import run_records
from zoo.compare.execute import COMMAND, last_log_lines
from zoo.compare.plan import Arm
from zoo.errors import UsageError, ZooError
from zoo.inference.checkpoint_manifest import newest_intact
from zoo.logging import run_state

HINTS = {
    "test_fraction": "Hold out a part of its text: --data.test_fraction 0.05",
    "test_path": "Name the files of one: --data.test_path FILE",
}


class DataMeter(Protocol):
    """What of `zoo.compare.measure_model.ConfigMeter` is needed, without its import of torch."""

    def data(self, config: Mapping[str, Any]) -> Any:
        """The loaded data module of a configuration."""


def check_test_split(arms: Sequence[Arm], meter: DataMeter) -> None:
    """Raise UsageError for data whose test split is the validation split, of which the best was perhaps chosen."""
    for arm in arms:
        splits = meter.data(arm.point.config).datasets
        if splits.get("test") is None or splits.get("test") is splits.get("val"):
            data = arm.point.config["data"]
            options = data.get("init_args") or {}
            hint = next((hint for option, hint in HINTS.items() if option in options), "Take --at last.")
            raise UsageError(
                f"--at test: {str(data['class_path']).rpartition('.')[2]} has no test split besides its validation "
                f"split. {hint}"
            )


def measure_test_figures(folders: Sequence[Path], allow: Sequence[str], report: Callable[[str], object]) -> None:
    """Evaluate the last state of every finished run on the test split, unless that was done. Raises ZooError."""
    for folder in folders:
        if run_state.read_state(folder) != "finished":
            continue
        record = run_records.parse_record(folder / run_state.LEDGER)
        if record.test:
            continue
        report(f"test split of {record.name}")
        words = [*COMMAND, "test", str(folder / run_state.CONFIG)]
        words += [f"--ckpt_path={newest_intact(folder).path}", *(f"--allow-import={name}" for name in allow)]
        path = run_state.path_beside(folder, ".log")
        with path.open("ab") as log:
            offset = log.tell()
            code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
        if code or not run_records.parse_record(folder / run_state.LEDGER).test:
            lines = "\n".join(last_log_lines(path, offset))
            raise ZooError(f"the test split of {record.name} could not be measured, see {path}\n{lines}")
