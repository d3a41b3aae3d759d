"""The logger and callbacks of every run: checkpoints, a cost meter, lines, and on a terminal a progress bar."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from zoo.config.passive_settings import is_passive
from zoo.errors import UsageError
from zoo.io.checkpoint_manifest import OWN
from zoo.logging.attention_maps import Heatmaps
from zoo.logging.progress_bar import on_terminal
from zoo.logging.run_record import Ledger
from zoo.logging.tensorboard import RunLogger
from zoo.logging.trackers import TrackerSession, make_trackers
from zoo.tasks.task import Task
from zoo.training.callbacks import CostMeter, PrintedLines
from zoo.training.checkpoint import CheckpointSaver
from zoo.training.lightning_internals import option_between_validations
from zoo.training.model_cost import Cost
from zoo.training.nonfinite import NonFiniteGuard
from zoo.training.precision_check import PrecisionCheck

Choice = str | float | bool
BATCH = ("batch_size", "max_tokens", "max_length")
# Lightning's classes that need another kind of model, or whose effect no checkpoint restores, and what to take instead
UNSUPPORTED = {
    "BackboneFinetuning": "it needs a module named `backbone`, and counts epochs. Take tune.freeze",
    "BaseFinetuning": "it changes the optimizer while a run trains. Take tune.freeze",
    "BatchSizeFinder": "the run would train with another batch size than it records. Set data.batch_size",
    "LearningRateFinder": "the run would train with another rate than it records. Set model.lr",
    "GradientAccumulationScheduler": "the schedule needs the number of steps. Set trainer.accumulate_grad_batches",
    "ModelPruning": "it renames the weights, and no checkpoint holds what it has pruned",
    "OnExceptionCheckpoint": "Lightning then begins with what it left. Every run saves when it ends: --resume",
    "SpikeDetection": "it ends the run and leaves batches out of no other. Take --on-nonfinite skip",
    "StochasticWeightAveraging": "its average is in no checkpoint's weights. Take the callback EMA",
    "ThroughputMonitor": "it needs a function, and its windows begin anew. The run logs cost/tokens_per_s",
    "ModelParallelStrategy": "it needs a model that divides itself (configure_model). Take fsdp2 (zoo-scale) or ddp",
    "WeightAveraging": "before its first update the average is the initial weights. Take the callback EMA",
    "CSVLogger": "it would delete the file of a run that is resumed. Take --trackers csv",
    "TensorBoardLogger": "a resumed run would begin another folder. The run logs to TensorBoard in its own",
}
INFRASTRUCTURE = ("num_workers", "cache")  # options of data without influence on the result


@dataclass
class CheckpointOptions:
    """How a run saves checkpoints, and from where it continues."""

    every: int = 0  # steps between checkpoints, besides those after validations and every ten minutes
    policy: str = "stop"  # about a step that is not finite
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts of the run, for the manifests
    logged: dict[str, int] | None = None  # bytes of each event file at the checkpoint that is resumed
    on_imprecise: str = "stop"  # about a part that differs from its formula on the first batch
    way: str = "whole"  # of `zoo.training.checkpoint.WAYS`


def refuse_unsupported(trainer: Trainer) -> None:
    """Raise UsageError for a callback, a logger or a strategy that UNSUPPORTED names, also in a subclass."""
    items: list[Any] = [*trainer.callbacks, *trainer.loggers, trainer.strategy]  # type: ignore[attr-defined]
    for item in items:
        for cls in type(item).__mro__ if not isinstance(item, RunLogger) else ():
            if getattr(item, "gathers_state", False):
                break
            if cls.__module__.startswith(("lightning.", "pytorch_lightning.")) and cls.__name__ in UNSUPPORTED:
                raise UsageError(f"{type(item).__name__} cannot be used: {UNSUPPORTED[cls.__name__]}.")


def refuse_other_checkpoints(trainer: Trainer, folder: Path) -> None:
    """Raise UsageError for a callback that would write over the run's own checkpoints in ``folder``, or rank weights by
    a figure that a validation measured of earlier ones.
    """
    own = {str(folder.resolve() / name).casefold() for name in OWN}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if not isinstance(callback, (ModelCheckpoint, EarlyStopping)):
            continue
        name = type(callback).__name__
        option = option_between_validations(callback, trainer)
        if option and str(callback.monitor).startswith("val/"):
            raise UsageError(
                f"{name} looks at {callback.monitor!r} by {option}, also where no validation has just measured it: the "
                "figure would be that of earlier weights. Leave the option out, for each validation, or leave out "
                "'monitor'."
            )
        if isinstance(callback, EarlyStopping):
            continue
        place = Path(callback.dirpath or folder)
        stems = [callback.filename or "", callback.CHECKPOINT_NAME_LAST if callback.save_last else ""]
        for option, stem in zip(("filename", "save_last"), stems, strict=True):
            file = (place / f"{stem}{callback.FILE_EXTENSION}").resolve()
            if stem and str(file).casefold() in own:
                raise UsageError(
                    f"{name} would write over {file.name}, a checkpoint of the run itself, by its option {option}. "
                    "Give it another filename or dirpath; the run keeps its last and its best state without it."
                )


def make_logger_and_callbacks(
    task: Task,
    cost: Cost,
    folder: Path,
    model: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    saving: CheckpointOptions | None = None,
    identity: Mapping[str, Any] | None = None,
    trackers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Logger and callbacks for a Trainer that trains ``task`` in ``folder``, ``runs/<recipe>/<variant>/s<seed>``.

    ``model`` and ``data`` are the configurations of both, ``{"class_path": ..., "init_args": {...}}``; ``identity`` is
    the whole ``config`` by dotted keys and the ``code`` that it names, for the run's record.
    ``trackers`` get the same figures as TensorBoard; see `choose_trackers`.
    """
    saving = saving or CheckpointOptions()
    recipe, variant = folder.parts[-3:-1]
    about = {**describe_configuration(model, data or {}), **(identity or {})}
    hyperparameters = {**about["choices"], **training_options(about.get("config", {}))}
    logger = RunLogger(folder, f"{variant} ({recipe})", hyperparameters, saving.logged)
    loggers = make_trackers(trackers or {}, folder)
    options = {**hyperparameters, **{f"config.{name}": value for name, value in about.get("config", {}).items()}}
    callbacks: list[Callback] = [
        CheckpointSaver(
            folder / "checkpoints", next(iter(task.monitored_metrics.items())), saving.every, saving.facts, saving.way
        ),
        PrecisionCheck(folder, saving.on_imprecise),
        NonFiniteGuard(folder, saving.policy),
        CostMeter(cost),
        Heatmaps(),
        Ledger(folder, about),
        TrackerSession(list(trackers or ()), loggers, folder, options),
        *on_terminal(),
        PrintedLines(),
    ]
    return {"logger": [logger, *loggers], "callbacks": callbacks}


def describe_configuration(model: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in a ledger: every choice, and the settings that a fair comparison holds equal."""
    model_options, data_options = option_values(model), option_values(without_infrastructure(data))
    setting = {name: model_options[name] for name in ("optimizer", "schedule") if name in model_options}
    batch = {name: data_options[name] for name in BATCH if name in data_options}
    below = {f"data.{name}": value for name, value in data_options.items()}
    task = {"model": display_value({"class_path": model["class_path"]})} if "class_path" in model else {}
    return {"choices": {**task, **model_options, **below}, "setting": {**setting, "batch": batch}}


def training_options(config: Mapping[str, Any]) -> dict[str, Choice]:
    """One hyper-parameter per option outside of model and data that is set and may change a run, by its dotted key."""
    sections = ("trainer", "tune", "compile", "on_nonfinite")
    return {
        name: " and ".join(str(display_value(item)) for item in value) if isinstance(value, list)
        else display_value(value)
        for name, value in config.items()
        if name.partition(".")[0] in sections and not is_passive(name, value)
        and value is not None and value is not False and value != []
    }  # fmt: skip


def without_infrastructure(value: Any) -> Any:
    """A configuration of data without the options that have no influence, at any depth."""
    if not isinstance(value, Mapping):
        return value
    return {name: without_infrastructure(item) for name, item in value.items() if name not in INFRASTRUCTURE}


def option_values(model: Mapping[str, Any]) -> dict[str, Choice]:
    """One hyper-parameter per option of the model; a part with its options is one value: ``RoPE(base=500000)``."""
    return {name: display_value(value) for name, value in model.get("init_args", {}).items()}


def display_value(value: Any) -> Choice:
    """A value of a configuration for display: a part by its name and the options that differ from its defaults."""
    if isinstance(value, Mapping) and "class_path" in value:
        usual = default_options(str(value["class_path"]))
        options_of = value.get("init_args") or {}
        changed = {n: v for n, v in options_of.items() if n not in usual or not _same(v, usual[n])}
        options = ", ".join(f"{name}={display_value(option)}" for name, option in changed.items())
        name = str(value["class_path"]).rpartition(".")[2]
        return f"{name}({options})" if options else name
    if isinstance(value, (list, tuple)) and value and all(isinstance(entry, Mapping) for entry in value):
        rows = [[f"{n}={display_value(v)}" for n, v in entry.items() if v is not None] for entry in value]
        return "; ".join(", ".join(row) for row in rows)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _same(value: Any, usual: Any) -> bool:
    """Whether a value is a default, which may be a class."""
    return value == usual or (isinstance(usual, type) and display_value(value) == usual.__name__)


def default_options(class_path: str) -> dict[str, Any]:
    """The default options of a class that has been imported."""
    module, _, name = class_path.rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    if cls is None:
        return {}
    return {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
