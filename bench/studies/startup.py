"""How long every command takes to answer, in processes that were never started before; medians.

``zoo fit`` is timed up to its first line (what is trained), up to the line that names the device, behind which the
first step begins, and up to the line that says that one step is finished and saved, which is later than the step
itself; the yardstick is ``import torch, lightning``. ``zoo generate`` is timed for one token of an export,
which an earlier process has read, beside the imports that it cannot do without.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.study import Options, Table, command_seconds

FREE = (
    ["--help"], ["--version"], ["list"], ["show", "position", "rope"], ["recipes"], ["cp", "lm-tiny", "copy.yaml"],
    ["fit", "--help"], ["generate", "--help"], ["compare", "--help"], ["fit", "lm-tny"],
)  # fmt: skip
LIMIT, ABOVE, TIMES, TOKEN = 0.5, 1.5, 1.2, 2.5
LINES = {"first line": "", "device line": "device", "first step finished and saved": "finished"}
IMPORTS = ("torch", "torch, lightning")
SHORT = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "0", "--trainer.num_sanity_val_steps", "0"]


def study(options: Options) -> list[Table]:
    """Commands without torch, then the first lines of a training run."""
    light = Table("Start-up of commands that need no torch", ["command", "s", "goal"])
    with tempfile.TemporaryDirectory() as folder:
        for words in FREE:
            (Path(folder) / "copy.yaml").unlink(missing_ok=True)
            seconds_of_turns = []
            for _ in range(options.turns):
                (Path(folder) / "copy.yaml").unlink(missing_ok=True)
                seconds_of_turns.append(command_seconds([sys.executable, "-m", "zoo", *words], folder, options.clock))
            seconds = statistics.median(seconds_of_turns)
            light.rows.append([f"zoo {' '.join(words)}", seconds, _judged(seconds, LIMIT)])
        lines: dict[str, list[float]] = {"import torch, lightning": [], **{name: [] for name in LINES}}
        for _ in range(options.turns):
            lines["import torch, lightning"].append(
                command_seconds([sys.executable, "-c", "import torch, lightning"], folder, options.clock)
            )
            for name, seconds in _lines(folder, options.clock).items():
                lines[name].append(seconds)
        token = first_token(folder, options)
    heavy = Table("Start-up of `zoo fit lm-tiny`", ["until", "s", "above the import", "goal", "ratio", "goal of it"])
    base = statistics.median(lines["import torch, lightning"])
    for name, seconds_of_turns in lines.items():
        seconds = statistics.median(seconds_of_turns)
        goals: list[float | str] = ["", "", ""]
        if not name.startswith("import"):
            ratio = seconds / base
            goals = [_judged(seconds - base, ABOVE), ratio, _judged(ratio, TIMES, "times")]
        heavy.rows.append([name, seconds, seconds - base, *goals])
    return [light, heavy, token]


def first_token(folder: str, options: Options) -> Table:
    """Seconds of processes that import libraries, and of one that generates a token with an export of lm-tiny."""
    table = Table("Start-up of `zoo generate`, one token of an export of lm-tiny", ["process", "s", "goal"])
    zoo = [sys.executable, "-m", "zoo"]
    generate = ["generate", "exported", "--prompt", "a", "--length", "1"]  # first reads the export, may measure kernels
    for words in (["fit", "lm-tiny", "--name", "start", *SHORT], ["export", "lm-tiny", "exported"], generate):
        done = subprocess.run([*zoo, *words], cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"zoo {' '.join(words)}: {done.stderr[-300:]}")
    commands = {f"import {modules}": [sys.executable, "-c", f"import {modules}"] for modules in IMPORTS}
    commands["zoo generate"] = [*zoo, *generate]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.turns):
        for name, command in commands.items():
            times[name].append(command_seconds(command, folder, options.clock))
    for name, seconds_of_turns in times.items():
        seconds = statistics.median(seconds_of_turns)
        table.rows.append([name, seconds, _judged(seconds, TOKEN) if name == "zoo generate" else ""])
    return table


def _judged(value: float, limit: float, unit: str = "s") -> str:
    return f"{'reached' if value <= limit else 'missed'} ({limit} {unit})"


def _lines(folder: str, clock: str) -> dict[str, float]:
    """Seconds until each line of ``LINES`` that a training run of one step writes."""
    command = [sys.executable, "-m", "zoo", "fit", "lm-tiny", "--runs", f"{folder}/runs", "--overwrite"]
    command += SHORT
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            for name, beginning in LINES.items():
                if name not in seconds and line.lstrip().startswith(beginning):
                    seconds[name] = _spent(process.pid) if clock == "cpu" else time.perf_counter() - start
        errors = process.stderr.read() if process.stderr else ""
    if len(seconds) < len(LINES):
        raise RuntimeError(f"zoo fit lm-tiny wrote too few lines: {errors[-300:]}")
    return seconds


def _spent(pid: int) -> float:
    """Processor seconds of a running process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
