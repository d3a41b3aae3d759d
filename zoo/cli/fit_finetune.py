"""Fine-tuning from the command line: prepare the model, and say what became of the weights it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config import run_folder
from zoo.io import atomic_files

if TYPE_CHECKING:
    from zoo.config.run_config import Plan
    from zoo.finetuning.weight_transfer import Transfer

TABLE = "start.tsv"


def prepare(plan: Plan, task: Any, data: Any) -> Transfer | None:
    """Apply what the configuration says under ``tune``; a checkpoint of the run's own brings its weights itself."""
    from zoo.finetuning.finetune import prepare_task, tune_of_config

    tune = tune_of_config(plan.config)
    if tune is None:
        return None
    resumes = bool(plan.config.get("ckpt_path"))
    # resumed adapters must know which tensors were new; otherwise the run's own checkpoint says everything
    begins = plan.command.subcommand == "fit" and (not resumes or tune.rank > 0)
    table = prepare_task(task, tune, plan.command.runs, data, begins)
    if table is not None and not resumes and run_folder.first_rank():
        print(f"starts from {tune.start}\n{table.table()}", flush=True)
    return table


def save_transfer_table(table: Transfer | None, home: Path) -> None:
    """Write the table of tensors into the run's folder."""
    if table is not None:
        lines = ["\t".join(row) for row in table.rows()]
        atomic_files.write_text(home / TABLE, "\n".join(["fate\ttensor\tshape", *lines]) + "\n")
