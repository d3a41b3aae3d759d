"""Fine-tuning from the command line: prepare the model, and say what became of the weights it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import atomic
from zoo.cli import folder

if TYPE_CHECKING:
    from zoo.cli.plan import Plan
    from zoo.trained.transfer import Transfer

TABLE = "start.tsv"


def prepare(plan: Plan, task: Any, data: Any) -> Transfer | None:
    """Apply what the configuration says under ``tune``; a checkpoint of the run's own brings its weights itself."""
    from zoo.trained.tune import prepare, tuned

    tune = tuned(plan.config)
    if tune is None:
        return None
    resumes = bool(plan.config.get("ckpt_path"))
    # resumed adapters must know which tensors were new; otherwise the run's own checkpoint says everything
    begins = plan.command.subcommand == "fit" and (not resumes or tune.rank > 0)
    found = prepare(task, tune, plan.command.runs, data, begins)
    if found is not None and not resumes and folder.first_rank():
        print(f"starts from {tune.start}\n{found.table()}", flush=True)
    return found


def keep(found: Transfer | None, home: Path) -> None:
    """Write the table of tensors into the run's folder."""
    if found is not None:
        lines = ["\t".join(row) for row in found.rows()]
        atomic.write_text(home / TABLE, "\n".join(["fate\ttensor\tshape", *lines]) + "\n")
