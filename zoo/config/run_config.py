"""From a command to a complete configuration: read layers, check names without torch, then resolve."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import recipe_files, registry
from zoo.config import fit_options, precision, run_folder, yaml_source
from zoo.config.layers import MISSING, Node, where
from zoo.errors import PartError, PluginError, UsageError
from zoo.inference import part_versions
from zoo.inference.find_run import refuse_published
from zoo.plugins import diagnosis

if TYPE_CHECKING:
    from zoo.config.resolve import Resolved, Schema
    from zoo.training.run_lock import RunLock

SEED = 1
KINDS_OF_PARTS = tuple(kind for kind in registry.KINDS if kind not in ("task", "data"))


@dataclass
class Draft:
    """The layers of a command, and the file its run is named after."""

    layers: list[Node]
    recipe: Path | None
    files: int  # how many of the layers are files
    records: list[part_versions.Record] = field(default_factory=list)  # the parts of the run that is continued


def draft(command: fit_options.Command) -> Draft:
    """Read every layer and check what can be checked without importing torch."""
    written = [name for name in [command.recipe, *command.configs] if name]
    for name in written:
        refuse_published(Path(name).expanduser())
    paths = [recipe_files.find(name) for name in written]
    files = [yaml_source.read(path) for path in paths]
    recipe = paths[0] if paths else None
    layers = [*files, *yaml_source.from_options(command.options)]
    result = Draft(layers, recipe, len(files), earlier_config(command, recipe))
    check_names(result)
    return result


def earlier_config(command: fit_options.Command, recipe: Path | None) -> list[part_versions.Record]:
    """The parts that the named run was made with, or with --resume those of any run that may be meant."""
    if recipe is not None and recipe.name == run_folder.CONFIG:
        return part_versions.read_records(recipe.parent)
    if recipe is None or "resume" not in command.flags:
        return []
    name = run_folder.check_name(command.name) if command.name else "*"
    runs = Path(command.runs, run_folder.recipe_of(recipe, "")[0]).glob(f"{name}/*/{part_versions.FILE}")
    return [record for path in runs for record in part_versions.read_records(path.parent)]


def check_names(config_draft: Draft) -> None:
    """Refuse unknown parts by the registry alone, in milliseconds: `--model.position` names a `position`."""
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
    if name is MISSING or not isinstance(name, str) or not name or "." in name or name.lower() in ("null", "none"):
        return
    name = registry.spelled(kind, name)
    try:
        diagnosis.choose(kind, name)
    except PluginError as error:
        raise PluginError(f"{error}{where(node.origin)}") from error
    except PartError as error:
        part_versions.require(one for one in records if (one["kind"], one["name"].lower()) == (kind, name.lower()))
        elsewhere = [
            f". {part.name} is a {part.kind}: --model.{part.kind} {part.name}"
            for other in KINDS_OF_PARTS
            for part in registry.parts(other)
            if other != kind and difflib.get_close_matches(name.lower(), [part.name.lower()], 1, cutoff=0.75)
        ]
        hint = elsewhere[0] if elsewhere and "Did you mean" not in str(error) else ""
        raise PartError(f"{error}{hint}{where(node.origin)}") from error


@dataclass
class Plan:
    """Everything a run needs: its configuration with origins, and where it goes."""

    command: fit_options.Command
    resolved: Resolved
    run: run_folder.Run
    source: Path | None = None
    claimed: bool = False  # this process made the run's folder
    manifest: dict[str, Any] = field(default_factory=dict)  # of the checkpoint that is continued
    hold: RunLock | None = None  # the right to write into the run's folder

    @property
    def reuse(self) -> tuple[bool, bool]:
        """Whether an existing folder is to be deleted, and whether it is to be continued."""
        return "overwrite" in self.command.flags, "resume" in self.command.flags

    @property
    def config(self) -> dict[str, Any]:
        return self.resolved.config

    @property
    def seed(self) -> int:
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


def plan(command: fit_options.Command, config_draft: Draft, against: Schema | None = None) -> Plan:
    """Resolve a draft against the real classes."""
    from zoo.config.class_names import Names
    from zoo.config.resolve import Resolved, resolve
    from zoo.config.trainer_bounds import check_hardware, check_trainer
    from zoo.inference.import_policy import import_policy

    against = against or schema()
    import_policy(tuple(command.allow))
    names = Names(command.allow, config_draft.records)
    full = resolve(config_draft.layers, against, names)
    check_trainer(full.config["trainer"], full.origins)
    check_hardware(full.config["trainer"], full.origins)
    if (
        config_draft.recipe is None or config_draft.recipe.name != run_folder.CONFIG
    ):  # a run goes on, and is repeated, as it was
        precision.choose_precision(full.config["trainer"])
    seed = full.config.setdefault("seed_everything", SEED)
    if not 0 <= seed < 2**32:
        raise UsageError(f"'seed_everything' (--seed) must be a whole number from 0 to {2**32 - 1}, got {seed}.")
    try:
        base = resolve(config_draft.layers[:1], against, names) if config_draft.files else Resolved()
    except UsageError:
        base = Resolved()  # a recipe that leaves something to the command line is no configuration by itself
    recipe, earlier = run_folder.recipe_of(config_draft.recipe, full.classes["model"].__name__)
    changes = run_folder.differences(full.values, base.values, full.defaults)
    variant = run_folder.variant(changes)
    if command.name:
        variant = run_folder.check_name(command.name)
    elif earlier:
        variant = earlier if not changes else f"{earlier},{variant}".removeprefix("default,")
    return Plan(command, full, run_folder.Run(Path(command.runs), recipe, variant, seed), config_draft.recipe)


def config_text(config_plan: Plan) -> str:
    """The configuration as YAML that reproduces the run; its first line names recipe and variant."""
    import yaml

    order = ("seed_everything", "compile", "model", "data", "tune", "trainer")
    config = {key: as_yaml(config_plan.config[key]) for key in order if config_plan.config.get(key) not in (None, {})}
    if not config.get("compile"):
        config.pop("compile", None)
    body = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
    return f"{run_folder.HEADER}{config_plan.run.title}\n{body}"


def as_yaml(value: object) -> object:
    """Tuples as lists and other objects as text, which is all that YAML's safe form knows."""
    if isinstance(value, dict):
        return {str(name): as_yaml(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_yaml(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def flatten(value: object, key: str = "") -> dict[str, object]:
    """A configuration as dotted keys: a class stands under its slot's key, its options below."""
    if isinstance(value, dict) and "class_path" in value:
        return {key: str(value["class_path"]).rpartition(".")[2], **flatten(value.get("init_args") or {}, key)}
    if isinstance(value, dict):
        leaves: dict[str, object] = {}
        for name, item in value.items():
            leaves.update(flatten(item, f"{key}.{name}" if key else str(name)))
        return leaves
    return {key: [as_yaml(item) for item in value] if isinstance(value, (list, tuple)) else value}


def check_resume(config_plan: Plan, against: dict[str, Any], training: frozenset[str]) -> list[str]:
    """Compare with the configuration a checkpoint was trained with: refuse another architecture, return the rest."""
    blanks = config_plan.resolved.classes["model"].blanks
    old, new = flatten(against), flatten(as_yaml(config_plan.config))
    changed = [
        key
        for key in sorted({*old, *new})
        if key.partition(".")[0] in ("model", "data", "trainer", "tune")
        and not key.startswith(run_folder.INFRASTRUCTURE)
        and old.get(key) != new.get(key)
        and not (new.get(key) is None and key.removeprefix("model.") in blanks)  # not yet filled by the data
    ]
    model = [key for key in changed if key.startswith("model") and key.removeprefix("model.") not in training]
    model += [key for key in changed if key in ("tune.rank", "tune.adapters")]
    model = [key for key in model if not any(key.startswith(f"model.{name}.") for name in training)]
    if model:
        shown = [f"{key} is {old.get(key)} in the checkpoint and {new.get(key)} in your config" for key in model[:2]]
        more = f", and {len(model) - 2} more" if len(model) > 2 else ""
        if config_plan.command.subcommand == "fit":
            raise UsageError(f"cannot resume: {'; '.join(shown)}{more}.")
        raise UsageError(
            f"the checkpoint is another model's: {'; '.join(shown)}{more}.\n"
            f"Name the run that it belongs to: zoo {config_plan.command.subcommand} RUN"
        )
    return [f"{key}: {old.get(key)} → {new.get(key)}" for key in changed]
