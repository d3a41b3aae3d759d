"""Resume or evaluate a run: choose the checkpoint, and compare configuration and data with those of its training."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule

from zoo import __version__
from zoo.config import precision, run_folder, yaml_source
from zoo.config.fit_options import SECTIONS
from zoo.config.layers import where
from zoo.config.run_config import RunPlan, as_yaml, changed_callbacks, check_resume
from zoo.config.signatures import parameters
from zoo.errors import CheckpointError, UsageError
from zoo.inference import part_versions, weight_files
from zoo.inference.find_run import checkpoint_to_use, run_of_checkpoint
from zoo.io import atomic_files, checkpoint_manifest

PRECISION = "trainer.precision"
MOST_FILES = 1000  # data files whose digests a manifest holds
# files of a run's folder that change during the run or after it
GROWING = (part_versions.FILE, run_folder.FINISHED, run_folder.STARTING, "ledger.json")


def apply_requeue(plan: RunPlan) -> None:
    """`--requeue`, or a job that SLURM or torchrun starts again: resume the run if it has started, else start it."""
    command = plan.command
    restarted = any(os.environ.get(f"{name}_RESTART_COUNT", "0") not in ("", "0") for name in ("SLURM", "TORCHELASTIC"))
    if command.command != "fit" or any(plan.reuse) or not (command.get("requeue") or restarted):
        return
    home = plan.run.folder
    if not home.is_dir():
        return
    has_started = not (home / run_folder.STARTING).exists() or checkpoint_manifest.has_checkpoint(home)
    command.values["resume" if has_started else "overwrite"] = True


def choose_checkpoint(plan: RunPlan) -> None:
    """Find the checkpoint to resume from or to evaluate, and refuse a damaged one or one of another architecture."""
    command, ckpt_path = plan.command, plan.config.get("ckpt_path")
    resume, evaluate = command.get("resume"), command.command != "fit"
    if ckpt_path is None and resume:
        ckpt_path = plan.config["ckpt_path"] = str(checkpoint_to_resume(plan.run.folder))
    elif ckpt_path is None and evaluate:
        home = plan.source.parent if plan.source and run_folder.run_title(plan.source) else plan.run.folder
        best = checkpoint_to_use(home)
        if best is None:
            raise UsageError(f"no checkpoint in {home}. Train first, name the run's folder, or add --ckpt_path FILE")
        ckpt_path = plan.config["ckpt_path"] = str(best)
    if ckpt_path is None:
        return
    path = Path(str(ckpt_path))
    if "://" in str(ckpt_path) or not path.is_file():
        raise UsageError(f"no checkpoint file {str(ckpt_path)!r}.{' It is a folder.' if path.is_dir() else ''}")
    plan.manifest = checkpoint_manifest.verify(path)
    origin = run_of_checkpoint(path)
    records = part_versions.check_records(
        weight_files.read_entry(path, part_versions.KEY)
    ) or part_versions.read_records(origin or path.parent)
    if run_folder.first_rank():
        part_versions.warn_versions(records)
    if origin is not None or plan.manifest:
        require_agreement(plan, origin, resume and not evaluate)


def checkpoint_to_resume(home: Path) -> Path:
    """The newest intact checkpoint of a run, saying which were skipped. Raises where there is none."""
    if not home.is_dir():
        raise UsageError(f"nothing to resume: {home} does not exist. Start it without --resume.")
    intact = checkpoint_manifest.newest_intact(home)
    if intact.path is None and not intact.skipped:
        raise UsageError(f"no checkpoint in {home}. Start over: --overwrite")
    if intact.path is None:
        raise CheckpointError(f"{home} has no intact checkpoint: {intact.skipped[0]}\nStart over: --overwrite")
    for why in intact.skipped if run_folder.first_rank() else ():
        print(f"skipped: {why} Resuming from {intact.path.name}.", file=sys.stderr)
    return intact.path


def require_agreement(plan: RunPlan, origin: Path | None, resume: bool) -> None:
    """Say what differs from the run that wrote the checkpoint; a resume needs --accept-changes."""
    old: Any = plan.manifest.get("recipe")
    if not old:
        if origin is None:
            return
        old = yaml_source.read_yaml(origin / run_folder.CONFIG).as_data()
    if PRECISION not in plan.resolved.origins:
        precision.adopt_precision(plan.config["trainer"], old.get("trainer") or {})
    changes = check_resume(plan, old, training_options(plan.resolved.classes["model"]))
    steps, done = plan.config["trainer"].get("max_steps") or -1, int(plan.manifest.get("step", 0))
    if resume and 0 <= steps < done:
        raise UsageError(
            f"trainer.max_steps is {steps}, and the checkpoint has {done} steps behind it: name at least as many."
            + where(plan.resolved.origins.get("trainer.max_steps", ""))
        )
    if resume and (callbacks := changed_callbacks(plan, old)):
        plan.other_callbacks, changes = True, [*changes, callbacks]
    if resume and changes and not plan.command.get("accept_changes"):
        more = f", and {len(changes) - 2} more" if len(changes) > 2 else ""
        raise UsageError(
            f"the recipe is not the one that the checkpoint was trained with: {'; '.join(changes[:2])}{more}.\n"
            "Go on with yours: --accept-changes"
        )
    plan.other_recipe = bool(changes)
    before, now = bool(old.get("compile")), bool(plan.config.get("compile"))
    if resume and before != now:  # no other run: its last digits may differ
        changes.append(f"compile: {before} → {now}")
    for line in changes if run_folder.first_rank() else ():
        print(f"differs from the checkpoint's run: {line}")


def check_sizes(plan: RunPlan) -> None:
    """Raise UsageError where data give a model other sizes, such as a vocabulary, than the checkpoint's has."""
    old = ((plan.manifest.get("recipe") or {}).get("model") or {}).get("init_args") or {}
    new = plan.config["model"]["init_args"]
    for name in plan.resolved.classes["model"].data_sizes:
        if old.get(name) is not None and new.get(name) is not None and old[name] != new[name]:
            raise UsageError(
                f"cannot resume: the model of the checkpoint has {name} {old[name]}, and these data make it "
                f"{new[name]}.\nPut the former data back, or train anew: --name NEW"
            )


def check_data(plan: RunPlan, data: Any) -> bool:
    """Whether a resume has other data than the checkpoint's. Raises UsageError for these without --accept-changes."""
    trained_with = plan.manifest.get("data", {}).get("fingerprint")
    fingerprint = getattr(data, "fingerprint", None)
    if not trained_with or not callable(fingerprint):
        return False
    now = fingerprint()
    if now != trained_with:
        what = (
            f"the data are not those that the checkpoint was trained with: fingerprint {trained_with[:12]} → {now[:12]}"
            f"{changed_files(plan.manifest['data'].get('files') or {}, file_digests(data))}"
        )
        if plan.command.get("resume") and not plan.command.get("accept_changes"):
            raise UsageError(f"{what}.\nGo on with yours, from the start of an epoch: --accept-changes")
        if run_folder.first_rank():
            print(f"differs from the checkpoint's run: {what}")
            print("best values and best.ckpt start anew: metrics of two data sets do not compare")
    return bool(now != trained_with)


def file_digests(data: Any) -> dict[str, str]:
    """Digests of the files of a data module by their paths; none where it names none, or too many for a manifest."""
    digests = data.file_digests() if callable(getattr(data, "file_digests", None)) else {}
    return digests if len(digests) <= MOST_FILES else {}


def changed_files(before: dict[str, str], now: dict[str, str]) -> str:
    """The first file that was changed, removed or added, as the end of a sentence; empty where there is none."""
    for path in [*before, *now]:
        if before.get(path) != now.get(path):
            how = "is gone" if path not in now else "is new" if path not in before else "has changed"
            return f"; {path} {how}" if before and now else ""
    return ""


def warn_of_other_data(plan: RunPlan, data: Any) -> bool:
    """Warn where a run is evaluated on other data than it was trained with: files may have changed since."""
    trained_with = plan.manifest.get("data", {}).get("fingerprint")
    fingerprint = getattr(data, "fingerprint", None)
    if not trained_with or not callable(fingerprint) or (now := fingerprint()) == trained_with:
        return False
    if run_folder.first_rank():
        atomic_files.warn(
            "the data are not those that the run was trained with, or have changed since: "
            f"fingerprint {trained_with[:12]} → {now[:12]}. The results are those of the present data."
        )
    return True


def manifest_facts(plan: RunPlan, data: Any, home: Path) -> dict[str, Any]:
    """The description of a run in the manifests of its checkpoints; ``home`` is the run's folder."""
    import numpy
    import torch
    from lightning import __version__ as lightning

    fingerprint = getattr(data, "fingerprint", None)
    paths = sorted(path for path in home.iterdir() if path.is_file()) if home.is_dir() else []
    fixed_files = [path for path in paths if path.name not in GROWING and path.suffix in (".json", ".yaml")]
    versions = {"zoo": __version__, "torch": str(torch.__version__), "lightning": lightning}
    return {
        "recipe": {
            name: as_yaml(plan.config[name])
            for name in ("seed_everything", "compile", *SECTIONS)
            if plan.config.get(name) not in (None, {})
        },
        "data": {
            "class": type(data).__name__,
            "fingerprint": fingerprint() if callable(fingerprint) else None,
            **({"files": digests} if (digests := file_digests(data)) else {}),
        },
        "files": {path.name: checkpoint_manifest.sha256(path) for path in fixed_files},
        "versions": {**versions, "numpy": numpy.__version__, "python": sys.version.split()[0]},
        "plugins": part_versions.packages_used(plan.config),
    }


def training_options(task: Any) -> frozenset[str]:
    """The options of a task that configure training, not the model: those that its LightningModules declare."""
    return frozenset(
        name
        for name, param in parameters(task).items()
        if param.owner is not None and issubclass(param.owner, LightningModule) and name not in task.data_sizes
    )


def logged_positions(plan: RunPlan) -> dict[str, int] | None:
    """The lengths of the event files when the checkpoint of a resumed run was taken; None for a new run, and for one
    that goes on from another run's checkpoint, whose event files are others.
    """
    home = run_of_checkpoint(Path(str(plan.config["ckpt_path"]))) if plan.command.get("resume") else None
    return plan.manifest.get("logs") if home and home.resolve() == plan.run.folder.resolve() else None
