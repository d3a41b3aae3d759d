"""What is explained: a recipe, a trained model or a part, as a task without weights and the origin of every option."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo import recipe_files, registry
from zoo.config import data_sizes, fit_options, run_config, yaml_source
from zoo.data.data import Data
from zoo.errors import StorageError, UsageError, ZooError
from zoo.inference.find_run import EXPORT, WEIGHTS, ModelLocation, find_model
from zoo.inference.load import load, use_module
from zoo.inference.rebuild_task import rebuild_task
from zoo.inference.trained_model import Trained
from zoo.parts.position import NoPosition
from zoo.plugins import diagnosis
from zoo.tasks.task import Task
from zoo.training.config_meter import ConfigMeter
from zoo.training.memory_estimate import reason_against, rows
from zoo.training.part_numerics import FILE as NUMERICS
from zoo.training.part_numerics import PartError, read_parts

DEFAULT = "default"  # the origin of an option that neither a file nor a command line sets
PART_SIZES: dict[str, Any] = {"vocab_size": 256, "max_length": 256, "dim": 512, "depth": 1, "heads": 8}
IMAGE_SIZES: dict[str, Any] = {"image_size": 64, "patch_size": 4, "channels": 3, "num_classes": 256,
                               "dim": 512, "depth": 1, "heads": 8}  # as many patches as tokens  # fmt: skip


class OptionValue(NamedTuple):
    """An option, its value, and where it was set: file and line, option of the command line, data or a default."""

    key: str
    value: str
    origin: str


@dataclass
class Subject:
    """A model to explain. ``task`` is on the meta device; ``open`` loads or builds one that computes."""

    title: str
    task: Task
    options: list[OptionValue]
    rows: int  # samples of a training step; 0 where nothing says so
    trained: bool
    open: Callable[[ExitStack, str], Trained] | None = None
    notes: list[str] = field(default_factory=list)
    numerics: list[PartError] = field(default_factory=list)  # deviations at the first training batch
    config: Mapping[str, Any] = field(default_factory=dict)  # sections model, data, trainer; none of a part
    data: Callable[[], Data] | None = None  # ready to be read; raises a ZooError where it cannot be prepared


def find_subject(words: Sequence[str], settings: Sequence[Any] = (), where: Mapping[str, Any] | None = None) -> Subject:
    """The subject of one word (a recipe, run, checkpoint or export) or two (a kind and a part).

    ``settings`` are options of the configuration, (dotted key, value, text); ``where`` holds the folder of runs,
    ``runs``, and the modules that may be imported, ``allow``. Raises a ZooError where there is no such thing.
    """
    where = {"runs": "runs", "allow": (), **(where or {})}
    if len(words) == 2:
        return part_subject(words[0], words[1])
    path = Path(words[0]).expanduser()
    if path.is_dir() or path.suffix in (".ckpt", ".safetensors") or path.name == EXPORT:
        if settings:
            raise UsageError(f"{settings[0][2]}: {words[0]} is trained, and its options are those of its training.")
        return trained_subject(words[0], **where)
    return recipe_subject(words[0], settings, where["allow"])


def recipe_subject(name: str, settings: Sequence[Any], allow: Sequence[str] = ()) -> Subject:
    """A recipe with options of the command line. Raises UsageError for parts that cannot be combined."""
    command = fit_options.parse("fit", [name, *(f"--allow-import={module}" for module in allow)])
    command.settings += settings
    plan = run_config.make_plan(command, run_config.read_draft(command), run_config.schema())
    config, cls = plan.config, plan.resolved.classes["model"]
    options, notes = dict(config["model"]["init_args"]), list(plan.resolved.notes)
    origins, meter = dict(plan.resolved.origins), ConfigMeter(tuple(allow))
    missing = data_sizes.missing_sizes(cls, options)
    if missing:
        filled, note = _sizes_of_data(meter, config, cls, options)
        options |= filled
        data = str((config.get("data") or {}).get("class_path", "the data")).rpartition(".")[2]
        origins |= {f"model.{key}": f"a small value: {data} is not here" if note else f"data: {data}" for key in filled}
        notes += [note] if note else []
    model = {"class_path": config["model"]["class_path"], "init_args": options}
    source = plan.source or Path(name)
    with torch.device("meta"):
        task = rebuild_task({"model": model}, source, tuple(allow))
    full = {**config, "model": model}

    def open_model(stack: ExitStack, device: str) -> Trained:
        if missing and notes and notes[-1].startswith("sizes"):
            raise UsageError(f"the data of {name} cannot be prepared, so there is no tokenizer. {notes[-1]}")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zoo-explain-")))
        load_data(meter, config).save(folder)
        model_task = rebuild_task({"model": model}, source, tuple(allow)).eval().requires_grad_(False).to(device)
        return use_module(model_task, ModelLocation(folder, folder / WEIGHTS, full, source))

    flat = run_config.flatten({key: full[key] for key in ("model", "data", "trainer") if key in full})
    values = [OptionValue(key, _text(value), _short(origins.get(key, DEFAULT))) for key, value in flat.items()]
    count = _rows(task, config, notes)
    title = f"recipe {recipe_files.find_recipe(name).stem}" + "".join(f" {text}" for _, _, text in settings)
    here = not (missing and notes and notes[-1].startswith("sizes"))
    data_of = partial(load_data, meter, config) if here else None
    return Subject(title, task, values, count, False, open_model, notes, config=full, data=data_of)


def trained_subject(name: str, runs: str, allow: Sequence[str]) -> Subject:
    """A run, checkpoint or export with its weights."""
    place = find_model(name, runs)
    with torch.device("meta"):
        task = rebuild_task(place.config, place.source, tuple(allow))
    layer = yaml_source.read_yaml(place.source)
    values = [
        OptionValue(key, _text(node.plain_value()), _short(node.origin))
        for key, node in layer.leaves()
        if key.partition(".")[0] in ("model", "data", "trainer", "tune")
    ]

    def open_model(stack: ExitStack, device: str) -> Trained:
        return load(name, device, runs=runs, allow=tuple(allow))

    notes: list[str] = []
    count = _rows(task, place.config, notes)
    kind = "export" if place.source.name == EXPORT else "run"
    dtype, numerics = read_parts(place.source.parent / NUMERICS)
    if numerics:
        worst = max(numerics, key=lambda error: error.share)
        notes.append(
            f"on the first batch of training, in {dtype}, the part farthest from its float64 formula was {worst.name}, "
            f"{worst.part}: {worst.error:.1e} of the largest value; rounding explains {worst.tolerance:.1e}"
        )
    data = partial(load_data, ConfigMeter(tuple(allow)), place.config)
    return Subject(f"{kind} {name}", task, values, count, True, open_model, notes, numerics, place.config, data)


def _rows(task: Task, config: Mapping[str, Any], notes: list[str]) -> int:
    """Samples of a training step, 0 where nothing says so; with a note where a step differs from the estimate's."""
    count = rows(task, (config.get("data") or {}).get("init_args") or {})
    reason = "with fine-tuning options" if config.get("tune") else reason_against(config)
    if count and reason:
        notes.append(f"this model trains {reason}; the memory of a step is that of float32 without such options")
    return count


def part_subject(kind: str, name: str) -> Subject:
    """A part of a stack, in a language model of one layer. Raises UsageError for parts of another kind."""
    from zoo.config.signatures import parameters
    from zoo.plugins.description import CLASS_PARAMETERS

    if kind not in registry.STACK_KINDS:
        raise UsageError(
            f"only parts of a stack are explained by themselves: {', '.join(registry.STACK_KINDS)}. "
            f"For a {kind} name a recipe that uses it: zoo explain RECIPE --model.{kind} {name}"
        )
    part = diagnosis.choose_part(kind, name)
    cls = part.load()
    try:
        task, note = _model_with(kind, cls)
    except (ZooError, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, ZooError) and not isinstance(error, UsageError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"{kind} {part.name} cannot be built in a language model: {reason}") from error
    own = parameters(cls, CLASS_PARAMETERS.get(kind, 0)).values()
    values = [OptionValue(f"{kind}", part.name, part.origin)]
    values += [OptionValue(f"{kind}.{parameter.name}", _text(parameter.default), DEFAULT) for parameter in own]
    sizes = ", ".join(f"{key} {value}" for key, value in PART_SIZES.items())
    notes = [f"in a language model of {sizes}"]
    notes += [f"{note}: {kind} {part.name} does not combine with the default"] if note else []
    return Subject(f"{kind} {part.name}", task, values, 0, False, None, notes)


def _model_with(kind: str, cls: type) -> tuple[Task, str]:
    """A small model with a part, and what it has in place of the default where the part does not combine with that.

    Raises what the default model raises where no model can be built.
    """
    from zoo.tasks.classification import Classification
    from zoo.tasks.lm import CausalLM

    attempts: list[tuple[type[Task], dict[str, Any], str]] = [
        (CausalLM, PART_SIZES, ""), (CausalLM, PART_SIZES | {"position": NoPosition}, "position none"),
        (Classification, IMAGE_SIZES, "a classifier of images, whose attention is not causal"),
    ]  # fmt: skip
    refusal: UsageError | None = None
    for task, options, note in attempts:
        try:
            with torch.device("meta"):
                return task(**(options | {kind: cls})), note
        except UsageError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def with_options(words: Sequence[str]) -> list[tuple[str, str, str]] | None:
    """The settings in words such as ``model.position=rope``; None unless all are such words."""
    pairs = [word.partition("=") for word in words]
    if not words or not all(key.partition(".")[0] in ("model", "data", "trainer") and mark for key, mark, _ in pairs):
        return None
    return [(key, value, f"{key}={value}") for key, _, value in pairs]


def _sizes_of_data(
    meter: ConfigMeter, config: Mapping[str, Any], cls: type[Task], options: Mapping[str, Any]
) -> tuple[dict[str, int], str]:
    """The sizes that the data sets, or small ones and a sentence that says so where the data cannot be prepared."""
    try:
        data = load_data(meter, config)
        filled = dict(options)
        return data_sizes.fill_sizes(cls, filled, data.sizes(), getattr(data, "max_length", None)), ""
    except (UsageError, StorageError, OSError) as error:
        limit = (config.get("data") or {}).get("init_args", {}).get("max_length")
        small = data_sizes.placeholder_sizes(cls, options, limit)
        sizes = ", ".join(f"{key}={value}" for key, value in small.items())
        reason = " ".join(str(error).split())[:200]
        return small, f"sizes that the data would set are small ones ({sizes}): {reason}"


def load_data(meter: ConfigMeter, config: Mapping[str, Any]) -> Data:
    """The data of a configuration, ready to be read. Raises UsageError where it has none."""
    if not config.get("data"):
        raise UsageError("no data is chosen")
    return meter.data(config)


def _short(origin: str) -> str:
    """An origin whose file is named without its folder where that is the working folder or the packaged recipes."""
    file, mark, line = origin.rpartition(":")
    if not mark or not line.isdigit():
        return origin
    path = Path(file)
    packaged = [folder for folder in recipe_files.builtin_folders() if path.is_relative_to(folder)]
    if packaged:
        return f"{path.relative_to(packaged[0])}:{line}"
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def _text(value: object) -> str:
    if isinstance(value, type) or callable(value):
        return getattr(value, "__name__", str(value))
    return str(value)
