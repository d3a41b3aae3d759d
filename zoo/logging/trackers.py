"""Trackers that a run writes to besides TensorBoard, the same figures under the same names: CSV, W&B, MLflow, Aim."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from filelock import FileLock
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.logging.best_effort import BestEffort
from zoo.registry import suggest

PACKAGES = {"csv": "", "wandb": "wandb", "mlflow": "mlflow", "aim": "aim"}  # by tracker
VARIABLE = "ZOO_TRACKERS"  # the trackers of runs whose command names none, such as those of a comparison
FOLDER = "trackers"  # in a run's folder: a file for each tracker, with the run's name there
FIGURES = "metrics.csv"


def choose_trackers(option: str | None, folder: Path, fresh: bool = False) -> dict[str, str]:
    """The trackers that an option or the environment names, and those that the run in a folder has had.

    Each with what it calls that run; empty where it has none, and for a ``fresh`` run, which will replace that one.

    Raises UsageError for unknown names, and for packages that are not installed.
    """
    words = (os.environ.get(VARIABLE, "") if option is None else option).replace(" ", "").split(",")
    earlier = [] if fresh else [name for name in PACKAGES if (folder / FOLDER / name).exists()]
    names = list(dict.fromkeys([*filter(None, words), *earlier]))
    for name in names:
        if name not in PACKAGES:
            raise UsageError(f"there is no tracker {name!r}.{suggest(name, PACKAGES)} There are: {', '.join(PACKAGES)}")
        if PACKAGES[name] and importlib.util.find_spec(PACKAGES[name]) is None:
            raise UsageError(f"the tracker {name} needs its package: pip install {PACKAGES[name]}")
    return {name: "" if fresh else read_identity(folder, name) for name in names}


def make_trackers(identities: Mapping[str, str], folder: Path) -> list[Logger]:
    """The loggers of trackers, of Lightning and Aim, for the run in a folder, ``runs/<recipe>/<variant>/s<seed>``.

    ``identities`` is what `choose_trackers` gives.

    Nothing leaves the machine unless the tracker's own environment variables say so: W&B is offline without
    WANDB_MODE, and MLflow writes to ``runs/mlflow.db``, or to the store of MLFLOW_TRACKING_URI.
    """
    recipe, run_name, home = folder.parts[-3], "/".join(folder.parts[-2:]), folder.resolve().parents[2]
    loggers: list[Logger] = []
    for name, identity in identities.items():
        if name == "csv":
            loggers.append(CSVFigures(folder))
        elif name == "wandb":
            import wandb
            from lightning.pytorch.loggers import WandbLogger

            offline = os.environ.get("WANDB_MODE", "offline") in ("offline", "dryrun")
            key = identity or hashlib.sha256(os.urandom(16)).hexdigest()[:12]
            project = os.environ.get("WANDB_PROJECT", recipe)
            group = folder.parts[-2]  # its seeds
            settings = wandb.Settings(console="off", silent=True)
            about: dict[str, Any] = {"project": project, "group": group, "resume": "allow", "settings": settings}
            loggers.append(WandbLogger(run_name, home, offline=offline, id=key, **about))
        elif name == "mlflow":
            from lightning.pytorch.loggers import MLFlowLogger
            from mlflow.tracking import MlflowClient

            home.mkdir(parents=True, exist_ok=True)
            lock = FileLock(home / ".mlflow.lock")  # runs that start together would both make the store
            with suppress(OSError, NotImplementedError):  # a file system without locks
                lock.acquire()
            try:
                client = MlflowClient(mlflow_store(home))
                if client.get_experiment_by_name(recipe) is None:
                    client.create_experiment(recipe)
            finally:
                lock.release()
            loggers.append(MLFlowLogger(recipe, run_name, mlflow_store(home), run_id=identity or None))
        else:
            from aim.pytorch_lightning import AimLogger

            loggers.append(AimLogger(repo=str(home), experiment=recipe, run_name=run_name, run_hash=identity or None))
    return loggers


def mlflow_store(home: Path) -> str:
    """Where MLflow keeps runs: the store of MLFLOW_TRACKING_URI, else a database beside them."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}"


def read_identity(folder: Path, name: str) -> str:
    """What a tracker calls the run in a folder; empty for a run that it does not have."""
    file = folder / FOLDER / name
    return file.read_text("utf-8").strip() if file.is_file() else ""


class TrackerSession(Callback):
    """Begins the trackers' runs with options and configuration, notes what they are called there, and ends them."""

    def __init__(self, names: Sequence[str], loggers: Sequence[Logger], folder: Path, about: Mapping[str, Any]) -> None:
        self.loggers, self.folder, self.about = dict(zip(names, loggers, strict=True)), folder, about

    @rank_zero_only
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the options of the run, and its name in each tracker into its folder."""
        for name, logger in self.loggers.items():
            logger.log_hyperparams(self._new_options(logger) if name == "mlflow" else dict(self.about))
            identity = cast(Any, logger).experiment.hash if name == "aim" else logger.version
            (self.folder / FOLDER).mkdir(exist_ok=True)
            atomic_files.write_text(self.folder / FOLDER / name, f"{identity}\n")

    def _new_options(self, logger: Any) -> dict[str, Any]:
        """The options that MLflow's run has not yet; what a resume has changed becomes a tag, since no option may."""
        logged = logger.experiment.get_run(logger.run_id).data.params
        changed = {key: value for key, value in self.about.items() if logged.get(key, str(value)) != str(value)}
        for key, value in changed.items():
            logger.experiment.set_tag(logger.run_id, key, value)
        return {key: value for key, value in self.about.items() if key not in logged}

    @rank_zero_only
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End W&B's run: the next one of this process would write into it."""
        if "wandb" in self.loggers:
            import wandb

            wandb.finish()


class CSVFigures(Logger):
    """A file metrics.csv in the run's folder with lines ``step,name,value``, which a resume continues. While the disk
    fails, lines wait in memory.

    Lightning's CSVLogger deletes the file of the run that is resumed, and rewrites it for every new name.
    """

    name, version = "csv", FIGURES

    def __init__(self, folder: Path) -> None:
        self.path, self.folder = folder / FIGURES, folder
        self.log: atomic_files.Log | None = None  # once there is a line to write
        self.effort = BestEffort(f"{self.path}", "figures are missing there", "no figure is lost")

    @property
    def experiment(self) -> Path:
        """The file."""
        return self.path

    @rank_zero_only
    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        """Write options.csv with lines ``name,value``."""
        atomic_files.write_text(self.folder / "options.csv", csv_lines([("name", "value"), *params.items()]))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a line per figure."""
        rows: list[tuple[Any, ...]] = [(step, name, float(value)) for name, value in metrics.items() if name != "epoch"]
        if self.log is None:
            self.log = atomic_files.Log(self.path)
            self.log.length = self.path.stat().st_size if self.path.exists() else 0
            rows = [("step", "name", "value")] * (not self.log.length) + rows
        self.log.append(csv_lines(rows).encode())
        with self.effort.attempt():
            self.log.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Warn where lines could not be written."""
        self.effort.end()


def csv_lines(rows: Sequence[Sequence[Any]]) -> str:
    """Rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_verdicts(verdicts: Mapping[Path, Mapping[str, float | str]]) -> None:
    """Add what a comparison says of runs, by their folders, to the trackers that have them.

    Warns of a tracker whose package is missing here, or whose store does not answer, and leaves it out.
    """
    for name in PACKAGES:
        try:
            for folder, verdict in verdicts.items():
                if (folder / FOLDER / name).exists():
                    _write_verdict(name, folder, verdict)
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            atomic_files.warn(f"the tracker {name} does not have the verdict on its runs: {why:.200}")


def _write_verdict(name: str, folder: Path, verdict: Mapping[str, float | str]) -> None:
    """Add a verdict to the run in a folder, as one tracker has it."""
    identity, home = read_identity(folder, name), folder.resolve().parents[2]
    if name == "csv":
        atomic_files.write_text(folder / "comparison.csv", csv_lines([("name", "value"), *verdict.items()]))
    elif name == "mlflow":
        from mlflow.tracking import MlflowClient

        store, database = mlflow_store(home), home / "mlflow.db"
        if store.endswith(f"sqlite:///{database}") and not database.exists():  # a client would make it
            raise FileNotFoundError(f"there is no {database}")
        client = MlflowClient(store)
        for key, value in verdict.items():
            if isinstance(value, str):
                client.set_tag(identity, key, value)
            else:
                client.log_metric(identity, re.sub(r"[^\w/. -]", "", key), value)
    elif name == "wandb":
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        project = os.environ.get("WANDB_PROJECT", folder.parts[-3])
        settings = wandb.Settings(console="off", silent=True)
        run = wandb.init(id=identity, project=project, dir=str(home), resume="allow", mode=mode, settings=settings)
        run.summary.update(dict(verdict))
        run.finish()
    else:
        from aim import Run

        run = Run(identity, repo=str(home))
        for key, value in verdict.items():
            run[key] = value
        run.close()
