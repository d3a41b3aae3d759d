"""Bind a plan to LightningCLI: build data and model, fill in sizes, make the run's folder, train."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jsonargparse import Namespace
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import SIGTERMException

from zoo import console
from zoo.cli import error_origin, fit_summary, resume
from zoo.cli.environment_errors import MemoryShortageError, check_meeting, explain_error, explain_meeting
from zoo.cli.error_report import blame_options, signal_line, signal_of, trainer_error
from zoo.cli.warning_filters import filter_warnings
from zoo.config import data_sizes, run_folder, task_data_match, trainer_bounds
from zoo.config.layers import where
from zoo.config.resolve import Schema
from zoo.config.run_config import RunPlan, config_text, flatten, identity_config
from zoo.config.signatures import parameters
from zoo.errors import CheckpointError, NonFiniteError, StorageError, UsageError
from zoo.inference import part_versions, weight_files
from zoo.inference.decoding_rules import keep_origin
from zoo.inference.find_run import find_model, run_of_checkpoint
from zoo.inference.section_parser import SectionParser
from zoo.io import atomic_files
from zoo.io.checkpoint_manifest import has_checkpoint, newest_intact
from zoo.io.locks import RunLock
from zoo.logging import progress_bar, run_state
from zoo.logging.trackers import choose_trackers
from zoo.registry import suggest
from zoo.system import garbage_collection, process_exit, stop_signals, threads
from zoo.system.stop_signals import exit_code
from zoo.tasks.task import ORIGINAL, Task
from zoo.training import distributed, out_of_memory, setup
from zoo.training.callbacks import Provenance
from zoo.training.checkpoint import AtomicCheckpointIO, CheckpointSaver
from zoo.training.compilation import compile_loss
from zoo.training.signals import StopRequested

if TYPE_CHECKING:
    from zoo.finetuning.weight_transfer import Transfer

TRANSFER_TABLE = "start.tsv"  # in a run's folder: where the tensors of a fine-tuned model come from
TRAINER: dict[str, Any] = {
    "accelerator": "auto",
    "use_distributed_sampler": False,  # zoo's loaders deal batches to processes, and resume inside an epoch
    "enable_autolog_hparams": False,  # it fills TensorBoard with `hp_metric = -1`
    "enable_model_summary": False,
}
_parsers: dict[tuple[Any, ...], LightningArgumentParser] = {}  # by the classes whose options they read


class Parser(SectionParser, LightningArgumentParser):
    """Raises UsageError instead of printing the usage and exiting."""

    def error(self, message: str, ex: Exception | None = None):
        """Raise UsageError with the message's first line."""
        raise UsageError(_first_line(message)) from ex


class ZooCLI(LightningCLI):
    """LightningCLI that is given a finished configuration instead of a command line."""

    def __init__(self, plan: RunPlan, schema: Schema) -> None:
        self.plan, self.run_folder, self.command = plan, plan.run.folder, plan.command.command
        self.facts: dict[str, Any] = {}  # facts of the run, in the manifest of each checkpoint
        self.dry = bool(plan.config["trainer"].get("fast_dev_run"))  # a trial of a few batches that writes nothing
        sections: dict[str, Any] = {key: plan.config[key] for key in ("model", "data", "trainer") if key in plan.config}
        super().__init__(
            schema.model, schema.data, save_config_callback=None, trainer_class=schema.trainer,
            trainer_defaults={**TRAINER, "default_root_dir": str(self.run_folder)},
            seed_everything_default=False, parser_class=Parser, subclass_mode_model=True, subclass_mode_data=True,
            auto_configure_optimizers=False, load_from_checkpoint_support=False, run=False,
            args=copy.deepcopy(sections),  # a copy: jsonargparse changes lists in place
        )  # fmt: skip

    def setup_parser(self, *options: Any) -> None:
        """Keep the parser for further runs in this process and its forks: it takes a tenth of a small run."""
        classes = (self.model_class, self.datamodule_class, self.trainer_class)
        if classes not in _parsers:
            super().setup_parser(*options)
            _parsers[classes] = self.parser
        self.parser = _parsers[classes]

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Take the configuration; LightningCLI's own method warns that it does not come from sys.argv."""
        trainer = {"callbacks": None, **self.trainer_defaults, **args.get("trainer", {})}
        try:
            # the plan holds all values of model and data: merging defaults again takes as long as all the rest here
            complete = {"seed_everything": False, **args, "trainer": trainer}
            self.config = parser.parse_object(complete, defaults=False)
        except TypeError as error:
            raise UsageError(_first_line(str(error))) from error

    def before_instantiate_classes(self) -> None:
        """Build the data and, on the meta device, the model; then take the model's missing sizes from the data."""
        seed_everything(self.plan.seed, workers=True, verbose=False)
        with blame_options():
            self._build(self.parser, self.config)

    def _build(self, parser: LightningArgumentParser, config: Namespace) -> None:
        self.data = parser.instantiate(Namespace(data=config.data)).data
        limit = getattr(self.data, "max_length", None)
        options = self.plan.config["model"]["init_args"]
        trial = copy.deepcopy(config.model)
        task = self.plan.resolved.classes["model"]
        trial.init_args.update(Namespace(**data_sizes.placeholder_sizes(task, options, limit)))
        data_sizes.build_on_meta(lambda: parser.instantiate(Namespace(model=trial)))
        sizes = self.data.sizes()
        task_data_match.check_missing_sizes(task, self.data, sizes, data_sizes.missing_sizes(task, options))
        has_checkpoint = bool(self.plan.config.get("ckpt_path"))
        data_sizes.check_declared_sizes(options, sizes, self.plan.resolved.origins, has_checkpoint)
        config.model.init_args.update(Namespace(**data_sizes.fill_sizes(task, options, sizes, limit)))
        seed_everything(self.plan.seed, workers=True, verbose=False)  # as if nothing had been built before

    def instantiate_classes(self) -> None:
        """Build the model; the data exists already."""
        config = copy.deepcopy(self.config)
        del config["data"]
        entry = dict.get(StrategyRegistry, str(self.plan.config["trainer"].get("strategy")), {})
        if self.plan.config.get("tune"):  # another model's weights are read into this one first
            entry = {}
        usual, Task.builder = Task.builder, getattr(entry.get("strategy"), "build_network", Task.builder)
        try:
            with blame_options(), self._name_sizes():
                self.config_init = self.parser.instantiate(config)
        finally:
            Task.builder = usual
        self.datamodule = self.data
        self.model = self.config_init["model"]
        task_data_match.check_batch(self.model, self.data)
        with blame_options():
            self.transfer = prepare_finetuning(self.plan, self.model, self.data)
        if self.plan.config.get("compile"):
            compile_loss(self.model)
        self.trainer = self.instantiate_trainer()

    @contextlib.contextmanager
    def _name_sizes(self) -> Iterator[None]:
        """Where the model does not fit into memory, name its sizes."""
        try:
            yield
        except Exception as error:
            answer = explain_error(error)
            if not isinstance(answer, MemoryShortageError):
                raise
            options = self.config.model.init_args
            sizes = {name: getattr(options, name, None) for name in ("dim", "depth", "hidden", "vocab_size")}
            settings = ", ".join(f"model.{name}={value}" for name, value in sizes.items() if isinstance(value, int))
            raise MemoryShortageError(
                f"the model does not fit into memory.{answer.amount}\nTake smaller sizes than {settings}"
            ) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with zoo's logger and callbacks unless the configuration replaces them."""
        trainer_config = self.plan.config["trainer"]
        if self.command == "fit":
            extras = make_logger_and_callbacks(self.model, self.data, self.run_folder, self.plan, self.facts)
        else:
            extras = {"logger": False, "callbacks": progress_bar.on_terminal()}
        callbacks = [item for item in extras.pop("callbacks", []) if is_enabled(item, trainer_config)]
        if not any(isinstance(item, ProgressBar) for item in callbacks) and not configures_bar(trainer_config):
            extras["enable_progress_bar"] = False  # in a pipe a bar is noise among the results
        self.trainer_defaults["callbacks"] = [*callbacks, Provenance(part_versions.packages_used(self.plan.config))]
        with blame_options():
            if self.transfer is not None and self.transfer.swaps:
                extras["num_sanity_val_steps"] = -1  # a whole validation before training, to see what the swap costs
            replaced = trainer_config.keys() - ({"logger"} if not names_logger(trainer_config) else set())
            extras = {key: extras[key] for key in extras if key not in replaced}
            if trainer_config.get("max_epochs") is None:
                extras["max_epochs"] = -1  # Lightning's 1,000 epochs would be an end that nobody stated
            if trainer_config.get("min_steps") and not trainer_config.get("min_epochs"):
                extras["min_epochs"] = 0  # Lightning's 1 keeps EarlyStopping from ending a run within its first epoch
            distributed.set_timeouts()
            try:
                if "plugins" not in trainer_config:
                    extras["plugins"] = distributed.launcher_of(trainer_config)
                trainer = super().instantiate_trainer(**extras, **kwargs)
            except Exception as error:
                if usage_error := trainer_error(error):
                    raise usage_error from error
                raise
        distributed.set_rank(trainer.global_rank)
        if trainer.world_size > 1:
            check_meeting(trainer.global_rank == 0, trainer.strategy.root_device.type == "cuda")
        if self.command == "fit":
            setup.refuse_unsupported(trainer)
            setup.refuse_other_checkpoints(trainer, self.run_folder / "checkpoints")
        else:  # a training's saver has its own
            trainer.strategy.checkpoint_io = AtomicCheckpointIO({})
        distributed.watch_process(trainer)
        return trainer

    def run(self) -> None:
        """Train, validate, test or predict; translate errors that the user can act on."""
        garbage_collection.resume_collection()
        try:
            getattr(self, f"before_{self.command}")()
            self._call_trainer()
            getattr(self, f"after_{self.command}")()
        except Exception as error:
            if out_of_memory.is_out_of_memory(error):
                raise out_of_memory.explain_out_of_memory(error, self.trainer, self.data) from error
            if meeting_error := explain_meeting(error):
                raise meeting_error from error
            if process_error := distributed.explain_lost_process(error, self.trainer):
                raise process_error from error
            if usage_error := trainer_error(error, parameters(Trainer)):
                raise usage_error from error
            raise
        finally:
            distributed.wait_for_processes(self.trainer)

    def _call_trainer(self) -> None:
        """Never unpickle: a checkpoint holds tensors and plain values. Print figures ourselves, without a box."""
        options: dict[str, Any] = {"verbose": False} if self.command in ("validate", "test") else {}
        if self.command == "predict":
            options["return_predictions"] = self.plan.config.get("return_predictions")
        options |= {"datamodule": self.datamodule, "ckpt_path": self.plan.config.get("ckpt_path"), "weights_only": True}
        try:
            getattr(self.trainer, self.command)(self.model, **options)
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            lines = [line.strip() for line in str(error).splitlines()[1:3]]
            raise CheckpointError(
                f"{options['ckpt_path']} belongs to another model than the one configured: {' '.join(lines)[:300]}"
            ) from error

    def before_fit(self) -> None:
        """Create the run's folder, once all checks have passed, and write the configuration into it."""
        check_monitors(self.trainer.callbacks, self.model)  # type: ignore[attr-defined]
        if self.dry:
            return
        if checkpoint := self.plan.config.get("ckpt_path"):
            resume.check_sizes(self.plan)
            self.model.check_original(weight_files.read_entry(Path(str(checkpoint)), ORIGINAL))
        other_data = resume.check_data(self.plan, self.data)
        if other_data and self.plan.command.get("resume"):
            from zoo.finetuning.finetune import require_same_numbers

            require_same_numbers(self.run_folder, self.data)
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, CheckpointSaver):
                callback.state.other_data = other_data
                callback.state.other_recipe = self.plan.other_recipe
                callback.state.other_callbacks = self.plan.other_callbacks
        if run_folder.first_rank():
            self.plan.hold = RunLock(self.run_folder)
        run_folder.claim(self.plan.run, *self.plan.reuse)
        self.plan.claimed = True
        console.open_log(self.run_folder)
        if run_folder.first_rank():
            # also by --resume: its checkpoints are the newest
            part_versions.write_records(self.plan.config, self.run_folder)
        command = self.plan.command
        if run_folder.first_rank() and (not command.get("resume") or command.get("accept_changes")):
            atomic_files.write_text(self.run_folder / run_folder.CONFIG, config_text(self.plan))
            self.data.save(self.run_folder)
        if run_folder.first_rank() and not command.get("resume"):
            save_transfer(self.transfer, self.run_folder)
        self.facts.update(resume.manifest_facts(self.plan, self.data, self.run_folder))
        if run_folder.first_rank():
            automatic = resume.PRECISION not in self.plan.resolved.origins
            compiled = " · compiled" if self.plan.config.get("compile") else ""
            print(fit_summary.entry("device", fit_summary.device_name(self.trainer, automatic) + compiled), flush=True)
        self.started = time.monotonic()

    def after_fit(self) -> None:
        """Mark the run as finished, and print its summary with the commands that come next."""
        if self.dry or not self.trainer.is_global_zero or self.trainer.interrupted:
            return
        done = self.run_folder / run_folder.FINISHED
        if not done.exists() or self.plan.command.get("resume"):
            measured = {f"val/{name}": value for name, value in getattr(self.model, "measured", {}).items()}
            numbers = {name: float(value) for name, value in (self.trainer.callback_metrics | measured).items()}
            figures = {name: value for name, value in numbers.items() if value == value}  # nan was not measured
            try:
                atomic_files.write_json(done, {"step": self.trainer.global_step, **figures}, indent=None, end="\n")
                (self.run_folder / run_folder.STARTING).unlink(missing_ok=True)  # where no checkpoint was to be saved
            except OSError as error:
                raise StorageError(
                    f"the run has ended and its last checkpoint is saved, but {done.name} cannot be written: "
                    f"{atomic_files.reason(error)}.\nWrite it: the same command with --resume"
                ) from error
        print(fit_summary.summary(self.plan.run, self.trainer, self.model, time.monotonic() - self.started), flush=True)

    def before_validate(self) -> None:
        """Warn where the data differ from those of training, and use what the run learned from its own."""
        from zoo.finetuning.finetune import adopt_measures, require_same_numbers

        home = run_of_checkpoint(Path(str(self.plan.config["ckpt_path"] or "")))
        if home is not None:
            require_same_numbers(home, self.data)
            adopt_measures(home, self.data)
        self.other_data = resume.warn_of_other_data(self.plan, self.data)

    before_test = before_predict = before_validate

    def after_validate(self) -> None:
        """Print the metrics. Raises NonFiniteError where the loss is none."""
        if wrong := self.model.nan_batches:
            raise NonFiniteError(
                f"the loss of {wrong} {'batch' if wrong == 1 else 'batches'} is not a number (nan): the model "
                "overflows, or training diverged. Use an earlier checkpoint, or exact numbers: --trainer.precision "
                "32-true"
            )
        if self.trainer.is_global_zero:
            for name, value in sorted(self.trainer.callback_metrics.items()):
                print(f"{name} {float(value):.5g}")

    def after_test(self) -> None:
        """Print the metrics; those of a finished run's last state go into its folder, where comparisons read them."""
        self.after_validate()
        path = Path(str(self.plan.config["ckpt_path"]))
        home = run_of_checkpoint(path)
        if home is None or not self.trainer.is_global_zero or path.resolve() != _last_state(home):
            return
        if self.plan.other_recipe or self.other_data:
            print(
                f"not recorded in {home / run_state.TEST}: that is for the run's own data and options", file=sys.stderr
            )
            return
        figures = {name.removeprefix("test/"): float(value) for name, value in self.trainer.callback_metrics.items()}
        splits = getattr(self.data, "datasets", {})
        content = {
            "figures": figures,
            "digest": (run_state.read_record(home).get("batches") or {}).get("digest"),
            "untouched": splits.get("test") is not splits.get("val"),
        }
        with contextlib.suppress(OSError):  # the folder may have another owner; the metrics are printed anyway
            atomic_files.write_json(home / run_state.TEST, content, end="\n")

    def after_predict(self) -> None:
        """Write the predictions beside the run, one JSON object per sample."""
        predictions = self.trainer.predict_loop.predictions
        if not predictions:
            return
        several = f"-{self.trainer.global_rank}" if self.trainer.world_size > 1 else ""
        home = Path(str(self.plan.config["ckpt_path"])).parent
        path = (home.parent if home.name == "checkpoints" else home) / f"predictions{several}.jsonl"
        records = [console.as_json(record, "utf-8") + "\n" for batch in predictions for record in batch]
        atomic_files.write_text(path, "".join(records))
        print(f"{len(records)} predictions → {path}", flush=True)


class Parsers(ZooCLI):
    """The parsers of a plan's classes, which are kept in this process; builds nothing."""

    def instantiate_classes(self) -> None:
        """Build no data and no model."""

    before_instantiate_classes = instantiate_classes


def _last_state(home: Path) -> Path | None:
    """The checkpoint of a finished run's last step; None for a run that is not finished."""
    newest = newest_intact(home).path if run_state.read_state(home) == "finished" else None
    return newest.resolve() if newest else None


def names_logger(trainer_config: Mapping[str, Any]) -> bool:
    """Whether a configuration says which loggers there are, or none; null and true are the default, which is zoo's."""
    logger = trainer_config.get("logger")
    return logger is not None and logger is not True


def make_logger_and_callbacks(task: Any, data: Any, home: Path, plan: RunPlan, facts: dict[str, Any]) -> dict[str, Any]:
    """Logger and callbacks of a training run; prints the header."""
    from zoo.training.model_cost import cost

    model_cost = cost(task)
    if run_folder.first_rank():
        print(fit_summary.header(plan, task, model_cost), flush=True)
        if memory := fit_summary.memory_of(task, plan, data):  # takes longer than the lines before
            print(memory, flush=True)
    checkpoint_options = setup.CheckpointOptions(
        plan.command.get("save_every"), plan.command.get("on_nonfinite"), facts, resume.logged_positions(plan),
        plan.command.get("on_imprecise"), plan.command.get("save"),
    )  # fmt: skip
    own_logger = names_logger(plan.config["trainer"]) or plan.config["trainer"].get("fast_dev_run")
    trackers = {} if own_logger else choose_trackers(plan.command.get("trackers"), home, plan.command.get("overwrite"))
    return setup.make_logger_and_callbacks(
        task, model_cost, home, plan.config["model"], plan.config["data"], checkpoint_options, identity(plan), trackers
    )


def identity(plan: RunPlan) -> dict[str, Any]:
    """What makes a run the run it is: its whole configuration by dotted keys, and the code that this names."""
    from zoo.logging.code_identity import code_identity

    return {"config": identity_config(plan), "code": code_identity(plan.config)}


def prepare_finetuning(plan: RunPlan, task: Any, data: Any) -> Transfer | None:
    """Prepare the model for fine-tuning as ``tune`` configures it; the table of copied tensors, if any were copied.

    Prints the table of a run that starts; a resumed run takes its weights from its own checkpoint.
    """
    from zoo.finetuning.finetune import adopt_measures, prepare_healing, prepare_task, tune_of_config
    from zoo.inference.load import load

    tune = tune_of_config(plan.config)
    if tune is None:
        return None
    resumes = bool(plan.config.get("ckpt_path"))
    # resumed adapters must know which tensors were new; otherwise the run's own checkpoint holds everything
    starts = plan.command.command == "fit" and (not resumes or tune.rank > 0)
    table = prepare_task(task, tune, plan.command.get("runs"), data, starts)
    if resumes and (home := run_of_checkpoint(Path(plan.config["ckpt_path"]))) is not None:
        adopt_measures(home, data)
    if tune.heal and plan.command.command == "fit":
        original = load(str(tune.start), runs=plan.command.get("runs"), bare=True)
        prepare_healing(task, tune.heal, cast(Task, original.module), original.place, data)
    if table is not None and not resumes and run_folder.first_rank():
        print(f"starts from {tune.start}\n{table.table()}", flush=True)
    return table


def save_transfer(table: Transfer | None, home: Path) -> None:
    """Write the table of tensors into the run's folder, and what the import says with which it starts."""
    if table is not None:
        keep_origin(table.origin, home)
        lines = ["\t".join(row) for row in table.rows()]
        atomic_files.write_text(home / TRANSFER_TABLE, "\n".join(["fate\ttensor\tshape", *lines]) + "\n")


def is_enabled(callback: object, trainer_config: dict[str, Any]) -> bool:
    """Whether the configuration leaves a callback that zoo adds switched on."""
    if isinstance(callback, ProgressBar):
        return trainer_config.get("enable_progress_bar") is not False and not configures_bar(trainer_config)
    return not isinstance(callback, Checkpoint) or trainer_config.get("enable_checkpointing") is not False


def configures_bar(trainer_config: dict[str, Any]) -> bool:
    """Whether the configuration has a progress bar of its own, of any class, among the callbacks: one, or a list."""
    callbacks = trainer_config.get("callbacks") or []
    items = callbacks if isinstance(callbacks, list) else [callbacks]
    paths = [str(item.get("class_path")).rpartition(".") for item in items if isinstance(item, Mapping)]
    classes = [getattr(sys.modules.get(module), name, None) for module, _, name in paths]  # imported with the plan
    return any(isinstance(cls, type) and issubclass(cls, ProgressBar) for cls in classes)


def check_monitors(callbacks: Iterable[Any], task: Any) -> None:
    """Raise UsageError for a callback that monitors a figure which no validation of the task reports, or takes its best
    value for the worst.
    """
    items = [item for item in callbacks if isinstance(getattr(item, "monitor", None), str)]
    ways = {"val/loss": "min", **{f"val/{name}": way for name, way in task.monitored_metrics.items()}}
    for item in items:
        way, mode = ways.get(item.monitor), getattr(item, "mode", None)
        if {way, mode} == {"min", "max"}:
            raise UsageError(
                f"{type(item).__name__} monitors {item.monitor!r} with mode {mode}, and the best value is the "
                f"{'lowest' if way == 'min' else 'highest'} one: set its mode to {way}"
            )
    monitors = [(type(item).__name__, item.monitor) for item in items]
    if all(monitor in ways for _, monitor in monitors):
        return
    names = {*task.compute_metrics(0.0), *getattr(task, "text_metrics", ())}
    figures = sorted({*ways, *(f"val/{name}" for name in names)})
    for callback, monitor in monitors:
        # figures by kind, such as val/exact_date, have names of the data
        if monitor not in figures and not monitor.startswith(tuple(f"{name}_" for name in figures)):
            near = suggest(monitor.replace("_", "/", 1), figures) or suggest(monitor, figures)
            raise UsageError(
                f"{callback} monitors {monitor!r}, which no validation reports.{near} There are: {', '.join(figures)}"
            )


def run_plan(plan: RunPlan, schema: Schema) -> int:
    """Run a plan, and return the exit code."""
    filter_warnings(plan.command.get("debug"))
    if stop_signals.is_further_process():
        process_exit.follow_parent(int(os.environ[stop_signals.PARENT]))
    resume.apply_requeue(plan)
    resume.choose_checkpoint(plan)
    if plan.command.command == "fit":
        trainer_bounds.check_end(plan.config["trainer"], str(plan.source or "the command"))
        run_folder.check(plan.run, *plan.reuse)
        if plan.command.get("overwrite"):
            refuse_own_inputs(plan)
    try:
        with threads.follow_load():
            ZooCLI(plan, schema).run()
    except StopRequested as stopped:
        if run_folder.first_rank():
            print(stop_message(stopped), file=sys.stderr)
        return int(stopped.code or 0)
    except SIGTERMException:  # during an evaluation, which saves nothing
        print("interrupted by SIGTERM.", file=sys.stderr)
        return exit_code(signal.SIGTERM)
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            can_resume = plan.claimed and has_checkpoint(plan.run.folder)
            hint = " Continue: the same command with --resume" if can_resume else ""
            print(f"{signal_line(error.__context__)}.{hint}", file=sys.stderr)
            return exit_code(signal_of(error.__context__))
        return error.code if isinstance(error.code, int) else 1
    except UsageError as error:
        _release(plan)
        raise error.reworded(f"{error}{error_origin.option_origin(str(error), plan, schema)}") from error
    except (CheckpointError, StorageError, OSError):
        _release(plan)
        raise
    finally:
        if plan.hold is not None:
            plan.hold.release()
    return 0


def _release(plan: RunPlan) -> None:
    """Remove the folder of a run that failed before its first checkpoint: the same command works again."""
    if plan.claimed and not plan.command.get("resume"):
        run_folder.release(plan.run)


def refuse_own_inputs(plan: RunPlan) -> None:
    """Raise UsageError for a run that reads from the folder that it would replace: what it starts from, its data."""
    home = plan.run.folder.resolve()
    for key, value in flatten(plan.config).items():
        values = value if isinstance(value, list) else [value]
        places = [os.path.expanduser(text) for text in values if isinstance(text, str) and text.strip()]
        if key == "tune.start" and value:
            places = [str(find_model(str(value), plan.command.get("runs")).weights)]
        inside = (os.path.exists(place) and Path(place).resolve().is_relative_to(home) for place in places)
        if key.startswith(("model.", "data.", "tune.", "ckpt_path")) and any(inside):
            raise UsageError(
                f"{key} is in {plan.run.folder}, which --overwrite would delete. Keep both: --name NAME."
                f"{where(plan.resolved.origins.get(key, ''))}"
            )


def stop_message(stopped: StopRequested) -> str:
    """The message of a run that a signal stopped."""
    name = signal.Signals(stopped.signum).name
    if not stopped.saved:
        return f"interrupted by {name} at step {stopped.step}, with no new checkpoint."
    return f"interrupted by {name}: step {stopped.step} is saved. Continue: the same command with --resume"


def _first_line(message: str) -> str:
    """The first two lines of a parser's message that are not empty."""
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    return " ".join(lines[:2])[:400]
