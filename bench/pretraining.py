"""Does pre-training help with few labels? topics-tiny from scratch and from a run, the same seeds for both.

python -m bench.pretraining RUN [--labels 100] [--seeds 5] [--steps 150] [--runs DIR] [--arms scratch,tuned]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
from pathlib import Path

from zoo.cli import main


def fit(arm: str, seed: int, asked: argparse.Namespace) -> float:
    """The validation accuracy after the last step of one run, which is made unless it is there."""
    home = Path(asked.runs, "topics-tiny", arm, f"s{seed}", "finished.json")
    if not home.is_file():
        words = ["fit", "topics-tiny", "--runs", asked.runs, "--name", arm, "--seed", str(seed), "--overwrite"]
        words += ["--data.labels", str(asked.labels), "--data.tokenizer", asked.run, "--data.batch_size", "16"]
        words += ["--trainer.max_steps", str(asked.steps), "--trainer.val_check_interval", str(asked.steps)]
        words += ["--trainer.accelerator", "cpu", *(["--tune.start", asked.run] if arm == "tuned" else [])]
        with contextlib.redirect_stdout(io.StringIO()):
            code = main([*words])
        if code:
            raise SystemExit(code)
    return float(json.loads(home.read_text())["val/accuracy"])


def measure() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--runs", default="runs/pretraining")
    parser.add_argument("--arms", default="scratch,tuned")
    asked = parser.parse_args()
    found = {arm: [fit(arm, seed + 1, asked) for seed in range(asked.seeds)] for arm in asked.arms.split(",")}
    for arm, values in found.items():
        print(arm, *(f"{value:.3f}" for value in values), f"mean {statistics.mean(values):.3f}", sep="  ")
    if len(found) == 2 and asked.seeds > 1:
        first, second = found.values()
        gains = [b - a for a, b in zip(first, second, strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        print(f"gain {statistics.mean(gains):.3f} ± {error:.3f} (standard error of {len(gains)} paired differences)")


if __name__ == "__main__":
    measure()
