"""The same steps however a batch is factored into rows, accumulation and processes, and the same validation.

    python -m tests.campaigns.chaos.factors --home DIR

Twelve samples a step, of uneven length and padded, for each task; a validation set whose size none of the numbers of
processes divides. Prints one JSON object: the largest relative difference of any training loss from that of one process
with whole batches, and of any validation figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import Subset

from tests.tasks.training import Diary, build
from zoo.data.batches import BatchDataset, RowPlan

TASKS = ("lm", "translation", "classification")
ROWS, EVALUATED = 12, 25
FACTORS = (
    (12, 1, 1),
    (4, 3, 1),
    (1, 12, 1),
    (6, 1, 2),
    (2, 3, 2),
    (4, 1, 3),
    (2, 2, 3),
)  # rows, accumulation, processes


class Few(Subset, BatchDataset):
    """The first samples of a data set."""

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Any, epoch: int) -> Any:
        return self.dataset.batch(indices, epoch)

    __getitems__ = BatchDataset.__getitems__


def train(task: str, rows: int, accumulate: int, world: int, home: Path) -> None:
    """Six steps and a validation; what was logged goes to a file."""
    torch.set_num_threads(1)
    seed_everything(3, verbose=False)
    module, data = build(task, 4, home)
    data.setup()
    data.datasets["val"] = Few(data.datasets["val"], range(EVALUATED))
    data.plan = lambda split, processes, seed: RowPlan(len(data.datasets[split]), rows * processes, processes, seed)
    diary = Diary()
    several: dict[str, Any] = {"devices": world, "strategy": "ddp"} if world > 1 else {"devices": 1}
    Trainer(
        accelerator="cpu", logger=diary, max_steps=6, val_check_interval=6 * accumulate, check_val_every_n_epoch=None,
        accumulate_grad_batches=accumulate, log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, use_distributed_sampler=False, enable_checkpointing=False, default_root_dir=home,
        **several,
    ).fit(module, data)  # fmt: skip
    if os.environ.get("LOCAL_RANK", "0") == "0":
        (home / f"{task}-{rows}-{accumulate}-{world}.json").write_text(json.dumps(diary.lines))


def campaign(home: Path, tasks: tuple[str, ...] = TASKS) -> dict[str, Any]:
    """All factorisations of each task, against the first."""
    home.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    for task in tasks:
        curves = []
        for factors in FACTORS:
            words = [
                sys.executable,
                "-m",
                "tests.campaigns.chaos.factors",
                "--home",
                str(home),
                "--one",
                task,
                *map(str, factors),
            ]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
            assert done.returncode == 0, done.stderr[-2000:]
            lines = json.loads((home / f"{task}-{'-'.join(map(str, factors))}.json").read_text())
            curves.append({(step, name): value for step, name, value in lines if not name.startswith("val_by")})
        first = curves[0]
        assert all(set(curve) == set(first) for curve in curves)
        for part in ("train/loss", "val/"):
            gaps = [
                abs(c[k] - first[k]) / max(1e-9, abs(first[k])) for c in curves for k in first if k[1].startswith(part)
            ]
            result[f"{task} {part}"] = max(gaps)
    return {"factorisations": len(FACTORS), "evaluated": EVALUATED, **result}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--one", nargs=4)
    arguments = parser.parse_args()
    if arguments.one:
        train(arguments.one[0], *map(int, arguments.one[1:]), arguments.home)
        return
    json.dump(campaign(arguments.home.resolve()), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
