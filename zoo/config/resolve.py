"""Merge layers into one configuration: find classes, drop options of replaced parts, reject unknown keys."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from zoo import registry
from zoo.config.class_names import ClassFinder, class_path_of
from zoo.config.coercion import coerce, is_plain
from zoo.config.layers import MISSING, Node, merge_node, nested_children, where
from zoo.config.output_paths import check_output_path, is_from_file
from zoo.config.signatures import Param, Slot, members_of, option_names, parameters, takes_code
from zoo.errors import PartError, PluginError, UsageError
from zoo.inference.import_policy import admit_class
from zoo.registry import nearest_key


@dataclass
class Resolved:
    """A complete configuration, and for every configured dotted key its value, origin and default."""

    config: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    classes: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what another task than the recipe's changes


@dataclass(frozen=True)
class Schema:
    """The classes that the sections of a configuration are checked against."""

    model: type
    data: type
    trainer: type
    extra: tuple[Param, ...] = ()


def resolve(layers: Iterable[Node], schema: Schema, names: ClassFinder) -> Resolved:
    """Merge the layers, later over earlier. Raises UsageError, PartError or PluginError that names the origin."""
    return _Resolver(schema, names).run(list(layers))


class _Resolver:
    def __init__(self, schema: Schema, names: ClassFinder) -> None:
        self.schema, self.names, self.result = schema, names, Resolved()

    def run(self, layers: list[Node]) -> Resolved:
        sections: dict[str, list[Node]] = {}
        for layer in layers:
            for name, node in layer.children.items():
                sections.setdefault(name, []).append(node)
        extra = {param.name: param for param in self.schema.extra}
        names = ["model", "data", "trainer", *extra]
        for name, nodes in sections.items():
            if name not in names:
                raise self.unknown(name, names, nodes[-1].origin)
        config = self.result.config
        for name, base in (("model", self.schema.model), ("data", self.schema.data)):
            value = self.slot(name, Slot(base), sections.get(name, []), None)
            if value is None:
                raise UsageError(f"no {name} is chosen. Name a recipe (see: zoo recipes) or add --{name} NAME.")
            config[name] = value
        trainer = _options(sections.get("trainer", []), "trainer")
        config["trainer"] = self.options("trainer", parameters(self.schema.trainer), trainer)
        for name, param in extra.items():
            if name in sections:
                config[name] = self.value(name, param, sections[name])
        return self.result

    def unknown(self, key: str, names: Iterable[str], origin: str, otherwise: str = "") -> UsageError:
        head, _, last = key.rpartition(".")
        near = nearest_key(last, names)
        hint = f" Did you mean '{head}{'.' if head else ''}{near}'?" if near else otherwise
        return UsageError(f"unknown key {key!r}.{hint}{where(origin)}")

    def value(self, key: str, param: Param, nodes: list[Node]) -> object:
        """The merged value of one parameter."""
        self.result.defaults[key] = _default_or_none(param.default)
        last = nodes[-1]
        if last.bare and bool not in members_of(param.annotation) and not takes_anything(param.annotation):
            raise _needs_value(key, param.slot)
        names_class = param.slot is not None and not param.slot.record and _names_class(param.slot, nodes)
        takes_options = (names_class or last.explicit) and not isinstance(last.value, list)
        if last.children and last.value is not MISSING and not takes_options:
            name, child = next(iter(last.children.items()))
            raise UsageError(f"'{key}.{name}' is set, but {key!r} is {last.plain_value()!r:.80}.{where(child.origin)}")
        if param.slot and param.slot.record and param.slot.many:
            return self.records(key, param, nodes)
        if param.slot and param.slot.record and (last.value is MISSING or last.explicit):
            return self.record(key, param.slot, nodes)
        if param.slot and names_class:
            if isinstance(last.value, list):
                return self.many(key, param, last)
            return self.slot(key, param.slot, nodes, param.default)
        if last.explicit or any(child.explicit for child in last.children.values()):
            raise UsageError(f"{key!r} takes a plain value, not a class.{where(last.origin)}")
        node = _merge_nodes(nodes)
        if _holds_class(node.as_data()):
            raise UsageError(f"{key!r} takes a plain value, not a class.{where(last.origin)}")
        if takes_code(param.annotation):
            self.names.code(key, node.as_data(), last.origin)
        if is_from_file(last.origin) and not self.names.trusts_all:
            check_output_path(key, node.as_data(), last.origin)
        value = coerce(key, param.annotation, node, param.default is None)
        self.result.values[key], self.result.origins[key] = value, last.origin
        return value

    def record(self, key: str, slot: Slot, nodes: list[Node]) -> dict[str, object]:
        """The options of a dataclass or named tuple, set since the last null or other plain value."""
        values = [index for index, node in enumerate(nodes) if node.value is not MISSING and not node.explicit]
        children = [Node(MISSING, node.origin, node.children) for node in nodes[values[-1] + 1 if values else 0 :]]
        return self.options(key, parameters(slot.base), _options(children, key), slot.base)

    def records(self, key: str, param: Param, nodes: list[Node]) -> object:
        """A list of dataclasses, such as overrides of some layers; the last list counts."""
        node = next((node for node in reversed(nodes) if node.value is not MISSING), nodes[-1])
        slot, items = cast(Slot, param.slot), node.value
        self.result.origins[key] = nodes[-1].origin
        if items is None or (isinstance(items, str) and items.lower() in ("null", "none")):
            self.result.values[key] = None
            return None
        if not isinstance(items, list) or any(item.value is not MISSING or item.explicit for item in items):
            fields = ", ".join(parameters(slot.base))
            raise UsageError(f"{key!r} must be a list of mappings, each with some of {fields}.{where(node.origin)}")
        records = [self.record(f"{key}[{index}]", slot, [item]) for index, item in enumerate(items)]
        self.forget(key, "[")  # the whole list names the run
        self.result.values[key] = [_changed_options(record, slot.base) for record in records]
        return records

    def many(self, key: str, param: Param, node: Node) -> list[object]:
        """A list of parts, such as callbacks."""
        slot = param.slot
        if slot is None or not slot.many or not isinstance(node.value, list):
            raise UsageError(f"{key!r} takes one {slot.word if slot else 'value'}, not a list.{where(node.origin)}")
        return [self.slot(f"{key}[{index}]", slot, [item], None) for index, item in enumerate(node.value)]

    def slot(self, key: str, slot: Slot, nodes: list[Node], default: object) -> dict[str, object] | None:
        """The last class that the nodes name for a slot, with the options set since then."""
        cls = default if isinstance(default, type) else None
        options: dict[str, list[Node]] = {}
        replaced: list[type] = []  # tasks that a later layer replaces
        lists = [index for index, node in enumerate(nodes) if isinstance(node.value, list)]
        for node in nodes[lists[-1] + 1 if lists else 0 :]:
            if node.value is not MISSING:
                choice = self.choose(key, slot, node)
                if choice is not cls:
                    if key == "model":  # tasks share their network, optimizer and schedule
                        replaced += [] if cls is None else [cls]
                    else:
                        self.check_options(key, slot, cls, options)
                        options = {}  # another part starts from its own defaults
                    self.forget(key)
                cls = choice
                self.result.origins[key] = node.origin
            for name, child in nested_children(node, key).items():
                options.setdefault(name, []).append(child)
        if cls is None:
            if options:
                name, below = next(iter(options.items()))
                if lists:
                    raise UsageError(
                        f"'{key}.{name}' means one of the {slot.word}s of a list, and not which: set it in the list, "
                        f"{key}: [{{class_path: NAME, init_args: {{{name}: …}}}}].{where(below[-1].origin)}"
                    )
                raise UsageError(
                    f"'{key}.{name}' is set, but no {slot.word} is chosen. "
                    f"{'Name a recipe (see: zoo recipes) or add' if key in ('model', 'data') else 'Add'} --{key} NAME."
                    f"{where(below[-1].origin)}"
                )
            self.result.values[key] = None
            return None
        self.result.values[key] = self.result.classes[key] = cls
        params = parameters(cls, slot.owner_arguments)
        if replaced:
            options = self.shared_options(cls, replaced, options)
        self.check_options(key, slot, cls, options)
        admit_class(cls, class_path_of(cls))  # checked above, or a default in code
        return {"class_path": class_path_of(cls), "init_args": self.options(key, params, options, cls)}

    def check_options(self, key: str, slot: Slot, cls: type | None, options: dict[str, list[Node]]) -> None:
        """Raise UsageError or PartError for an option that a class does not have."""
        for name, nodes in options.items():
            if cls is not None and name not in parameters(cls, slot.owner_arguments):
                raise self.no_option(key, slot, cls, name, nodes[-1].origin)

    def shared_options(self, task: type, replaced: list[type], options: dict[str, list[Node]]) -> dict[str, list[Node]]:
        """The options of a model without those of a file that belong to replaced tasks alone; notes say which.

        An option of the command line stays: it is an error where the task lacks it.
        """
        params, shared = parameters(task), dict(options)
        dropped: dict[str, str] = {}  # with where each stands
        for name, nodes in options.items():
            owners = [owner for owner in replaced if owner is not task and name in parameters(owner)]
            if not owners or not all(is_from_file(node.origin) for node in nodes):
                continue
            if name not in params or not _same_type(params[name], parameters(owners[0])[name]):
                del shared[name]
                dropped[f"model.{name} of {owners[0].__name__}"] = nodes[-1].origin
        if dropped:
            last = list(dropped.values())[-1]
            self.result.notes.append(f"{task.__name__} lacks {', '.join(dropped)}: dropped{where(last)}")
        former = parameters(replaced[0])
        for name, param in params.items():
            ours, theirs = param.default, former[name].default if name in former else param.default
            if name not in shared and ours != theirs:
                self.result.notes.append(
                    f"model.{name} is {_default_text(ours)}, the default of {task.__name__}; that of "
                    f"{replaced[0].__name__} is {_default_text(theirs)}"
                )
        return shared

    def forget(self, key: str, mark: str = ".") -> None:
        """Drop the recorded values and origins below a key."""
        for table in (self.result.origins, self.result.values):
            for name in [name for name in table if name.startswith(f"{key}{mark}")]:
                del table[name]

    def choose(self, key: str, slot: Slot, node: Node) -> type | None:
        """The class that a node names, None for null; `none` means the kind's part that does nothing, if it has one."""
        if slot.kind and isinstance(node.value, str) and (name := registry.full_name(slot.kind, node.value)):
            node = replace(node, value=name)
        if node.bare:
            raise _needs_value(key, slot)
        if node.value is None or (not node.typed and str(node.value).lower() in ("null", "none")):
            if slot.optional:
                return None
            empty = registry.full_name(slot.kind, "none") if slot.kind else "none"
            hint = f" For none at all: {empty}." if empty != "none" else ""
            raise UsageError(f"{key!r} must name a {slot.word}, got nothing.{hint}{where(node.origin)}")
        if not isinstance(node.value, str) or not node.value:
            raise UsageError(f"{key!r} must name a {slot.word}, got {node.as_data()!r:.60}.{where(node.origin)}")
        return self.names.find(slot, node)

    def no_option(self, key: str, slot: Slot, cls: type, name: str, origin: str) -> UsageError:
        params = parameters(cls, slot.owner_arguments)
        if key in ("model", "data"):
            slots = {option: param.default for option, param in params.items() if param.slot}
            inner = {option: default for option, default in slots.items() if isinstance(default, type)}
            if key == "data" and (
                nested := [option for option, default in inner.items() if name in parameters(default)]
            ):
                return UsageError(
                    f"data.{name} is no option of {cls.__name__}. Did you mean 'data.{nested[0]}.{name}'?"
                    f"{where(origin)}"
                )
            others = [f"--{key} {part}" for part in _parts_with_option(key if key == "data" else "task", name, cls)]
            if not others and key == "data":  # as MaskedText reads TextFiles
                others = [
                    f"--data.{option} {part}, and write --data.{option}.{name}"
                    for option, default in inner.items()
                    for part in _parts_with_option(key, name, default)
                ]
            if others:
                return UsageError(
                    f"{key}.{name} is no option of {cls.__name__}, which the recipe names, but of another {slot.word}. "
                    f"Add {' or '.join(others)}.{where(origin)}"
                )
            return self.unknown(f"{key}.{name}", params, origin, f" See: zoo show {slot.word} {cls.__name__}")
        if name in option_names(cls, slot.owner_arguments):
            return UsageError(f"{name!r} of {slot.word} {cls.__name__!r} is set by the model.{where(origin)}")
        near = nearest_key(name, params)
        hint = f" Did you mean {near!r}?" if near else f" It has: {', '.join(params) or 'none'}."
        return PartError(f"{slot.word} {cls.__name__!r} has no option {name!r}.{hint}{where(origin)}")

    def options(
        self, key: str, params: dict[str, Param], options: dict[str, list[Node]], owner: type | None = None
    ) -> dict[str, object]:
        """Every option of a class: configured values, and defaults that YAML can represent.

        Defaults are included because jsonargparse would otherwise keep a same-named default of the slot's default
        class (eps of RMSNorm for a LayerNorm), and because a saved configuration must not change with the code.
        """
        values: dict[str, object] = {}
        for name, nodes in options.items():
            if name not in params:
                raise self.unknown(f"{key}.{name}", params, nodes[-1].origin)
        for name, param in params.items():
            if name in options:
                values[name] = self.value(f"{key}.{name}", param, options[name])
            elif param.required and owner is not None:
                raise UsageError(f"{owner.__name__} needs a value for '{key}.{name}'. Add --{key}.{name} …")
            elif owner is not None and param.slot and isinstance(param.default, type):
                values[name] = self.slot(f"{key}.{name}", param.slot, [], param.default)
            elif owner is not None and is_plain(param.default):
                values[name] = param.default
        return values


def _parts_with_option(kind: str, option: str, but: type) -> list[str]:
    """The parts of a kind with an option of this name that are most akin to a class, by the bases that they share.

    Of the bases of data those count that say what their samples are, and of tasks those that learn from the same.
    """
    from zoo.plugins.description import describe

    bases = {base for base in but.__mro__ if registry.kind_of(base) == kind}
    if kind == "data":
        bases = {base for base in bases if "gives" in vars(base)}
    akin: dict[int, list[str]] = {}
    for part in registry.installed_parts(kind):
        if part.name != but.__name__ and any(entry.name == option for entry in describe(part).options):
            with contextlib.suppress(PluginError, PartError):
                other = part.load()
                if getattr(other, "learns_from", "") == getattr(but, "learns_from", ""):
                    akin.setdefault(len(bases.intersection(other.__mro__)), []).append(part.name)
    nearest = max(akin, default=0)
    return akin[nearest][:3] if nearest > (kind == "data") else []  # all data share one base, and may be of any sort


def _changed_options(record: dict[str, object], cls: type) -> dict[str, object]:
    """The options of a dataclass that differ from their defaults, with parts as names."""
    from zoo.training.setup import display_value

    usual = {name: param.default for name, param in parameters(cls).items()}
    return {name: display_value(value) for name, value in record.items() if value != usual[name]}


def _options(nodes: list[Node], key: str) -> dict[str, list[Node]]:
    """The nodes by key of a section that names no class. Raises UsageError if it is not a mapping."""
    options: dict[str, list[Node]] = {}
    for node in nodes:
        if node.bare:
            raise _needs_value(key, None)
        if node.value not in (MISSING, None):
            raise UsageError(f"{key!r} must hold keys, got {node.as_data()!r:.60}.{where(node.origin)}")
        for name, child in nested_children(node, key).items():
            options.setdefault(name, []).append(child)
    return options


def _names_class(slot: Slot, nodes: list[Node]) -> bool:
    """Whether the value for a slot names a class, and is not one of the plain values that it also accepts."""
    last = next((node for node in reversed(nodes) if node.value is not MISSING), nodes[-1])
    if isinstance(last.value, bool) or (slot.many and isinstance(last.value, str) and last.value.lower() in _BARE):
        return False
    if isinstance(last.value, list):
        return any(item.explicit or isinstance(item.value, str) for item in last.value)
    return not slot.loose or last.explicit or (isinstance(last.value, str) and "." in last.value)


def _needs_value(key: str, slot: Slot | None) -> UsageError:
    return UsageError(
        f"'--{key}' needs a value.{f' See what there is: zoo list {slot.kind}' if slot and slot.kind else ''}"
    )


def takes_anything(annotation: Any) -> bool:
    """Whether an option has no type."""
    return annotation in (inspect.Parameter.empty, Any, object)


_BARE = ("true", "false")


def _holds_class(value: object) -> bool:
    """Whether a value contains a mapping that jsonargparse would read as a class, at any depth."""
    if isinstance(value, dict):
        return "class_path" in value or any(_holds_class(item) for item in value.values())
    return isinstance(value, list) and any(_holds_class(item) for item in value)


def _merge_nodes(nodes: list[Node]) -> Node:
    """Merge nodes: values replace earlier ones, keys of mappings are added."""
    merged = Node()
    for node in nodes:
        if node.value is not MISSING or merged.value is not MISSING:
            merged = Node()
        merge_node(merged, node)
    return merged


def _same_type(param: Param, counterpart: Param) -> bool:
    """Whether two tasks take the same kind of value for an option: parts of one kind, or values of a common type."""
    if param.slot is None or counterpart.slot is None:
        types = set(map(str, members_of(param.annotation))) & set(map(str, members_of(counterpart.annotation)))
        return param.slot is counterpart.slot and bool(types)
    return param.slot.base is counterpart.slot.base


def _default_text(default: object) -> str:
    return default.__name__ if isinstance(default, type) else str(default)


def _default_or_none(default: object) -> object:
    return None if default is inspect.Parameter.empty else default
