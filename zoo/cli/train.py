"""fit, validate, test, predict, and `zoo.fit`: everything that needs no torch is checked before torch is imported."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zoo.cli import doctor, warning_filters
from zoo.cli.environment_errors import working_folder
from zoo.command_line import ParsedOptions
from zoo.config import fit_options, run_config, run_folder
from zoo.config.passive_settings import is_passive
from zoo.config.run_config import Draft
from zoo.errors import UsageError, ZooError
from zoo.inference.find_run import newest_run, run_of_checkpoint
from zoo.io import limits
from zoo.system import garbage_collection, malloc, stop_signals

if TYPE_CHECKING:
    from zoo.config.resolve import Schema
    from zoo.config.run_config import RunPlan
    from zoo.config.signatures import Param
    from zoo.inference.trained_model import Trained


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, and the figures of its last validation, such as ``val/loss``, without those that are
    nan.
    """

    folder: Path
    figures: Mapping[str, float]

    def load(self, device: str = "cpu") -> Trained:
        """The trained model, as `zoo.load` gives it."""
        from zoo.inference.load import load

        return load(self.folder, device)


def fit(
    recipe: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    seed: int = 1,
    runs: str | Path = "runs",
    name: str | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    trackers: Sequence[str] = (),
) -> Run:
    """Train a recipe as `zoo fit` does, and return the run. Call it in the main thread, which handles signals.

    ``options`` are by the dotted names of the command line: ``{"model.position": "alibi", "trainer.max_steps": 200}``;
    values are plain, paths, or numbers of numpy and torch. Random numbers of the caller go on as if nothing had run.
    ``existing`` says what happens where the run has begun before, one that is finished is then returned as it is, or
    trained anew. Raises UsageError for wrong options, KeyboardInterrupt where Ctrl-C has ended the run, and what else
    ends it.
    """
    working_folder()
    flags = {"error": [], "resume": ["--requeue"], "overwrite": ["--overwrite"]}
    if existing not in flags:
        raise UsageError(f"existing is {existing!r}: it must be one of {', '.join(flags)}")
    words = [os.fspath(recipe), f"--seed={seed}", f"--runs={runs}", *flags[existing], *option_words(options or {})]
    words += [f"--name={name}"] * (name is not None) + [f"--trackers={','.join(trackers)}"] * bool(trackers)
    with stop_signals.handle_signals(False, restore=True), keep_globals():
        code, planned = execute(fit_options.parse("fit", words))
    if code == stop_signals.exit_code(signal.SIGINT):
        raise KeyboardInterrupt
    folder = planned.run.folder if planned else Path()
    if code or planned is None:
        raise ZooError(f"the run {folder} was stopped from outside; it can go on: existing='resume'")
    content = limits.read_json(folder / run_folder.FINISHED)
    figures = content if isinstance(content, dict) else {}
    return Run(folder, {key: float(value) for key, value in figures.items() if key != "step"})


@contextlib.contextmanager
def keep_globals() -> Iterator[None]:
    """Put back what a run sets for itself: random numbers, types and modes of torch, Lightning's variables, warnings,
    levels of loggers, what may be imported. Kernels and the peak of memory of runs before are forgotten.
    """
    import torch

    from zoo.inference.import_policy import restore_policy
    from zoo.system import kernel_choice
    from zoo.training import callbacks, rng_state

    device = torch.device("cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu")
    states, dtype, learns = rng_state.capture(device), torch.get_default_dtype(), torch.is_grad_enabled()
    is_strict = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    variables = {name: os.environ.get(name) for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")}
    loggers = [logging.getLogger(name) for name in (*warning_filters.LOGGERS, warning_filters.PROFILER_LOGGER)]
    levels, benchmark = [logger.level for logger in loggers], torch.backends.cudnn.benchmark
    torch.set_default_dtype(torch.float32)
    kernel_choice.forget()
    callbacks.reset_peak_memory()
    try:
        with warnings.catch_warnings(), restore_policy():
            yield
    finally:
        kernel_choice.forget()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(learns)
        torch.use_deterministic_algorithms(is_strict, warn_only=warns_only)
        rng_state.restore(states, device)
        for name, value in variables.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options by their dotted names as words of a command line; values as YAML writes them.

    Raises UsageError for a value that is no text, number, list or mapping of these.
    """
    words = []
    for key, value in options.items():
        if not isinstance(key, str):
            raise UsageError(f"an option is called {key!r}: names are texts, such as 'model.lr'")
        try:
            words.append(f"--{key}={value_text(value)}")
        except TypeError as error:
            raise UsageError(
                f"{key!r} is {value!r:.60}: a text, a number, a list or a mapping is expected, such as a part's name"
            ) from error
    return words


def value_text(value: Any) -> str:
    """A value as the command line has it. Raises TypeError for what is no plain value, path or number."""

    def as_plain(item: Any) -> Any:
        """Numbers and arrays of numpy and torch as Python's, paths as texts."""
        if isinstance(item, os.PathLike):
            return os.fspath(item)
        if hasattr(item, "tolist"):
            return item.tolist()
        raise TypeError(type(item).__name__)

    value = as_plain(value) if isinstance(value, os.PathLike) else value
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=as_plain)


def run(options: ParsedOptions) -> int:
    """Plan the run, then hand it to Lightning; or print its configuration, or every option."""
    of_training = fit_options.parse("fit", []).defaults  # which an evaluation cannot change
    return execute(replace(options, defaults=of_training | options.defaults))[0]


def execute(command: ParsedOptions) -> tuple[int, RunPlan | None]:
    """Run a parsed command: its exit code, and the plan of the run if there was one."""
    doctor.warn_of_unknown_plugins()
    lists_options = command.get("help_all")
    if command.command != "fit":
        choose_run(command)
    draft = run_config.read_draft(command) if command.words or not lists_options else Draft([], None, 0)
    if command.command == "fit" and not (lists_options or command.get("print_config")) and run_folder.first_rank():
        print("loading torch, the data and the model …", flush=True)  # they take seconds, many on a slow machine
    doctor.check_torch()
    malloc.keep_freed_memory()
    with garbage_collection.pause_collection():
        warning_filters.filter_warnings(command.get("debug"))
        schema = run_config.schema()
        if lists_options:
            print_options(command, draft, schema)
            return 0, None
        config_plan = run_config.make_plan(command, draft, schema)
        from zoo.training import distributed

        distributed.settle_rank(config_plan.config["trainer"])
        for note in config_plan.resolved.notes if run_folder.first_rank() else ():
            print(f"note: {note}", file=sys.stderr)
        if command.get("print_config"):
            print(run_config.config_text(config_plan), end="")
            return 0, config_plan
        from zoo.cli.fit import run_plan

        return run_plan(config_plan, schema), config_plan


def choose_run(command: ParsedOptions) -> None:
    """Take the run that a recipe's name alone means; with options that name a run, it is the one that they trained."""
    name_run(command)
    name, selects = command.word, command.get("name") or command.get("config") or command.get("help_all")
    selects = selects or any(not is_passive(key, value) for key, value, _ in command.settings)
    if name is None or selects or Path(name).expanduser().exists():
        return
    command.words = [str(newest_run(name, command.get("runs")))]
    if run_folder.first_rank():
        print(f"using {command.word}", file=sys.stderr)


def name_run(command: ParsedOptions) -> None:
    """Where a command names a checkpoint, let it name the run of it, and the checkpoint by ``ckpt_path``."""
    name = command.word or ""
    if name.endswith(".ckpt") and (home := run_of_checkpoint(Path(name))):
        command.settings.append(("ckpt_path", name, name))
        command.words = [str(home)]


def print_options(command: ParsedOptions, draft: Draft, schema: Schema) -> None:
    """Print every option of the trainer, and of the model and data that a recipe or the options choose."""
    from zoo.config.signatures import parameters

    print(f"usage: zoo {command.command} [RECIPE] [options]\n")
    classes = dict(_sections(command, draft, schema))
    for section, cls in classes.items():
        print(f"{section} ({cls.__module__}.{cls.__qualname__})")
        owner, _, option = section.rpartition(".")
        param_of_owner = parameters(classes[owner]).get(option) if owner in classes else None
        slot = param_of_owner.slot if param_of_owner else None
        for param in parameters(cls, slot.owner_arguments if slot else 0).values():
            print(f"  --{section}.{param.name:<28} {_about(param)}")
        print()
    if not draft.layers and not command.settings:
        print("Name a recipe to see the options of its model and data: zoo fit RECIPE --help-all")


def _sections(command: ParsedOptions, draft: Draft, schema: Schema) -> list[tuple[str, type]]:
    if not draft.layers:
        return [("trainer", schema.trainer)]
    classes = run_config.make_plan(command, draft, schema).resolved.classes
    below = [key for key in classes if key.startswith("model.")]
    return [*((key, classes[key]) for key in ("model", *below, "data")), ("trainer", schema.trainer)]


def _about(param: Param) -> str:
    from zoo.config.coercion import describe_type

    default = "required" if param.required else f"default {getattr(param.default, '__name__', param.default)}"
    if param.slot is None:
        return f"{describe_type(param.annotation)}; {default}"
    if param.slot.kind:
        return f"a {param.slot.word}, see: zoo list {param.slot.kind}; {default}"
    return f"a {param.slot.base.__name__}; {default}"
