"""From a command to a complete run configuration: read layers, check names without torch, then resolve."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import recipe_files, registry
from zoo.command_line import ParsedOptions
from zoo.config import fit_options, precision, run_folder, yaml_source
from zoo.config.layers import MISSING, Node, where
from zoo.config.passive_settings import (
    CALLBACKS,
    acting_callbacks,
    is_passive,
    is_passive_callback,
    passive_keys,
)
from zoo.config.run_folder import RunLocation
from zoo.errors import PartError, PluginError, UsageError
from zoo.inference import part_versions
from zoo.inference.find_run import refuse_published
from zoo.inference.import_policy import OPTIMIZERS
from zoo.io import plain_yaml
from zoo.plugins import diagnosis

if TYPE_CHECKING:
    from zoo.config.resolve import Resolved, Schema
    from zoo.io.locks import RunLock

SEED = 1
PATH = re.compile(r"[/\\]|\.(txt|md|jsonl?|csv|tsv|parquet|arrow|npz|gz|zip|png|wav)$")  # what no class path has
TORCH_OPTIMIZERS = frozenset(map(str.lower, OPTIMIZERS))
KINDS_OF_PARTS = tuple(
    kind for kind in registry.KINDS if kind not in ("task", "data", "callback", *registry.APPLICATION_KINDS)
)


@dataclass
class Draft:
    """The layers of a command, and the recipe file that names its run."""

    layers: list[Node]
    recipe: Path | None
    files: int  # how many of the layers are files
    records: list[part_versions.Record] = field(default_factory=list)  # parts of the run that is resumed


def read_draft(command: ParsedOptions) -> Draft:
    """Read every layer and check what can be checked without importing torch. Raises UsageError or PartError."""
    names = [name for name in [command.word, *command.get("config")] if name]
    for name in names:
        refuse_published(Path(name).expanduser())
    paths = [recipe_files.find_recipe(name) for name in names]
    files = [yaml_source.read_yaml(path) for path in paths]
    recipe = paths[0] if paths else None
    layers = [*files, yaml_source.option_layer(command.settings)]
    result = Draft(layers, recipe, len(files), earlier_parts(command, recipe))
    check_names(result)
    return result


def earlier_parts(command: ParsedOptions, recipe: Path | None) -> list[part_versions.Record]:
    """The recorded parts of the run that the command names, or with --resume of all runs that it may mean."""
    if recipe is not None and run_folder.run_title(recipe):
        return part_versions.read_records(recipe.parent)
    if recipe is None or not command.get("resume"):
        return []
    name = run_folder.check_name(command.get("name")) if command.get("name") else "*"
    runs = Path(command.get("runs"), run_folder.recipe_of(recipe, "")[0]).glob(f"{name}/*/{part_versions.FILE}")
    return [record for path in runs for record in part_versions.read_records(path.parent)]


def check_names(config_draft: Draft) -> None:
    """Raise PartError or PluginError for unknown parts, using only the registry, which takes milliseconds."""
    for layer in config_draft.layers:
        for section, kind in (("model", "task"), ("data", "data")):
            node = layer.children.get(section)
            if node is None:
                continue
            _check_name(kind, node, config_draft.records)
            if section == "model":
                for name in registry.KINDS:
                    if name in node.children:
                        _check_name(name, node.children[name], config_draft.records)


def _check_name(kind: str, node: Node, records: list[part_versions.Record]) -> None:
    name = node.value
    if kind == "data" and isinstance(name, str) and (PATH.search(name) or Path(name).is_file()):
        raise UsageError(
            f"{name!r:.200} is a path, and data is a way to read it: --data TextFiles --data.path {name:.200} for "
            f"texts. Others: zoo list data{where(node.origin)}"
        )
    if name is MISSING or not isinstance(name, str) or not name or "." in name or name.lower() in ("null", "none"):
        return
    name = registry.full_name(kind, name)
    if kind == "optimizer" and name.lower() in TORCH_OPTIMIZERS:
        return  # torch's own need no entry point
    try:
        diagnosis.choose_part(kind, name)
    except PluginError as error:
        raise PluginError(f"{error}{where(node.origin)}") from error
    except PartError as error:
        part_versions.require_packages(
            record for record in records if (record["kind"], record["name"].lower()) == (kind, name.lower())
        )
        similar = [
            part
            for part_kind in KINDS_OF_PARTS
            for part in registry.parts(part_kind)
            if difflib.get_close_matches(name.lower(), [part.name.lower()], 1, cutoff=0.75)
        ]
        elsewhere = [f". {part.name} is a {part.kind}: --model.{part.kind} {part.name}" for part in similar]
        hint = elsewhere[0] if similar and all(part.kind != kind for part in similar) else ""
        raise PartError(f"{error}{hint}{where(node.origin)}") from error


@dataclass
class RunPlan:
    """Everything that a run needs: its configuration with origins, and its folder."""

    command: ParsedOptions
    resolved: Resolved
    run: RunLocation
    source: Path | None = None
    claimed: bool = False  # this process made the run's folder
    manifest: dict[str, Any] = field(default_factory=dict)  # manifest of the checkpoint to resume from
    other_recipe: bool = False  # the checkpoint's run had another one, and its differences are accepted
    other_callbacks: bool = False  # and other callbacks
    hold: RunLock | None = None  # the lock of the run folder

    @property
    def reuse(self) -> tuple[bool, bool]:
        """Whether to overwrite, and whether to resume, an existing run folder."""
        return bool(self.command.get("overwrite")), bool(self.command.get("resume"))

    @property
    def config(self) -> dict[str, Any]:
        """The complete configuration."""
        return self.resolved.config

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config["seed_everything"]


def schema() -> Schema:
    """The classes that configurations are checked against; imports torch and Lightning."""
    from lightning.pytorch import Trainer

    from zoo.config.resolve import Schema
    from zoo.config.signatures import Param, Slot
    from zoo.data.data import Data
    from zoo.finetuning.finetune import Tune
    from zoo.tasks.task import Task

    extra = (
        Param("seed_everything", int, SEED, None, None),
        Param("ckpt_path", str | None, None, None, None),
        Param("tune", Tune, None, Slot(Tune), None),
        Param("return_predictions", bool | None, None, None, None),
        Param("compile", bool, False, None, None),
    )
    return Schema(Task, Data, Trainer, extra)


def make_plan(command: ParsedOptions, config_draft: Draft, against: Schema | None = None) -> RunPlan:
    """Resolve a draft against the classes of ``against``. Raises UsageError for an invalid configuration."""
    from zoo.config.class_names import ClassFinder
    from zoo.config.resolve import Resolved, resolve
    from zoo.config.trainer_bounds import check_hardware, check_trainer
    from zoo.inference.import_policy import apply_policy

    against = against or schema()
    apply_policy(command.allowed)
    names = ClassFinder(command.allowed, config_draft.records)
    full = resolve(config_draft.layers, against, names)
    check_trainer(full.config["trainer"], full.origins)
    check_hardware(full.config["trainer"], full.origins)
    if not run_folder.run_title(config_draft.recipe):
        precision.choose_precision(full.config["trainer"])  # resumed and repeated runs keep theirs
        check_adapters(full.config.get("tune") or {}, full.origins)  # their configuration names every default
    seed = full.config.setdefault("seed_everything", SEED)
    if not 0 <= seed < 2**32:
        raise UsageError(f"'seed_everything' (--seed) must be a whole number from 0 to {2**32 - 1}, got {seed}.")
    try:
        base = resolve(config_draft.layers[:1], against, names) if config_draft.files else Resolved()
    except UsageError:
        base = Resolved()  # a recipe that needs options of the command line is incomplete by itself
    recipe, earlier = run_folder.recipe_of(config_draft.recipe, full.classes["model"].__name__)
    run = None if command.get("name") else run_to_resume(command, config_draft.recipe, recipe, seed)
    if run is None:
        changes = run_folder.differences(full.values, base.values, full.defaults)
        name = command.get("name") and run_folder.check_name(command.get("name"))
        variant = name or run_folder.variant_name(changes, earlier or run_folder.DEFAULT)
        run = RunLocation(Path(command.get("runs")), recipe, variant, seed)
        if not full.origins.get("seed_everything", "").startswith("--seed"):
            refuse_moved_run(command, config_draft.recipe, run, Path(recipe, earlier or variant, f"s{seed}"))
    return RunPlan(command, full, run, config_draft.recipe)


def check_adapters(tune: Mapping[str, object], origins: Mapping[str, str]) -> None:
    """Raise UsageError for options of adapters where no rank is named: every weight would be trained in their place."""
    for key in ("tune.alpha", "tune.adapters"):
        if key in origins and not tune.get("rank") and "tune.rank" not in origins:
            raise UsageError(f"{key!r} is of adapters, and there are none: add --tune.rank 8{where(origins[key])}")


def run_to_resume(command: ParsedOptions, source: Path | None, recipe: str, seed: int) -> RunLocation | None:
    """The run whose folder the command names, where --resume means this very run and its changes, wherever it is."""
    if source is None or not run_folder.run_title(source) or not command.get("resume"):
        return None
    home = source.resolve().parent
    roots = [Path(command.get("runs")), *home.parents[2:3]][: 1 + (command.get("runs") == fit_options.RUNS.default)]
    runs = (RunLocation(root, recipe, home.parent.name, seed) for root in roots)
    return next((run for run in runs if run.folder.resolve() == home), None)


def refuse_moved_run(command: ParsedOptions, source: Path | None, run: RunLocation, usual: Path) -> None:
    """Raise UsageError where --resume names a run by its folder and another one would go on: a copy, or one renamed.

    ``usual`` is what the folder of the run is called below that of all runs.
    """
    if source is None or not run_folder.run_title(source) or not command.get("resume") or command.get("name"):
        return
    if command.get("runs") == fit_options.RUNS.default and source.parent.resolve() != run.folder.resolve():
        raise UsageError(
            f"nothing to resume: {source.parent} holds {usual}, and is called otherwise. Move it to PLACE/{usual}, "
            f"and name that: zoo fit PLACE/{usual} --resume"
        )


def task_options(command: ParsedOptions, config_draft: Draft, against: Schema) -> frozenset[str]:
    """The names of the options of the task that a draft chooses, the last of several. Raises UsageError for none."""
    from zoo.config.class_names import ClassFinder
    from zoo.config.signatures import Slot, parameters
    from zoo.inference.import_policy import apply_policy

    apply_policy(command.allowed)
    nodes = [layer.children["model"] for layer in config_draft.layers if "model" in layer.children]
    names = [node for node in nodes if isinstance(node.value, str)]
    if not names:
        raise UsageError("no model is chosen. Name a recipe (see: zoo recipes) or add --model NAME.")
    task = ClassFinder(command.allowed, config_draft.records).find(Slot(against.model), names[-1])
    return frozenset(parameters(task))


def config_text(config_plan: RunPlan) -> str:
    """The configuration as YAML that reproduces the run; its first line names recipe and variant."""
    order = ("seed_everything", "compile", "model", "data", "tune", "trainer")
    config = {key: as_yaml(config_plan.config[key]) for key in order if config_plan.config.get(key) not in (None, {})}
    if not config.get("compile"):
        config.pop("compile", None)
    body = plain_yaml.dump(config, 120)
    return f"{run_folder.HEADER}{config_plan.run.title}\n{body}"


def as_yaml(value: object) -> object:
    """A value in the types of YAML's safe form: tuples as lists, other objects as text."""
    if isinstance(value, dict):
        return {str(name): as_yaml(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_yaml(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def flatten(value: object, key: str = "") -> dict[str, object]:
    """A configuration as dotted keys: a class name at its slot's key, its options below."""
    if isinstance(value, dict) and "class_path" in value:
        path = str(value["class_path"])
        name = registry.SUCCESSORS.get(path, path).rpartition(".")[2]
        return {key: name, **flatten(value.get("init_args") or {}, key)}
    if isinstance(value, dict):
        leaves: dict[str, object] = {}
        for name, item in value.items():
            leaves.update(flatten(item, f"{key}.{name}" if key else str(name)))
        return leaves
    return {key: [as_yaml(item) for item in value] if isinstance(value, (list, tuple)) else value}


def identity_config(config_plan: RunPlan) -> dict[str, object]:
    """The whole configuration of a run by dotted keys, without its seed; of the callbacks those that may change it."""
    sections = ("compile", *run_folder.SECTIONS)
    values = {name: as_yaml(config_plan.config[name]) for name in sections if config_plan.config.get(name) is not None}
    flat = {key: value for key, value in flatten(values).items() if not key.startswith(CALLBACKS)}
    flat["on_nonfinite"] = config_plan.command.get("on_nonfinite")
    callbacks = config_plan.config["trainer"].get("callbacks") or []
    by_key = {f"{CALLBACKS}[{index}]": item for index, item in enumerate(callbacks)} if isinstance(callbacks, list)\
        else {CALLBACKS: callbacks}  # fmt: skip
    passive = passive_keys(config_plan.resolved.values)
    acting = [as_yaml(item) for key, item in by_key.items() if key not in passive]
    return flat | {CALLBACKS: acting} if acting else flat


def _default_of(config_plan: RunPlan, key: str) -> object:
    """The default of a part's option, which a run of an earlier version of the part does not name; None for others."""
    from zoo.config.signatures import parameters  # which imports torch

    slot, _, name = key.rpartition(".")
    cls = config_plan.resolved.classes.get(slot)
    params = parameters(cls) if isinstance(cls, type) else {}
    return params[name].default if name in params else None


def _without_none(value: object) -> object:
    """A list of records without options that are None: later versions of a record, such as an override, have more."""
    if not isinstance(value, list):
        return value
    return [
        {name: option for name, option in item.items() if option is not None} if isinstance(item, Mapping) else item
        for item in value
    ]


def changed_callbacks(plan: RunPlan, against: dict[str, Any]) -> str:
    """How the callbacks that influence a run differ from those of a checkpoint's recipe; empty if they do not."""
    classes = [value for key, value in plan.resolved.values.items() if key.startswith(CALLBACKS)]
    passive = {cls.__name__ for cls in classes if isinstance(cls, type) and is_passive_callback(cls)}
    old, new = (
        acting_callbacks(as_yaml((config.get("trainer") or {}).get("callbacks")), passive)
        for config in (against, plan.config)
    )
    return "" if old == new else f"{CALLBACKS}: {old or 'none'} → {new or 'none'}"


def check_resume(config_plan: RunPlan, against: dict[str, Any], training: frozenset[str]) -> list[str]:
    """Compare with the configuration of a checkpoint, and return the differences as sentences.

    Raises UsageError if model options differ, except those in ``training``, which do not change the architecture.
    """
    blanks = config_plan.resolved.classes["model"].data_sizes
    old, new = flatten(against), flatten(as_yaml(config_plan.config))
    changes = [
        key
        for key in sorted({*old, *new})
        if key.partition(".")[0] in ("model", "data", "trainer", "tune")
        and not key.startswith(CALLBACKS)
        and not (is_passive(key, old.get(key)) and is_passive(key, new.get(key)))
        and not run_folder.is_same(key, _without_none(old.get(key)), _without_none(new.get(key)))
        and not (key not in old and run_folder.is_same(key, _default_of(config_plan, key), new[key]))
        and not (new.get(key) is None and key.removeprefix("model.") in blanks)  # not yet filled by the data
    ]
    model = [key for key in changes if key.startswith("model") and key.removeprefix("model.") not in training]
    model += [key for key in changes if key in ("tune.rank", "tune.adapters")]
    model = [key for key in model if not any(key.startswith(f"model.{name}.") for name in training)]
    if model:
        examples = [f"{key} is {old.get(key)} in the checkpoint and {new.get(key)} in your config" for key in model[:2]]
        more = f", and {len(model) - 2} more" if len(model) > 2 else ""
        if config_plan.command.command == "fit":
            raise UsageError(f"cannot resume: {'; '.join(examples)}{more}.")
        raise UsageError(
            f"the checkpoint is another model's: {'; '.join(examples)}{more}.\n"
            f"Name the run that it belongs to: zoo {config_plan.command.command} RUN"
        )
    return [f"{key}: {old.get(key)} → {new.get(key)}" for key in changes]
