"""Train a tiny task for a few steps and write down what happened; run as a script, also under DDP."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers.logger import Logger

from zoo.data.glyphs import Glyphs
from zoo.data.phrasebook import Phrasebook
from zoo.data.text import TextFiles
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM
from zoo.tasks.translation import Translation
from zoo.training.checkpoint import CheckpointSaver

TINY = {"dim": 16, "depth": 1, "heads": 2}


class Diary(Logger):
    """Keeps every figure as (step, name, value)."""

    name, version = "diary", 0

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines += [(step or 0, name, float(value)) for name, value in metrics.items() if name != "epoch"]

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def curve(self, name: str) -> list[float]:
        return [value for _, metric, value in self.lines if metric == name]


def text_file(folder: Path) -> str:
    path = folder / "text.txt"
    words = "the quick brown fox jumps over the lazy dog and runs away from a very slow bear".split()
    if not path.exists():
        path.write_text("\n".join(" ".join(words[(i * j) % 16] for j in range(1, 9)) for i in range(120)))
    return str(path)


def build(task: str, batch: int, folder: Path, **options: Any):
    """A tiny task and its data, with ``batch`` rows (or 64 times as many padded tokens) per process."""
    torch.manual_seed(3)
    options = TINY | options
    if task == "lm":
        data: Any = TextFiles(text_file(folder), max_length=12, batch_size=batch)
        return CausalLM(**data.sizes(), max_length=12, **options), data
    if task == "few":  # one row validates, and other processes have none
        (folder / "val.txt").write_text("the quick")
        data = TextFiles(text_file(folder), max_length=12, batch_size=batch, val_path=str(folder / "val.txt"))
        return CausalLM(**data.sizes(), max_length=12, **options), data
    if task == "stream":
        from zoo_scale.text_stream import StreamOptions, TextStream  # scripts and a core by itself are without

        parts = StreamOptions(separator="\n", window=4, shards=4)
        data = TextStream(text_file(folder), "bytes", max_length=12, batch_size=8 * batch, options=parts)
        return CausalLM(**data.sizes(), max_length=12, **options), data
    if task == "translation":
        kinds = ["date", "unit"]
        data = Phrasebook(size=600, kinds=kinds, vocab_size=400, max_tokens=64 * batch, max_length=64, eval_limit=7)
        return Translation(**data.sizes(), max_length=64, **options), data
    data = Glyphs(size=600, batch_size=batch)
    return Classification(**data.sizes(), patch_size=7, **options), data


def train(task: str, batch: int, folder: Path, options: dict[str, Any] | None = None, **trainer: Any) -> Diary:
    """Six optimiser steps and a validation."""
    seed_everything(3, verbose=False)
    module, data = build(task, batch, folder, **(options or {}))
    diary = Diary()
    settings: dict[str, Any] = {"max_steps": 6, "val_check_interval": 6 * trainer.get("accumulate_grad_batches", 1)}
    settings |= {"enable_checkpointing": False, "default_root_dir": folder}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    own = {"use_distributed_sampler": False, "check_val_every_n_epoch": None, "log_every_n_steps": 1}
    Trainer(accelerator="cpu", logger=diary, **settings | quiet | own | trainer).fit(module, data)
    diary.weights = torch.cat([p.detach().flatten() for p in module.parameters()])  # type: ignore[attr-defined]
    return diary


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, rows, home, world = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    saver = CheckpointSaver(home / "checkpoints")  # at whose moments the processes agree, as in a run
    record = train(name, rows, home, devices=world, strategy="ddp", enable_checkpointing=True, callbacks=[saver])
    if torch.distributed.get_rank() == 0:
        (home / f"{name}-{world}.json").write_text(json.dumps([record.lines, record.weights.tolist()]))  # type: ignore[attr-defined]
